"""Forming equals its plain definition: every entry and every opening, byte by byte."""

from __future__ import annotations

import hashlib
import hmac
import struct

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pellucid.core import canonical, entry, expand
from pellucid.core.decision import decide
from pellucid.core.digest import hmac_sha256
from pellucid.core.entry import Opening
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.record import OUTCOMES, PERSONAL, STAGES, Batch, Call, Context, Event, Row
from pellucid.core.tensor import Tensor, row_digest
from pellucid.core.times import format_time
from pellucid.errors import FormatError

SOURCE = "node-a/3/0"
FACTS = {"model": "credit", "version": "1.0.0", "package": "sha256:11", "engine": "sha256:22", "threads": 4}
DECISIONS = (
    {},
    {"kind": "argmax", "output": "y", "labels": ["a", "ü", '"']},
    {"kind": "threshold", "output": "y", "column": 1, "threshold": "0.5", "labels": ["no", "yes"]},
    {"kind": "threshold", "output": "y", "column": 1, "labels": ["no", "yes"]},
    {"kind": "argmax", "output": "y", "labels": [1, 2, 3]},
    {"kind": "lottery", "output": "y", "labels": []},
    {"kind": "argmax"},
    ["argmax"],
)

# -- the plain definition, spec/ledger.md section 2 and spec/canonical.md section 5 -----------------


def mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


class Plain:
    """One record's entries, said as directly as can be."""

    def __init__(self, contexts):
        self.contexts = contexts

    def expand(self, record):
        if isinstance(record, Event):
            return [self.event(record)]
        calls = [record] if isinstance(record, Call) else record.calls
        parts = [self.commit(call) for call in calls]
        if len(calls) == 1:
            return [self.call(calls[0], parts[0], None)]
        batch = self.batch(record, parts)
        digest = "sha256:" + hashlib.sha256(batch[2]).hexdigest()
        return [batch, *(self.call(call, part, digest) for call, part in zip(calls, parts, strict=True))]

    def commit(self, call):
        facts = self.contexts[call.context].facts
        openings, rows = [], []
        for number, row in enumerate(call.rows):
            done = entry.complete_row(row, facts.get("decision") or {})
            rows.append(self.row(call, number, done, facts.get("commitment") == "plain", openings))
        return rows, self.personal(f"{SOURCE}/{call.n}", call, openings), openings

    def key(self, call_key, owner, kind, row):
        subject = owner.personal.get("subject")
        if subject is None:
            return mac(owner.seed, f"pellucid/key/v1\n{kind}\n{row}".encode())
        message = f"pellucid/subject-key/v1\n{call_key}\n{kind}\n{row}"
        return mac(subject_key(subject), message.encode())

    def seal(self, call_key, owner, kind, row, digest, openings, *rest):
        key = self.key(call_key, owner, kind, row)
        openings.append(Opening(kind, row, key if "subject" not in owner.personal else b"", *rest))
        return "hmac-sha256:" + mac(key, digest).hex()

    def row(self, call, number, row, plain, openings):
        output, rest = None, (row.value, row.label, row.confidence, row.output)
        if row.output:
            output = entry.output_digest(row.output, row.label, row.confidence)
        if plain:
            if output:
                openings.append(Opening("output", number, b"", *rest))
            return {
                "input": "sha256:" + row.input.hex(),
                "output": "sha256:" + output.hex() if output else None,
            }
        call_key = f"{SOURCE}/{call.n}"
        read = self.seal(call_key, call, "input", number, row.input, openings)
        if output:
            given_ = self.seal(call_key, call, "output", number, output, openings, *rest)
        return {"input": read, "output": given_ if output else None}

    def personal(self, key, owner, openings):
        return {
            kind: self.seal(
                key, owner, kind, -1, entry.text_digest(text), openings, text.encode("utf-8", "surrogatepass")
            )
            for kind, text in sorted(owner.personal.items())
        }

    def call(self, call, part, batch):
        rows, personal, openings = part
        key, facts = f"{SOURCE}/{call.n}", self.contexts[call.context].facts
        named = ("model", "version", "package", "engine", "policy", "config", "environment", "precision",
                 "device", "threads", "label_variance")  # fmt: skip
        data = {name: facts[name] for name in named if name in facts} | {
            "accepted": format_time(call.accepted_ns), "batch": batch, "bucket": call.bucket, "call": key,
            "error": call.error, "input_bytes": call.nbytes[0], "outcome": call.outcome,
            "output_bytes": call.nbytes[1], "personal": personal, "row_count": len(rows),
            "shapes": [list(shape) for shape in call.shapes], "slot": call.slot,
            "stages": dict(zip(STAGES, call.stages, strict=True)), "trace": call.trace,
        }  # fmt: skip
        if call.mark is not None:
            data["mark"] = call.mark
        if len(rows) > 16:
            openings = [*openings, Opening("rows", -1, b"", canonical.encode(rows))]
        data |= self.listed(rows, 16)
        return self.formed("call", key, call.closed_ns, data, call.personal.get("subject"), openings)

    def batch(self, batch, parts):
        facts = self.contexts[batch.context].facts
        rows = [
            row | {"slot": call.slot + number}
            for call, (rows, _, _) in zip(batch.calls, parts, strict=True)
            for number, row in enumerate(rows)
        ]
        data = {n: facts[n] for n in ("model", "version", "package", "engine") if n in facts} | {
            "bucket": batch.bucket, "calls": len(parts), "infer_ns": batch.infer_ns, "row_count": len(rows),
        }  # fmt: skip
        data |= self.listed(rows, 128)
        return self.formed("batch", f"{SOURCE}/b{batch.n}", batch.closed_ns, data, None, [])

    def listed(self, rows, limit):
        if len(rows) <= limit:
            return {"rows": rows}
        root = root_of([hash_leaf(canonical.encode(row)) for row in rows])
        return {"rows_tree": {"root": root.hex(), "size": len(rows)}}

    def event(self, event):
        key, openings = f"{SOURCE}/e{event.n}", []
        data = dict(event.data)
        if event.personal:
            data["personal"] = self.personal(key, event, openings)
        return self.formed(event.kind, key, event.time_ns, data, event.personal.get("subject"), openings)

    def formed(self, kind, key, time_ns, data, subject, openings):
        leaf = canonical.encode({
            "specversion": "1.0", "datacontenttype": "application/json", "source": "pellucid:node-a",
            "id": key, "type": kind, "time": format_time(time_ns), "data": data,
        })  # fmt: skip
        if len(leaf) > 65_535:
            raise FormatError("too large")
        return key, kind, leaf, subject, tuple(openings)


