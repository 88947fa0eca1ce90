"""Write the vectors again: ``python vectors/generate.py [FOLDER]``; leaves git clean.

Everything is fixed: inputs, test-only keys, order. ECDSA has random nonces, so a signature that is
committed already is kept as long as it verifies.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from generator.bucket import bucket_cases
from generator.calibration import calibration_cases
from generator.canonical import canonical_cases
from generator.dsse import dsse_cases
from generator.entry import entry_cases
from generator.keys import HERE, Case
from generator.merkle import merkle_cases
from generator.note import checkpoint_cases, note_cases
from generator.tensor import tensor_cases

FILES: dict[str, tuple[str, Callable[[], list[Case]]]] = {
    "canonical": ("canonical JSON, spec/canonical.md section 1", canonical_cases),
    "tensor": ("tensors and their digests, spec/canonical.md sections 3 and 4", tensor_cases),
    "bucket": ("buckets, slots and padding, spec/canonical.md section 6", bucket_cases),
    "merkle": ("trees, proofs and tiles, spec/merkle.md", merkle_cases),
    "note": ("signed notes and verifier keys, spec/note.md section 2", note_cases),
    "checkpoint": ("checkpoints, spec/note.md section 3", checkpoint_cases),
    "dsse": ("envelopes in Sigstore bundles, spec/note.md section 4", dsse_cases),
    "calibration": ("rows, digests and decimals of a calibration, spec/calibration.md", calibration_cases),
    "entry": ("journal records to ledger entries, spec/canonical.md section 5", entry_cases),
}


def write(folder: Path) -> None:
    for name, (about, make) in FILES.items():
        text = json.dumps({"about": about, "cases": make()}, indent=1, ensure_ascii=True)
        (folder / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
