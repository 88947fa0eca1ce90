"""Children: framed messages, an end for each, and every end told apart."""

from __future__ import annotations

import io
import os
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pellucid.app.build import isolated
from pellucid.build import limits
from pellucid.build.child import measures, run_child
from pellucid.build.frame import read_frame, verify_map, write_frame
from pellucid.build.log import LogWriter
from pellucid.core.tensor import Tensor
from pellucid.errors import BuilderCrashedError, BuildError, FormatError, ParseError, PellucidError, by_code
from pellucid.ports import LogLine
from pellucid.testing.models import credit_like

RECIPE = {"threads": 1, "serve_level": "portable"}
BATCH = [Tensor("features", "FP32", (2, 20), bytes(160))]
ECHO = (
    "from pellucid.build.frame import read_frame, write_frame; import os, sys; "
    "r = read_frame(sys.stdin.buffer); write_frame(sys.stdout.buffer, {'got': r, 'env': dict(os.environ)})"
)


def test_frames_come_back() -> None:
    stream = io.BytesIO()
    for message in ({"a": b"\0\xff"}, [1, None], "x" * 70_000):
        write_frame(stream, message)
    stream.seek(0)
    assert [read_frame(stream), read_frame(stream), read_frame(stream)] == [
        {"a": b"\0\xff"}, [1, None], "x" * 70_000,
    ]  # fmt: skip
    assert read_frame(stream) is None


@pytest.mark.parametrize(
    "raw", [b"\0", b"\0" * 7, b"\0" * 7 + b"\5ab", b"\xff" * 8, b"\0" * 7 + b"\1\xc1", b"\0" * 7 + b"\1\xc0"]
)
def test_broken_frames_are_refused(raw: bytes) -> None:
    with pytest.raises(FormatError):
        read_frame(io.BytesIO(raw))


def test_a_child_knows_nothing_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    ended = run_child(ECHO, {"hello": 1}, tmp_path, timeout_s=60)
    assert (ended.code, ended.reason, ended.left_behind) == (0, "exit 0", [])
    [frame] = ended.frames
    assert frame["got"] == {"hello": 1}
    assert frame["env"]["ORT_DISABLE_TELEMETRY"] == "1"
    assert frame["env"]["HOME"].startswith(str(tmp_path))
    assert frame["env"]["TMPDIR"].startswith(str(tmp_path))
    assert "SECRET" not in frame["env"]


def test_a_child_has_no_network_where_the_machine_allows(tmp_path: Path) -> None:
    if measures().report["no_network"] is not True:
        pytest.skip(f"NOT RUN network-namespace: {measures().report['no_network']}")
    code = (
        "from pellucid.build.frame import write_frame; import sys; "
        "write_frame(sys.stdout.buffer, open('/proc/net/dev').read())"
    )
    [text] = run_child(code, None, tmp_path, timeout_s=60).frames
    names = [line.partition(":")[0].strip() for line in text.splitlines()[2:]]
    assert names == ["lo"]


def test_what_a_machine_does_not_allow_is_reported_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    none = measures.__wrapped__()
    assert none.prefix == ()
    assert all(
        type(reason) is str and "not allowed or not installed" in reason for reason in none.report.values()
    )
    monkeypatch.setattr(shutil, "which", lambda name, path: "/bin/false")
    assert measures.__wrapped__() == none


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL"),
        ("import sys; sys.exit(7)", "exit 7"),
        ("raise ValueError('told to stderr')", "exit 1"),
        ("import time\nwhile True: time.sleep(60)", "no answer in time"),
        (
            "import sys, time; sys.stdout.write('garbage!garbage!'); sys.stdout.flush(); time.sleep(60)",
            "a message that nobody understands",
        ),
        (
            "import os, sys; sys.stdout.write('cut'); sys.stdout.flush(); os.kill(os.getpid(), 9)",
            "signal SIGKILL",
        ),
    ],
)
def test_every_end_is_an_outcome(code: str, reason: str) -> None:
    runner = replace(isolated(), entry=code, timeout_s=2.0 if "while" in code else 60.0)
    start = time.monotonic()
    with pytest.raises(BuilderCrashedError, match=f"got {reason}"):
        runner.infer("reference", credit_like(), RECIPE, [])
    assert time.monotonic() - start < 30


