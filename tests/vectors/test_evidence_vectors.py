"""verify.py against the vectors: it was written apart from core, and must come to the same."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pellucid.evidence import verify

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
Case = dict[str, Any]
REFUSED = (verify.DoesNotHold, *verify.WRONG_FORM)


def run_checkpoint(case: Case) -> Any:
    raw = bytes.fromhex(case["note_hex"])
    head = verify.open_checkpoint("checkpoint", raw, verify.parse_log_key(case["vkey"]))
    return {"origin": head.origin, "size": head.size, "root": head.root.hex()}


def hashes(case: Case) -> list[bytes]:
    found = [bytes.fromhex(text) for text in case["proof"]]
    if any(len(item) != 32 for item in found):  # as check_entry and verify_seen ask of a proof's form
        raise ValueError("a hash of another size")
    return found


def run_inclusion(case: Case) -> None:
    if not 0 <= case["index"] < case["size"]:
        raise ValueError("outside the tree")
    leaf = bytes.fromhex(case["leaf_hash"])
    root = verify.root_by_inclusion(case["index"], case["size"], leaf, hashes(case))
    if root.hex() != case["root"]:
        raise ValueError("another root")


def run_consistency(case: Case) -> None:
    old, new = case["old_size"], case["new_size"]
    before = verify.Checkpoint("x", old, bytes.fromhex(case["old_root"]), b"", [])
    trust = verify.Trust(verify.LogKey("x", b"", 1, b""), {}, None, before)
    now = verify.Checkpoint("x", new, bytes.fromhex(case["new_root"]), b"", [])
    member = verify.canonical({"old": old, "new": new, "hashes": case["proof"]})
    verify.verify_seen(trust, now, member)


def run_verify_bundle(case: Case) -> str:
    kind = json.loads(case["bundle"])["dsseEnvelope"]["payloadType"]
    keys = verify.parse_public_keys(case["public_pem"])
    return verify.open_envelope("bundle", case["bundle"].encode(), kind, keys)[0].hex()


def run_row(case: Case) -> str:
    tensors = [
        {**tensor, "data": base64.b64encode(bytes.fromhex(tensor["data_hex"])).decode()}
        for tensor in case["tensors"]
    ]
    return verify.row_digest(tensors).hex()


def run_commit(case: Case) -> str:
    return verify.hmac_text(bytes.fromhex(case["key"]), bytes.fromhex(case["digest"]))


RUNNERS: dict[tuple[str, str], Callable[[Case], Any]] = {
    ("checkpoint", "verify"): run_checkpoint,
    ("merkle", "root"): lambda c: verify.root_of(
        [verify.hash_leaf(bytes.fromhex(text)) for text in c["entries_hex"]]
    ).hex(),
    ("merkle", "inclusion"): run_inclusion,
    ("merkle", "consistency"): run_consistency,
    ("dsse", "verify"): run_verify_bundle,
    ("canonical", "encode"): lambda c: verify.canonical(c["value"]).decode(),
    ("canonical", "decode"): lambda c: verify.parse_canonical("x", bytes.fromhex(c["input_hex"])),
    ("tensor", "row"): run_row,
    ("entry", "commit"): run_commit,
}
# What the verifier leaves to others on purpose: it writes no JSON of strangers and reads none that no
# signature covers, so these forms never reach it as something to refuse.
NOT_ITS_OWN = {
    ("canonical", "encode"): "it only writes again what it has read",
    ("canonical", "decode"): "integers beyond 2**53 and keys outside ASCII stand in signed bytes or nowhere",
}


def is_left_out(at: tuple[str, str], case: Case) -> bool:
    # sizes 0 and equal need no proof; that a reader has no use for one in the bundle refuses nothing
    needless = at == ("merkle", "consistency") and case["old_size"] in (0, case["new_size"])
    return at in NOT_ITS_OWN or (needless and bool(case["proof"] or not case["old_size"]))


def cases() -> list[Any]:
    found = []
    for name in sorted({name for name, _ in RUNNERS}):
        for case in json.loads((VECTORS / f"{name}.json").read_text())["cases"]:
            at = (name, case["operation"])
            if at in RUNNERS and not (case["name"].endswith("_fail") and is_left_out(at, case)):
                found.append(pytest.param(at, case, id=f"{name}-{case['name']}"))
    return found


@pytest.mark.parametrize(("at", "case"), cases())
def test_the_verifier_agrees(at: tuple[str, str], case: Case) -> None:
    if case["name"].endswith("_fail"):
        with pytest.raises(REFUSED):
            RUNNERS[at](case)
    else:
        assert RUNNERS[at](case) == case.get("expected")


@pytest.mark.parametrize("spelling", ["duplicate", "white space", "order", "float", "nan", "not utf-8"])
def test_the_verifier_refuses_every_other_spelling(spelling: str) -> None:
    raw = {
        "duplicate": b'{"a":1,"a":1}', "white space": b'{"a": 1}', "order": b'{"b":1,"a":1}',
        "float": b'{"a":1.0}', "nan": b'{"a":NaN}', "not utf-8": b'{"a":"\xff"}',
    }[spelling]  # fmt: skip
    with pytest.raises(verify.DoesNotHold):
        verify.parse_canonical("x", raw)
