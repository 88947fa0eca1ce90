"""The examples' training into the folder that the example itself lies in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("example", ["credit", "digits"])
def test_an_example_is_trained_into_its_own_folder(example: str, tmp_path: Path) -> None:
    own = tmp_path / example
    shutil.copytree(EXAMPLES / example, own, ignore=shutil.ignore_patterns("__pycache__", "out"))
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    (tmp_path / "link").symlink_to(own)
    command = [sys.executable, "-I", "-B", str(own / "train.py"), "--out", str(tmp_path / "link")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    after = {path.name: path.read_bytes() for path in own.iterdir()}
    assert {name: after[name] for name in before} == before
    assert {"model.onnx", "meaning.json", "validation.npz"} <= set(after)
