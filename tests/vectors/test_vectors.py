"""Every committed vector, run; and the generator writes the committed files again, byte for byte."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pellucid.core import canonical, dsse, entry, note, record
from pellucid.core.bucket import bucket_for, place, slots_for
from pellucid.core.calibration import samples_digest, select
from pellucid.core.calibration_ranges import float32_text
from pellucid.core.checkpoint import verify_checkpoint
from pellucid.core.expand import expand
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.merkle.proof import verify_consistency, verify_inclusion
from pellucid.core.merkle.tile import HashReader, decode_bundle, grow_tiles, parse_path, tiles_between
from pellucid.core.tensor import (
    Tensor,
    encode_tensor,
    pack_json,
    row_digest,
    tensor_digest,
    verify_tensor,
)
from pellucid.errors import NotFoundError, PellucidError

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
Case = dict[str, Any]
NAMES = ("canonical", "tensor", "bucket", "merkle", "note", "checkpoint", "dsse", "calibration", "entry")


def tensor(value: Case) -> Tensor:
    data = bytes.fromhex(value["data_hex"])
    return Tensor(value["name"], value["datatype"], tuple(value["shape"]), data)


def hashes(values: list[str]) -> list[bytes]:
    return [bytes.fromhex(value) for value in values]


def run_tensor_digest(case: Case) -> str:
    t = verify_tensor(tensor(case["tensor"]))
    assert encode_tensor(t.name, t.datatype, t.shape, t.data).hex() == case["encoded_hex"]
    return tensor_digest(t).hex()


def run_place(case: Case) -> Case:
    placed = place([(p["slot"], tensor(p["tensor"])) for p in case["parts"]], case["bucket"])
    return {
        "name": placed.name,
        "datatype": placed.datatype,
        "shape": list(placed.shape),
        "data_hex": bytes(placed.data).hex(),
    }


def run_inclusion(case: Case) -> None:
    leaf, root = hashes([case["leaf_hash"], case["root"]])
    verify_inclusion(leaf, case["index"], case["size"], hashes(case["proof"]), root)


def run_consistency(case: Case) -> None:
    old_root, new_root = hashes([case["old_root"], case["new_root"]])
    verify_consistency(case["old_size"], case["new_size"], old_root, new_root, hashes(case["proof"]))


def run_path(case: Case) -> Case:
    found = parse_path(case["path"])
    return {"kind": found.kind, "level": found.level, "n": found.n, "width": found.width}


def decimals(size: int) -> list[bytes]:
    return [hash_leaf(b"%d" % number) for number in range(size)]


def run_growth(case: Case) -> Case:
    old, new = case["old_size"], case["new_size"]
    leaves = decimals(new)
    store: dict[str, bytes] = grow_tiles(0, leaves[:old], lambda *_: b"")

    def get(path: str) -> bytes:
        if path not in store:
            raise NotFoundError(path)
        return store[path]

    grown = grow_tiles(old, leaves[old:], HashReader(get, old).node)
    store |= grown
    assert HashReader(get, new).root() == root_of(leaves)
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in grown.items()}
    return {"paths": [str(path) for path in tiles_between(old, new)], "sha256": digests}


def run_open(case: Case) -> Case:
    opened = note.open_note(bytes.fromhex(case["note_hex"]), [note.parse_vkey(k) for k in case["vkeys"]])
    return {"text": opened.text, "names": list(opened.verified_names)}


def run_vkey(case: Case) -> Case:
    key = note.parse_vkey(case["vkey"])
    assert note.format_vkey(key.name, key.kind, key.public) == case["vkey"]
    return {"name": key.name, "key_id": key.key_id.hex(), "public": key.public.hex()}


def run_checkpoint(case: Case) -> Case:
    head = verify_checkpoint(bytes.fromhex(case["note_hex"]), case["vkey"])
    return {"origin": head.origin, "size": head.size, "root": head.root.hex()}


def run_expand(case: Case) -> list[Case]:
    context = record.decode_record(bytes.fromhex(case["context_hex"]))
    assert isinstance(context, record.Context)
    formed = expand(
        record.decode_record(bytes.fromhex(case["record_hex"])),
        writer=entry.Writer(case["source"]),
        contexts={context.id: context},
        subject_keys=lambda subject: bytes.fromhex(case["subject_keys"][subject]),
    )
    return [
        {
            "key": f.key,
            "type": f.type,
            "entry": f.entry.decode(),
            "subject": f.subject,
            "openings": [
                [o.kind, o.row, o.key.hex(), o.value.hex() if o.value is not None else None]
                for o in f.openings
            ],
        }
        for f in formed
    ]


def run_pack(case: Case) -> str:
    packed = pack_json("x", case["datatype"], case["shape"], case["data"])
    return bytes(verify_tensor(packed).data).hex()


RUNNERS: dict[tuple[str, str], Callable[[Case], Any]] = {
    ("canonical", "encode"): lambda c: canonical.encode(c["value"]).decode(),
    ("canonical", "decode"): lambda c: canonical.decode(bytes.fromhex(c["input_hex"])),
    ("tensor", "pack"): run_pack,
    ("tensor", "digest"): run_tensor_digest,
    ("tensor", "row"): lambda c: row_digest([tensor(t) for t in c["tensors"]]).hex(),
    ("tensor", "check"): lambda c: verify_tensor(tensor(c["tensor"])) and None,
    ("bucket", "bucket"): lambda c: bucket_for(c["rows"], c["sizes"]),
    ("bucket", "slots"): lambda c: slots_for(c["rows"]),
    ("bucket", "place"): run_place,
    ("merkle", "root"): lambda c: root_of([hash_leaf(e) for e in hashes(c["entries_hex"])]).hex(),
    ("merkle", "root_of_decimals"): lambda c: root_of(decimals(c["size"])).hex(),
    ("merkle", "inclusion"): run_inclusion,
    ("merkle", "consistency"): run_consistency,
    ("merkle", "path"): run_path,
    ("merkle", "bundle"): lambda c: [
        e.hex() for e in decode_bundle(bytes.fromhex(c["data_hex"]), c["width"])
    ],
    ("merkle", "growth"): run_growth,
    ("note", "open"): run_open,
    ("note", "vkey"): run_vkey,
    ("checkpoint", "verify"): run_checkpoint,
    ("dsse", "pae"): lambda c: dsse.pae(c["payload_type"], bytes.fromhex(c["payload_hex"])).hex(),
    ("dsse", "verify"): lambda c: dsse.verify_bundle(c["bundle"].encode(), c["public_pem"].encode()).hex(),
    ("calibration", "select"): lambda c: select(c["select"], len(c["values"]), c["values"]),
    ("calibration", "samples"): lambda c: samples_digest(c["digests"]),
    ("calibration", "decimal"): lambda c: float32_text(struct.unpack("<f", bytes.fromhex(c["hex"]))[0]),
    ("entry", "expand"): run_expand,
    ("entry", "commit"): lambda c: entry.commit(bytes.fromhex(c["key"]), bytes.fromhex(c["digest"])),
}


def cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case['name']}")
        for name in NAMES
        for case in json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    ]


@pytest.mark.parametrize(("name", "case"), cases())
def test_vector(name: str, case: Case):
    run = RUNNERS[name, case["operation"]]
    if case["name"].endswith("_fail"):
        with pytest.raises(PellucidError):
            run(case)
    else:
        assert run(case) == case.get("expected")


@pytest.mark.parametrize("name", NAMES)
def test_names_are_unique_and_some_must_fail(name: str):
    names = [case["name"] for case in json.loads((VECTORS / f"{name}.json").read_text())["cases"]]
    assert len(names) == len(set(names))
    assert any(case.endswith("_fail") for case in names)


def test_generating_again_changes_nothing(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(VECTORS / "generate.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert written.keys() == {f"{name}.json" for name in NAMES}
    assert written == {name: (VECTORS / name).read_bytes() for name in written}