def test_grandchildren_die_too(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; from pellucid.build.frame import write_frame; "
        "p = subprocess.Popen(['sleep', '300'], stdout=subprocess.DEVNULL); "
        "write_frame(sys.stdout.buffer, p.pid); time.sleep(300)"
    )
    ended = run_child(code, None, tmp_path, timeout_s=3)
    assert ended.timed_out
    status = Path(f"/proc/{ended.frames[0]}/status")
    limit = time.monotonic() + 10
    while status.exists() and "Z (zombie)" not in status.read_text():
        assert time.monotonic() < limit, "the grandchild lives"
        os.sched_yield()


SAYS = "import sys; from pellucid.build.frame import write_frame; "


@pytest.mark.parametrize(
    "code",
    [
        "write_frame(sys.stdout.buffer, [1]); sys.stdin.read(); import signal; signal.pause()",
        "write_frame(sys.stdout.buffer, [1])",  # its end is clean, but for what it said
        "write_frame(sys.stdout.buffer, None)",
        "sys.stdout.buffer.write(b'garbage!garbage!')",
    ],
)
def test_a_message_that_is_none_ends_a_child_that_gave_no_answer(tmp_path: Path, code: str) -> None:
    ended = run_child(SAYS + code, None, tmp_path, timeout_s=60, on_frame=verify_map)
    assert (ended.is_garbled, ended.is_clean, ended.timed_out) == (True, False, False)
    assert ended.reason == "a message that nobody understands"
    assert ended.code in (0, -signal.SIGKILL)


def test_an_engine_process_that_answers_no_map_crashed() -> None:
    runner = replace(isolated(), entry=f"{SAYS}write_frame(sys.stdout.buffer, 5)")
    with pytest.raises(BuilderCrashedError, match="a message that nobody understands"):
        runner.infer("reference", credit_like(), RECIPE, [BATCH])


def test_outputs_errors_and_times_cross_the_process(tmp_path: Path) -> None:
    runner = isolated()
    run = runner.infer("reference", credit_like(), RECIPE, [BATCH, BATCH])
    assert [o[0].shape for o in run.outputs] == [(2, 2), (2, 2)]
    assert run.outputs[0] == run.outputs[1]
    assert run.describe["threads"] == 1
    [measured] = runner.measure("reference", credit_like(), RECIPE, [BATCH], repeats=30, budget_ns=10**9)
    assert len(measured.times_ns) == 30
    assert 0 < measured.rss_bytes <= measured.peak_rss_bytes
    with pytest.raises(ParseError):
        runner.infer("onnxruntime", b"garbage", RECIPE, [BATCH])
    with pytest.raises(PellucidError, match="features"):
        runner.infer("onnxruntime", credit_like(), RECIPE, [[Tensor("x", "FP32", (1,), bytes(4))]])


def test_codes_find_their_class() -> None:
    assert by_code("build_parse", BuildError) is ParseError
    assert by_code("nobody knows", BuildError) is BuildError


def test_the_log_keeps_every_message_and_its_first_failure(tmp_path: Path) -> None:
    line = LogLine("WARNING", 1_700_000_000_000_000_000, "a\nb\x1b\ud800", "x.cc:1 F")
    with LogWriter(tmp_path / "log") as log:
        log(line)
        log.verify()
    raw = (tmp_path / "log").read_bytes()
    assert raw == (
        b'{"severity":"WARNING","time":"2023-11-14T22:13:20.000000000Z",'
        b'"message":"a\\nb\\u001b\\\\ud800","location":"x.cc:1 F"}\n'
    )
    with LogWriter(Path("/dev/full")) as log:
        with pytest.raises(OSError, match="space"):
            log(line)
        with pytest.raises(BuildError, match="No space left"):
            log.verify()


@pytest.mark.parametrize(("place", "kind"), [("/dev/null", "RLIMIT_DATA"), ("/dev/no-gpu", "RLIMIT_AS")])
def test_memory_is_counted_so_that_a_gpus_driver_can_live(
    monkeypatch: pytest.MonkeyPatch, place: str, kind: str
) -> None:
    """The driver reserves more addresses than a recipe may allow, without using them."""
    taken: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(limits, "GPU_DRIVER", place)
    monkeypatch.setattr(resource, "getrlimit", lambda number: (0, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", taken.__setitem__)
    limits.limit_self({"memory_bytes": 2**30, "file_bytes": 2**20})
    assert taken[getattr(resource, kind)] == (2**30, 2**30)
    assert len(taken) == 4
