"""A second reader of the vectors, written from ``spec/`` with the standard library and nothing of ours.

If it and the vectors disagree, the prose is not precise enough or the code does something else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
Case = dict[str, Any]


def cases(name: str, *operations: str, failing: bool = False) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    chosen = [c for c in found if c["operation"] in operations and c["name"].endswith("_fail") is failing]
    assert chosen
    return [pytest.param(case, id=case["name"]) for case in chosen]


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def encode(t: Case) -> bytes:
    name, kind, data = t["name"].encode(), t["datatype"].encode(), bytes.fromhex(t["data_hex"])
    dimensions = b"".join(struct.pack(">Q", d) for d in t["shape"])
    head = struct.pack(">H", len(name)) + name + struct.pack(">B", len(kind)) + kind
    return head + struct.pack(">B", len(t["shape"])) + dimensions + struct.pack(">Q", len(data)) + data


def root(leaves: list[bytes]) -> bytes:
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"")
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return sha256(b"\x01", root(leaves[:k]), root(leaves[k:]))


def root_by_path(index: int, size: int, leaf: bytes, proof: list[bytes]) -> bytes:
    """The recursive reading of PATH: the last hash is the root's child."""
    if size == 1:
        assert not proof
        return leaf
    k = 1
    while k * 2 < size:
        k *= 2
    if index < k:
        return sha256(b"\x01", root_by_path(index, k, leaf, proof[:-1]), proof[-1])
    return sha256(b"\x01", proof[-1], root_by_path(index - k, size - k, leaf, proof[:-1]))


@pytest.mark.parametrize("case", cases("canonical", "encode"))
def test_canonical_json(case: Case):
    assert canonical(case["value"]).decode() == case["expected"]


@pytest.mark.parametrize("case", cases("tensor", "digest"))
def test_tensor_digests(case: Case):
    assert encode(case["tensor"]).hex() == case["encoded_hex"]
    assert sha256(b"pellucid/tensor/v1\n", encode(case["tensor"])).hex() == case["expected"]


@pytest.mark.parametrize("case", cases("tensor", "row"))
def test_row_digests(case: Case):
    count = struct.pack(">I", len(case["tensors"]))
    assert sha256(b"pellucid/row/v1\n", count, *map(encode, case["tensors"])).hex() == case["expected"]


@pytest.mark.parametrize("case", cases("merkle", "root"))
def test_roots(case: Case):
    leaves = [sha256(b"\x00", bytes.fromhex(e)) for e in case["entries_hex"]]
    assert root(leaves).hex() == case["expected"]


@pytest.mark.parametrize("case", cases("merkle", "inclusion"))
def test_inclusion_proofs(case: Case):
    proof = [bytes.fromhex(item) for item in case["proof"]]
    got = root_by_path(case["index"], case["size"], bytes.fromhex(case["leaf_hash"]), proof)
    assert got.hex() == case["root"]


@pytest.mark.parametrize("case", cases("merkle", "growth"))
def test_tiles(case: Case):
    """What each new tile holds, from the definition of hash ``i`` of tile ``n`` at level ``L``."""
    leaves = [sha256(b"\x00", b"%d" % n) for n in range(case["new_size"])]
    levels = [leaves]
    while len(levels[-1]) >= 256:
        below = levels[-1]
        levels.append([root(below[i : i + 256]) for i in range(0, len(below) - 255, 256)])
    for path, digest in case["expected"]["sha256"].items():
        level, number, width = re.fullmatch(r"tile/(\d)/([x\d/]+?)(?:\.p/(\d+))?", path).groups()
        n = int(re.sub(r"[x/]", "", number))
        hashes = levels[int(level)][256 * n : 256 * n + int(width or 256)]
        assert len(hashes) == int(width or 256)
        assert hashlib.sha256(b"".join(hashes)).hexdigest() == digest


@pytest.mark.parametrize("case", cases("note", "vkey"))
def test_verifier_keys(case: Case):
    expected, public = case["expected"], bytes.fromhex(case["expected"]["public"])
    identity = sha256(expected["name"].encode(), b"\n\x01", public)[:4].hex()
    assert identity == expected["key_id"]
    encoded = base64.b64encode(b"\x01" + public).decode()
    assert f"{expected['name']}+{identity}+{encoded}" == case["vkey"]


@pytest.mark.parametrize("case", cases("checkpoint", "verify"))
def test_checkpoints(case: Case):
    text, _, line = bytes.fromhex(case["note_hex"]).decode().rpartition("\n\n")
    head = case["expected"]
    encoded = base64.b64encode(bytes.fromhex(head["root"])).decode()
    assert text == f"{head['origin']}\n{head['size']}\n{encoded}"
    assert re.fullmatch(rf"— {re.escape(head['origin'])} [A-Za-z0-9+/=]+\n", line)


