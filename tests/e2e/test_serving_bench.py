"""The benchmark runs and says what it measured; no number is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


def test_the_quick_benchmark_runs(repository: Path, tmp_path: Path):
    command = [sys.executable, str(repository / "bench" / "bench.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=os.environ | {"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "results.json").read_text())
    assert set(result["rounds"]) == {"off", "journaled", "durable", "bare_same", "bare_default"}
    for rounds in result["rounds"].values():
        assert {"per_s", "p50_us", "p99_us"} <= set(rounds[0])
        assert rounds[0]["per_s"] > 0
    assert set(result["verification"]) == {"hashlib_mb_s", "verify_mb_s", "open_and_verify_mb_s"}
    text = (tmp_path / "RESULTS.md").read_text()
    assert "These numbers mean nothing" in text
    assert result["machine"]["processor"] in text