def subject_key(subject: str) -> bytes:
    return hashlib.sha256(b"subject" + subject.encode("utf-8", "surrogatepass")).digest()


# -- records ----------------------------------------------------------------------------------------

DIGESTS = st.binary(min_size=32, max_size=32)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(['"\\\n', "\x7f\x00"])
VALUES = st.none() | st.booleans() | WORDS | st.integers(-5, 5)
FEW = st.dictionaries(st.sampled_from("zYa_0"), VALUES, max_size=3)
JSON = VALUES | FEW | st.lists(FEW, max_size=2)
FACT_NAMES = (
    "model", "version", "package", "engine", "policy", "config", "environment", "precision", "device",
    "threads", "label_variance", "unlisted",
)  # fmt: skip
ALL_FACTS = st.dictionaries(st.sampled_from(FACT_NAMES), JSON, max_size=12) | st.just(FACTS)
TIMES = st.integers(0, 2**62)
COUNTS = st.integers(0, canonical.INTEGER_MAX)


@st.composite
def kept_outputs(draw):
    """Kept outputs of few sizes, so that they often begin alike; sometimes with others, or spoiled."""
    width = draw(st.integers(1, 4))
    floats = st.floats(width=32) | st.sampled_from([0.5, float("nan"), float("inf"), -0.0])
    data = struct.pack(f"<{width}f", *draw(st.lists(floats, min_size=width, max_size=width)))
    name, kind = draw(st.sampled_from([("y", "FP32"), ("y", "UINT32"), ("x", "FP32")]))
    outputs = [Tensor(name, kind, (1, width), data)]
    if draw(st.integers(0, 4)) == 0:
        outputs.append(Tensor("z", "UINT8", (1, 0), b""))
    kept = entry.encode_outputs(outputs)
    return kept[:-1] if draw(st.integers(0, 15)) == 0 else kept