@pytest.mark.parametrize("case", cases("dsse", "verify"))
def test_bundles(case: Case):
    envelope = json.loads(case["bundle"])["dsseEnvelope"]
    assert canonical(json.loads(case["bundle"])).decode() == case["bundle"]
    assert base64.b64decode(envelope["payload"]).hex() == case["expected"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert len(statement["subject"][0]["digest"]["sha256"]) == 64


def commitment(key: bytes, digest: bytes) -> str:
    return "hmac-sha256:" + hmac.new(key, digest, hashlib.sha256).hexdigest()


def option(text: str | None) -> bytes:
    return b"\x00" if text is None else b"\x01" + struct.pack(">I", len(text.encode())) + text.encode()


def keyed(case: Case, formed: Case, kind: str, row: int) -> bytes:
    """The key of an opening: kept, or derived from the subject's."""
    kept = {(o[0], o[1]): bytes.fromhex(o[2]) for o in formed["openings"]}[kind, row]
    if formed["subject"] is None:
        return kept
    subject = bytes.fromhex(case["subject_keys"][formed["subject"]])
    message = f"pellucid/subject-key/v1\n{formed['key']}\n{kind}\n{row}".encode()
    assert kept == b"", "nothing is kept beside the subject's key"
    return hmac.new(subject, message, hashlib.sha256).digest()


@pytest.mark.parametrize("case", cases("entry", "expand"))
def test_commitments_of_rows_and_texts(case: Case):
    """The generator's calls have known rows: ``in N R``, ``out N R``, one label, one confidence."""
    for formed in case["expected"]:
        assert canonical(json.loads(formed["entry"])).decode() == formed["entry"]
        data = json.loads(formed["entry"])["data"]
        for kind, row, _, value in formed["openings"]:
            if row < 0 and kind != "rows":
                digest = sha256(b"pellucid/text/v1\n", bytes.fromhex(value))
                assert data["personal"][kind] == commitment(keyed(case, formed, kind, row), digest)
        n = int(formed["key"].rpartition("/")[2].strip("be"))
        for row, committed in enumerate(data.get("rows", []) if formed["type"] == "call" else []):
            completed = case["name"] == "call_completed_from_kept_outputs"
            digests = completed_row_digests() if completed else row_digests(n, row)
            check_row(case, formed, committed, digests, row)


def row_digests(n: int, row: int) -> dict[str, bytes]:
    decision = option("refused") + option("0.731000")
    output = sha256(b"pellucid/output-row/v1\n", sha256(b"out %d %d" % (n, row)), decision)
    return {"input": sha256(b"in %d %d" % (n, row)), "output": output}


def completed_row_digests() -> dict[str, bytes]:
    """A row whose writer left out what follows from its outputs: 0.25 and 0.75, refused from 0.4 on."""
    data = struct.pack("<2f", 0.25, 0.75).hex()
    tensor = {"name": "probabilities", "datatype": "FP32", "shape": [1, 2], "data_hex": data}
    outputs = sha256(b"pellucid/row/v1\n", struct.pack(">I", 1), encode(tensor))
    decision = option("refused") + option("0.750000")
    return {"input": sha256(b"in"), "output": sha256(b"pellucid/output-row/v1\n", outputs, decision)}


def check_row(case: Case, formed: Case, committed: Case, digests: dict[str, bytes], row: int) -> None:
    for kind, digest in digests.items():
        if committed[kind].startswith("sha256:"):
            assert committed[kind] == "sha256:" + digest.hex()
        else:
            assert committed[kind] == commitment(keyed(case, formed, kind, row), digest)


def test_keys_of_a_call_without_subject_derive_from_its_seed():
    case = next(c.values[0] for c in cases("entry", "expand") if c.values[0]["name"] == "call_alone")
    seed = sha256(b"seed 1")
    for kind, row, key, _ in case["expected"][0]["openings"]:
        message = f"pellucid/key/v1\n{kind}\n{row}".encode()
        assert key == hmac.new(seed, message, hashlib.sha256).hexdigest()


def test_many_rows_fold_into_a_tree():
    case = next(c.values[0] for c in cases("entry", "expand") if c.values[0]["name"] == "call_many_rows")
    (formed,) = case["expected"]
    kept = next(bytes.fromhex(value) for kind, _, _, value in formed["openings"] if kind == "rows")
    leaves = []
    for row in range(17):
        pairs = row_digests(1, row).items()
        committed = {kind: commitment(keyed(case, formed, kind, row), digest) for kind, digest in pairs}
        assert json.loads(kept)[row] == committed
        leaves.append(sha256(b"\x00", canonical(committed)))
    data = json.loads(formed["entry"])["data"]
    assert data["rows_tree"] == {"root": root(leaves).hex(), "size": 17}
