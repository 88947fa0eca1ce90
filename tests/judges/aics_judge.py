"""Runs inside the judge's own environment: what aics-tlog says about our files, as JSON.

    python aics_judge.py CASES.json

Knows nothing of pellucid. Each case names an operation and its inputs; the answer is whether
aics-tlog accepts it. Only refusals count as refusals: any other error ends the run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import aics_tlog as judge

REFUSALS = (ValueError, judge.TileMissingError, judge.TileVerificationError)


def checkpoint(case: dict) -> bool:
    note = judge.parse_note(bytes.fromhex(case["note"]))
    result = judge.verify_checkpoint(note, judge.parse_vkey(case["vkey"]), expected_origin=case["origin"])
    said = (result.origin, result.size, (result.root or b"").hex())
    return result.ok and said == (case["origin"], case["size"], case["root"])


def inclusion(case: dict) -> bool:
    proof = [bytes.fromhex(item) for item in case["proof"]]
    leaf, root = bytes.fromhex(case["leaf_hash"]), bytes.fromhex(case["root"])
    return judge.verify_inclusion(leaf, case["index"], case["size"], proof, root)


def consistency(case: dict) -> bool:
    proof = [bytes.fromhex(item) for item in case["proof"]]
    old_root, new_root = bytes.fromhex(case["old_root"]), bytes.fromhex(case["new_root"])
    return judge.verify_consistency(case["old_size"], case["new_size"], old_root, new_root, proof)


def audit(case: dict) -> bool:
    reader = judge.FileSystemTileReader(Path(case["folder"]))
    report = judge.audit_tiles(reader, case["size"], bytes.fromhex(case["root"]), entries=True)
    return report is not None


def entry(case: dict) -> bool:
    reader = judge.FileSystemTileReader(Path(case["folder"]))
    return judge.read_entry(reader, case["index"], case["size"]).hex() == case["entry"]


OPERATIONS = {f.__name__: f for f in (checkpoint, inclusion, consistency, audit, entry)}


def accepts(case: dict) -> bool:
    try:
        return OPERATIONS[case["operation"]](case)
    except REFUSALS:
        return False


if __name__ == "__main__":
    cases = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps([accepts(case) for case in cases]))
