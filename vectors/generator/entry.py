"""Journal records to ledger entries."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import msgspec
from generator.keys import Case

from pellucid.core import entry, record
from pellucid.core.expand import expand
from pellucid.core.tensor import Tensor

FACTS = {
    "model": "credit", "version": "1.0.0", "package": "sha256:" + "11" * 32, "engine": "sha256:" + "22" * 32,
    "policy": "sha256:" + "33" * 32, "config": "sha256:" + "44" * 32, "environment": "sha256:" + "55" * 32,
    "precision": "FP32", "device": "cpu", "threads": 1, "label_variance": "invariant",
}  # fmt: skip
START = 1_795_000_000_123_456_789


def call(n: int, rows: int = 1, **changes: Any) -> record.Call:
    made = tuple(
        record.Row(
            hashlib.sha256(b"in %d %d" % (n, r)).digest(), hashlib.sha256(b"out %d %d" % (n, r)).digest(),
            "refused", "0.731000",
        )
        for r in range(rows)
    )  # fmt: skip
    fields: dict[str, Any] = {
        "n": n, "context": 1, "outcome": "answered", "error": None,
        "accepted_ns": START, "closed_ns": START + 5_000_000,
        "stages": (1000, 2000, 3000, 6000), "slot": 0, "bucket": 8, "rows": made, "shapes": ((rows, 20),),
        "nbytes": (80 * rows, 8 * rows), "seed": hashlib.sha256(b"seed %d" % n).digest(),
        "personal": {"address": "192.0.2.7"}, "trace": "0123456789abcdef0123456789abcdef",
    }  # fmt: skip
    return record.Call(**(fields | changes))


def entry_cases() -> list[Case]:
    plain = record.Context(1, FACTS | {"commitment": "plain"})
    salted = record.Context(1, FACTS)
    personal = {"address": "192.0.2.7", "request_id": "né-1", "trace_id": "ff" * 16}
    failed = {"rows": 0, "outcome": "failed", "error": "deadline", "slot": -1, "bucket": 0}
    refused = failed | {"outcome": "refused", "error": "tensor", "personal": {"message": "input 'x'"}}
    event = record.Event(4, "load", START, {"model": "credit", "verdict": "allowed", "findings": []})
    reading = record.Event(5, "read", START, {"what": "call"}, bytes(range(32)), {"subject": "anna"})
    neighbours = (call(2, slot=0), call(3, rows=2, slot=1, personal={"subject": "anna"}, trace=None))
    output = Tensor("probabilities", "FP32", (1, 2), struct.pack("<2f", 0.25, 0.75))
    row = record.Row(hashlib.sha256(b"in").digest(), value=entry.encode_outputs([output]))
    kept = msgspec.structs.replace(call(1), rows=(row,))
    labels = {"labels": ["granted", "refused"], "threshold": "0.4"}
    decision = {"kind": "threshold", "output": "probabilities", "column": 1} | labels
    deciding = record.Context(1, FACTS | {"decision": decision})
    misfit = record.Context(1, FACTS | {"decision": decision | {"output": "another"}})
    load = {
        "cpu_wait_permille": 310,
        "gpus": None,
        "gpus_reason": "no NVIDIA driver",
        "resident_bytes": 2**27,
    }
    mark = {"baseline": "node1/1/0/e3", "deviation_milli": 4_210, "load": load}
    before = expand_case("call_written_before_marks", call(1), salted)
    before["record_hex"] = msgspec.msgpack.encode(
        msgspec.msgpack.decode(bytes.fromhex(before["record_hex"]))[:-1]
    ).hex()
    cases = [
        before,
        expand_case("call_alone", call(1), salted),
        expand_case("call_plain", call(1), plain),
        expand_case("call_personal", call(1, personal=personal, trace=None), salted),
        expand_case("call_subject", call(1, personal={"subject": "anna"}), salted),
        expand_case("call_many_rows", call(1, rows=17), salted),
        expand_case("call_completed_from_kept_outputs", kept, deciding),
        expand_case("kept_outputs_that_do_not_fit_fail", kept, misfit),
        expand_case("call_failed", call(1, **failed), salted),
        expand_case("call_refused", call(1, **refused), salted),
        expand_case("call_marked", call(1, mark=mark), salted),
        expand_case("call_mark_float_fail", call(1, mark={"deviation_milli": 4.21}), salted),
        expand_case("batch_of_one_is_a_call", record.Batch(1, 1, 8, START, 3000, (call(1),)), salted),
        expand_case("batch_of_two", record.Batch(1, 1, 8, START, 3000, neighbours), salted),
        expand_case("event_load", event, salted),
        expand_case("event_personal", reading, salted),
        expand_case("context_unknown_fail", call(1, context=9), salted),
        expand_case("event_float_fail", record.Event(1, "load", START, {"x": 0.5}), salted),
        expand_case("event_too_large_fail", record.Event(1, "load", START, {"x": "y" * 65_535}), salted),
    ]
    digest, commitment_key = bytes(range(32)), bytes(range(32, 64))
    case: Case = {"name": "commit", "operation": "commit", "key": commitment_key.hex()}
    return [*cases, case | {"digest": digest.hex(), "expected": entry.commit(commitment_key, digest)}]


def subject_key(subject: str) -> bytes:
    """Keys of the vectors' subjects; a real vault draws them at random."""
    return hashlib.sha256(b"vectors subject " + subject.encode()).digest()


def expand_case(name: str, item: record.Record, context: record.Context) -> Case:
    case: Case = {
        "name": name, "operation": "expand", "source": "node-a/3/0",
        "subject_keys": {"anna": subject_key("anna").hex()},
        "context_hex": record.encode_record(context).hex(), "record_hex": record.encode_record(item).hex(),
    }  # fmt: skip
    if not name.endswith("_fail"):
        writer = entry.Writer("node-a/3/0")
        formed = expand(item, writer=writer, contexts={1: context}, subject_keys=subject_key)
        case["expected"] = [formed_json(f) for f in formed]
    return case


def formed_json(formed: entry.Formed) -> Case:
    return {
        "key": formed.key, "type": formed.type, "entry": formed.entry.decode(), "subject": formed.subject,
        "openings": [[o.kind, o.row, o.key.hex(), o.value.hex() if o.value is not None else None]
                     for o in formed.openings],
    }  # fmt: skip
