"""What every group of vectors shares: the form of a case, and the test-only keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pellucid.keys.file import FileKey

HERE = Path(__file__).resolve().parents[1]
ORIGIN = "vectors.example/log"
Case = dict[str, Any]


def key(name: str) -> FileKey:
    """A committed key; the loader of the product would refuse its file mode, rightly."""
    return FileKey.from_pem((HERE / "keys" / f"test-only-{name}.key").read_bytes())
