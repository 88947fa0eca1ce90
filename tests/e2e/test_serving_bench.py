"""The benchmark runs and says what it measured; no number is asserted."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

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


def test_the_comparison_runs_without_any_peer(repository: Path, tmp_path: Path):
    command = [
        sys.executable, str(repository / "bench" / "compare.py"), "--quick", "--models", "mlp30",
        "--slice", "0.2", "--open-seconds", "1.5", "--servers", "pellucid",
        "--out", str(tmp_path),
    ]  # fmt: skip
    settings = {"HOME": str(tmp_path), "PELLUCID_PEERS_DIR": str(tmp_path / "none")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "peers.json").read_text())
    assert [(part["server"], part["void"]) for part in result["rounds"]] == [("pellucid", [])]
    for part in result["rounds"]:
        assert {"json", "binary"} <= {load["form"] for load in part["closed"]}
        assert all(load["per_s"] > 0 and load["p99_us"] >= load["p50_us"] > 0 for load in part["closed"])
        assert [load["kind"] for load in part["open"]] == ["fixed"]
    text = (tmp_path / "RESULTS.md").read_text()
    assert "These numbers mean nothing" in text
    assert str(tmp_path) not in json.dumps(result["commands"])
    for plot in (tmp_path / "plots").iterdir():
        assert ElementTree.parse(plot).getroot().tag.endswith("svg")
        assert f"plots/{plot.name}" in text


def test_the_open_loop_counts_from_when_a_request_was_due(repository: Path, tmp_path: Path):
    """A server that stalls once for 300 ms: everybody due meanwhile waited, though few were sent then."""
    stall_s, rate, seconds = 0.3, 200, 1.0
    body = tmp_path / "body"
    body.write_bytes(b"{}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_with_one_stall, args=(listener, stall_s), daemon=True)
        thread.start()
        command = [sys.executable, str(repository / "bench" / "client.py"), str(listener.getsockname()[1])]
        command += ["/", str(body), "1", str(seconds), "--rate", str(rate)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        thread.join(30)
    told = json.loads(done.stdout)
    assert told["errors"] == 0
    assert abs(told["requests"] - rate * seconds) < 5 * (rate * seconds) ** 0.5
    assert told["p90_us"] > stall_s * 1e6 / 4, "a closed loop would have seen one slow answer in two hundred"


def _answer_with_one_stall(listener: socket.socket, stall_s: float) -> None:
    connection, _ = listener.accept()
    answered = 0
    with connection, contextlib.suppress(ConnectionError):
        while connection.recv(65_536):
            answered += 1
            if answered == 20:
                threading.Event().wait(stall_s)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