ROWS = st.builds(Row, DIGESTS, st.just(b""), st.none(), st.none(), st.none() | kept_outputs()) | st.builds(
    Row, DIGESTS, DIGESTS, st.none() | WORDS, st.none() | WORDS, st.none() | st.binary(max_size=9)
)
SHAPES = st.lists(st.lists(COUNTS, max_size=3).map(tuple), max_size=2).map(tuple)
PERSONS = st.dictionaries(st.sampled_from(PERSONAL), st.text(max_size=9), max_size=6)
CALLS = st.builds(
    Call, n=st.integers(1, 2**40), context=st.sampled_from([0, 1, 2]), outcome=st.sampled_from(OUTCOMES),
    error=st.none() | WORDS, accepted_ns=TIMES, closed_ns=TIMES, stages=st.tuples(*[COUNTS] * 4),
    slot=st.integers(-1, 64), bucket=st.integers(0, 64),
    rows=(st.lists(ROWS, max_size=4) | st.lists(ROWS, min_size=15, max_size=18)).map(tuple), shapes=SHAPES,
    nbytes=st.tuples(COUNTS, COUNTS), seed=DIGESTS | st.binary(max_size=80), personal=PERSONS,
    trace=st.none() | WORDS, mark=st.none() | st.dictionaries(st.sampled_from("ba"), JSON, max_size=2),
)  # fmt: skip
BATCHES = st.builds(
    Batch, n=st.integers(1, 9), context=st.sampled_from([0, 1]), bucket=COUNTS, closed_ns=TIMES,
    infer_ns=COUNTS, calls=st.lists(CALLS, min_size=1, max_size=4).map(tuple),
)  # fmt: skip
EVENTS = st.builds(
    Event, n=st.integers(1, 9), kind=st.sampled_from(["read", "load", "alert"]), time_ns=TIMES,
    data=st.dictionaries(st.sampled_from("qrs"), JSON, max_size=3), seed=DIGESTS, personal=PERSONS,
)  # fmt: skip


@st.composite
def contexts(draw):
    modes = st.sampled_from(["plain", "hmac"])
    return {
        n: Context(
            n,
            draw(ALL_FACTS) | {"decision": draw(st.sampled_from(DECISIONS)), "commitment": draw(modes)},
        )
        for n in (0, 1, 2)
    }


def outcome_of(form, record):
    """What is formed; or that nothing is, for a reason that the sequencer puts into an alert."""
    try:
        return [
            f if isinstance(f, tuple) else (f.key, f.type, f.entry, f.subject, f.openings)
            for f in form(record)
        ]
    except (FormatError, AttributeError, KeyError, TypeError, ValueError):
        return "nothing"


@settings(max_examples=60)
@given(contexts(), st.lists(CALLS | BATCHES | EVENTS, min_size=1, max_size=4))
def test_forming_equals_its_definition(known, records):
    fast = expand.Expander(entry.Writer(SOURCE), dict(known), subject_key)
    for record in records:  # one after another: what is remembered changes nothing
        assert outcome_of(fast.expand, record) == outcome_of(Plain(known).expand, record)


@settings(max_examples=40)
@given(contexts(), contexts(), st.lists(CALLS, min_size=2, max_size=2))
def test_a_context_that_is_written_again_counts_as_it_is_now(before, after, calls):
    fast = expand.Expander(entry.Writer(SOURCE), dict(before), subject_key)
    assert outcome_of(fast.expand, calls[0]) == outcome_of(Plain(before).expand, calls[0])
    fast.contexts.update(after)
    assert outcome_of(fast.expand, calls[1]) == outcome_of(Plain(after).expand, calls[1])


@given(st.sampled_from(DECISIONS[:4]), st.lists(st.lists(st.floats(width=32), min_size=1, max_size=4)))
def test_rows_that_begin_alike_are_completed_as_each_alone(decision, many):
    facts = expand._Facts(Context(1, {"decision": decision}))
    for scores in many:
        tensor = Tensor("y", "FP32", (1, len(scores)), struct.pack(f"<{len(scores)}f", *scores))
        row = Row(b"i" * 32, value=entry.encode_outputs([tensor]))
        try:
            label, confidence = decide(decision, [tensor])
        except FormatError:
            with pytest.raises(FormatError):
                facts.complete(row)
            continue
        assert facts.complete(row) == (row_digest([tensor]), label, confidence)


@pytest.mark.parametrize("kind", [expand._Row, expand._BatchRow, expand._RowsTree, expand._Stages,
                                  expand._CallData, expand._BatchData, expand._Envelope])  # fmt: skip
def test_members_stand_in_canonical_order(kind):
    assert list(kind.__struct_fields__) == sorted(kind.__struct_fields__)


def test_an_entry_too_large_is_none():
    call = Call(1, 1, "failed", "x" * 65_600, 5, 6, (0, 0, 0, 0), -1, 0, (), (), (0, 0), b"", {})
    with pytest.raises(FormatError, match="at most 65,535 bytes"):
        expand.Expander(entry.Writer(SOURCE), {1: Context(1, FACTS)}, subject_key).expand(call)
    largest = msgspec.structs.replace(call, error="x" * 64_000)
    assert expand.Expander(entry.Writer(SOURCE), {1: Context(1, FACTS)}, subject_key).expand(largest)


@given(st.binary(max_size=150), st.binary(max_size=150))
@example(b"k" * 64, b"")
@example(b"k" * 65, b"m")
def test_the_mac_is_hmac_sha256(key, message):
    assert hmac_sha256(key, message) == hmac.digest(key, message, "sha256")
