"""Ctrl-C and SIGTERM during `pellucid build`: no process is left, an entry says that it was cancelled."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pellucid.app.site import create_site
from pellucid.build.cancel import Stop
from pellucid.build.job import run_build
from pellucid.build.left import ENTRY
from pellucid.errors import BuildCancelledError
from pellucid.testing.builds import toy_job, write_recipe
from pellucid.testing.models import digits_like

pytestmark = pytest.mark.e2e
RTX: dict[str, Any] = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}


def children(pid: int) -> list[int]:
    found = [(thread / "children").read_text().split() for thread in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for some in found for child in some]


def is_gone(pid: int) -> bool:
    try:
        return "Z (zombie)" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_with_its_children_and_an_entry(tmp_path: Path, number: signal.Signals) -> None:
    site = create_site(tmp_path / "site", node="test1")
    recipe = write_recipe(site.path("recipes") / "toy", "digits_like")
    command = subprocess.Popen(
        [sys.executable, "-m", "pellucid", "build", str(recipe), "--site", str(tmp_path / "site"), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    limit = time.monotonic() + 60
    while not (workers := children(command.pid)):
        assert command.poll() is None
        assert time.monotonic() < limit
        os.sched_yield()
    command.send_signal(number)
    out, err = command.communicate(timeout=60)
    assert command.returncode == BuildCancelledError.exit_code, err
    assert "request to stop" in out + err
    assert all(is_gone(pid) for pid in workers)
    shown = subprocess.run(
        [sys.executable, "-m", "pellucid", "ledger", "show", "--type", "build", "--json", "--site",
         str(tmp_path / "site")],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert [entry["outcome"] for entry in json.loads(shown)["entries"]] == ["build_cancelled"]


def test_the_real_builder_stops_at_its_next_step_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
    told: list[str] = []
    with Stop(60.0) as stop:

        def progress(phase: str) -> None:
            told.append(phase)
            if phase.startswith("build: "):
                stop.request()

        waits = (  # the builder is faster than a signal: its step waits for the request
            "import time\nimport pellucid.build.task as task\nsay = task.Task.step\n"
            "def step(self, it):\n    say(self, it)\n    while not self.heard.to_stop: time.sleep(0.01)\n"
            f"    return False\ntask.Task.step = step\n{ENTRY}"
        )
        job, recorder = toy_job(tmp_path / "packages", entry=waits, progress=progress)
        with pytest.raises(BuildCancelledError, match=r"request to stop in '[A-Z]"):
            run_build(write_recipe(tmp_path / "recipe", digits_like(), **RTX), job)
    [(event, data)] = recorder.events
    assert (event, data["outcome"], data["ended"]) == ("build", "build_cancelled", "cancelled")
    [kept] = (tmp_path / "packages/failed").iterdir()
    messages = [json.loads(line)["message"] for line in (kept / "build.log.jsonl").read_text().splitlines()]
    assert any("Build canceled by user" in message for message in messages)
    assert any(re.fullmatch(r"build: .+, \d+ of \d+", phase) for phase in told)
