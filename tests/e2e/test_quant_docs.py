"""The how-to page on quantising, run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]


def test_quantise_a_model(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/quantise-a-model.md").read_text()
    script = "\n".join(re.findall(r"(?ms)^```sh\n(.*?)^```$", page))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path),
        "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for words in (
        "stratified by ink, 200 of 600 rows, seed 4", "heavy 100 of", "recalibrated digits 2.1.0",
        "Ranges that moved", "digits: 2 packages", "digits of the training half, later", "calls recorded",
    ):  # fmt: skip
        assert words in done.stdout
