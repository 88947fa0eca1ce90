"""What a child gives its parent while it goes on: the parent believes what lies there at the end."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pellucid.app.build import build
from pellucid.app.site import Site, open_site
from pellucid.build import stages
from pellucid.build.child import measures
from pellucid.build.job import run_build
from pellucid.build.shelf import Early, Shelf, early
from pellucid.build.stages import Opened, Stages
from pellucid.core.digest import sha256
from pellucid.errors import BuilderCrashedError, BuildError, DiskFullError, PellucidError
from pellucid.testing.builds import EventList, toy_job, write_recipe

pytestmark = pytest.mark.e2e

# a worker that does something before it gives the engine's file, or when it is about to end
CHILD = """
import os, signal, sys
from pellucid.app.processes import worker_main
from pellucid.build import task, worker
give, write_file, frames = task.Task.give, worker.write_file, []

def given(self, name, made):
    frames.append(self.frames)
    {first}
    return give(self, name, made)

def written(path, data):
    engine = path.parent / "engine"
    if path.name == "result" and engine.exists():
        {end}
    write_file(path, data)

task.Task.give, worker.write_file = given, written
worker_main()
"""


def child(*, first: str = "pass", end: str = "pass") -> str:
    return CHILD.format(first="\n    ".join(first.splitlines()), end=end)


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; nothing is left there."""
    path = tmp_path / "drawn"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    assert list(path.iterdir()) == []


def refused(folder: Path, entry: str, **changes: Any) -> tuple[PellucidError, EventList]:
    """How a build with that child ends, in time; it leaves no package, and an entry."""
    job, recorder = toy_job(folder / "packages", entry=entry)
    recipe = write_recipe(folder / "recipe", "credit_like", **changes)
    error = ended(lambda: run_build(recipe, job))
    assert [path.name for path in (folder / "packages").iterdir()] == ["failed"]
    assert [data["outcome"] for _, data in recorder.events] == [error.code]
    return error, recorder


def ended(attempt: Callable[[], object]) -> PellucidError:
    caught: list[PellucidError] = []

    def run() -> None:
        with pytest.raises(PellucidError) as error:
            attempt()
        caught.append(error.value)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert caught
    return caught[0]


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(
    "end",
    [
        "os.truncate(engine, 0)",
        "engine.write_bytes(engine.read_bytes()[:-1])",
        "raw = engine.read_bytes(); engine.unlink(); engine.write_bytes(raw + bytes(1))",
    ],
)
def test_an_engine_that_changed_after_it_was_given_is_no_engine(tmp_path: Path, end: str) -> None:
    error, _ = refused(tmp_path, child(end=end))
    assert isinstance(error, BuilderCrashedError)
    assert "engine: expected the bytes that it gave, got others" in error.message


@pytest.mark.usefixtures("drawn")
def test_the_same_bytes_in_another_file_are_the_same_engine(tmp_path: Path) -> None:
    job, recorder = toy_job(
        tmp_path / "packages",
        entry=child(end="raw = engine.read_bytes(); engine.unlink(); engine.write_bytes(raw)"),
    )
    built = run_build(write_recipe(tmp_path / "recipe", "credit_like"), job)
    assert sha256((built.folder / "engine/model.onnx").read_bytes()) == built.engine
    assert [data["outcome"] for _, data in recorder.events] == ["built"]


@pytest.mark.usefixtures("drawn")
def test_an_engine_that_was_given_and_is_gone_is_a_crash(tmp_path: Path) -> None:
    error, _ = refused(tmp_path, child(end="engine.unlink()"))
    assert error.message == "build worker, compile: expected a file engine, got none"


@pytest.mark.usefixtures("drawn")
def test_a_child_that_gives_a_pipe_for_an_engine_is_ended_in_time(tmp_path: Path) -> None:
    gives_a_pipe = (
        "os.mkfifo(self.folder / name)\n"
        "task.write_frame(frames[0], {'given': name})\n"
        "while True: signal.pause()"
    )
    error, _ = refused(tmp_path, child(first=gives_a_pipe), limits={"timeout_s": 3})
    assert "got no answer in time" in error.message


@pytest.mark.usefixtures("drawn")
def test_what_is_given_again_and_again_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No child is waited for longer than its file takes, whatever it says."""
    hashed: list[Path] = []

    def seen(path: Path) -> Early:
        hashed.append(path)
        return early(path)

    monkeypatch.setattr(stages, "early", seen)
    again = "for _ in range(100): task.write_frame(frames[0], {'given': 'engine'})"
    job, _ = toy_job(tmp_path / "packages", entry=child(end=again))
    built = run_build(write_recipe(tmp_path / "recipe", "credit_like"), job)
    assert [path.name for path in hashed] == ["engine"]
    assert sha256((built.folder / "engine/model.onnx").read_bytes()) == built.engine


@pytest.mark.usefixtures("drawn")
def test_how_the_process_beside_died_before_it_was_asked_is_told(tmp_path: Path) -> None:
    dies = (
        "pid = self.beside._forked.pid\n"
        "os.kill(pid, signal.SIGKILL)\n"
        "os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)"
    )
    error, _ = refused(tmp_path, child(first=dies))
    assert error.message == "engine process: expected an answer, got signal SIGKILL"


@pytest.mark.usefixtures("drawn")
def test_a_second_name_of_an_engine_stays_outside_the_package(tmp_path: Path) -> None:
    job, _ = toy_job(tmp_path / "packages", entry=child(end=f"os.link(engine, {str(tmp_path / 'other')!r})"))
    built = run_build(write_recipe(tmp_path / "recipe", "credit_like"), job)
    engine = built.folder / "engine/model.onnx"
    assert engine.stat().st_nlink == 1
    assert sha256(engine.read_bytes()) == built.engine


def test_a_full_disk_leaves_no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Path) -> None:
    """A graph that cannot be shelved is met where its child waits already."""
    started: list[Opened] = []
    start = stages.start

    def seen(*given: Any) -> Opened:
        started.append(start(*given))
        return started[-1]

    def full(shelf: Shelf, data: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stages, "start", seen)
    monkeypatch.setattr(Shelf, "put", full)
    job, recorder = toy_job(tmp_path / "packages")
    with pytest.raises(DiskFullError):
        run_build(write_recipe(tmp_path / "recipe", "credit_like"), job)
    assert [data["outcome"] for _, data in recorder.events] == [DiskFullError.code]
    assert len(started) > 1
    assert all(opened.child.process.returncode is not None for opened in started)


def test_a_folder_that_does_not_go_leaves_no_package_and_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Path
) -> None:
    close = Shelf.close

    def closed(shelf: Shelf) -> None:
        close(shelf)
        raise OSError(16, "Device or resource busy", "somewhere")

    monkeypatch.setattr(Shelf, "close", closed)
    job, recorder = toy_job(tmp_path / "packages")
    with pytest.raises(BuildError, match="expected somewhere to be usable, got Device or resource busy"):
        run_build(write_recipe(tmp_path / "recipe", "credit_like"), job)
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["failed"]
    assert [data["outcome"] for _, data in recorder.events] == [BuildError.code]


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[Opened]:
    """Children that nobody asked, ended; the end of each fails."""
    abandon = Opened.abandon
    gone: list[Opened] = []

    def abandoned(opened: Opened) -> None:
        abandon(opened)
        gone.append(opened)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Opened, "abandon", abandoned)
    return gone


@pytest.mark.usefixtures("drawn")
def test_every_child_is_ended_also_when_the_end_of_one_fails(gone: list[Opened]) -> None:
    def opened() -> None:
        with Stages({"limits": {}}, lambda phase: None, entry="import sys; sys.stdin.read()") as made:
            made.open("prepare")
            made.open("compile")

    with pytest.raises(OSError, match="Input/output"):
        opened()
    assert len(gone) == 2


@pytest.mark.usefixtures("drawn")
def test_so_is_every_child_that_was_ahead_of_a_site_that_does_not_open(
    tmp_path: Path, gone: list[Opened]
) -> None:
    def site() -> Site:
        return open_site(tmp_path)

    with pytest.raises(OSError, match="Input/output"):
        build(site, tmp_path / "recipe.yaml")
    assert len(gone) == 2


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("left", range(4))
def test_a_system_without_a_thread_left_ends_a_build_with_an_entry_and_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """Two children, each with who reads from it and who ends it in time."""
    begun: list[threading.Thread] = []
    started: list[subprocess.Popen[bytes]] = []
    start, popen = threading.Thread.start, subprocess.Popen

    def limited(thread: threading.Thread) -> None:
        if len(begun) == left:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    def seen(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*given, **more))
        return started[-1]

    measures()
    monkeypatch.setattr(threading.Thread, "start", limited)
    monkeypatch.setattr(subprocess, "Popen", seen)
    job, recorder = toy_job(tmp_path / "packages")
    with pytest.raises(BuildError, match="expected operating system to be usable, got no thread left"):
        run_build(write_recipe(tmp_path / "recipe", "credit_like"), job)
    assert [data["outcome"] for _, data in recorder.events] == [BuildError.code]
    assert started
    assert all(process.returncode is not None for process in started)


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(
    "first",
    [
        "worker.write_file = lambda *_: os.write(os.open('/dev/full', os.O_WRONLY), bytes(1))",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\nraise ValueError('nobody can be told')",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\nprint('x', file=sys.stderr)",
    ],
)
def test_a_full_temporary_folder_is_told_in_words(tmp_path: Path, first: str) -> None:
    """Where neither a result nor what a library printed has room, the exit status says so."""
    error, _ = refused(tmp_path, child(first=first))
    assert isinstance(error, DiskFullError)
    assert error.message.startswith("build worker, compile: expected room for what it makes")
    assert "TMPDIR" in error.hint


@pytest.mark.usefixtures("drawn")
def test_a_file_that_is_gone_is_told_without_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shelf, "put", lambda shelf, data: tmp_path / "nowhere")
    error, _ = refused(tmp_path, child())
    assert error.message == "build worker: expected to read the file model, got No such file or directory"
    assert (next((tmp_path / "packages/failed").iterdir()) / "build.stderr").read_bytes() == b""


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(
    ("result", "kind"),
    [(b"\xc1", msgspec.DecodeError), (msgspec.msgpack.encode({"phases_ns": {}}), KeyError)],
)
def test_an_answer_that_nobody_understands_is_told_whole_and_recorded(
    tmp_path: Path, result: bytes, kind: type[Exception]
) -> None:
    job, recorder = toy_job(tmp_path / "packages", entry=child(end=f"data = {result!r}"))
    with pytest.raises(kind):
        run_build(write_recipe(tmp_path / "recipe", "credit_like"), job)
    ((_, data),) = recorder.events
    assert data["outcome"] == BuildError.code
    assert data["reason"] == f"build: expected to go on, got {kind.__name__}"
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["failed"]


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("message", ["[1]", "5", "None", "{'step': 5}", "{'step': ['parse']}"])
def test_a_message_that_nobody_understands_ends_the_build_as_a_crash(tmp_path: Path, message: str) -> None:
    said = f"from pellucid.build.frame import write_frame; write_frame(self.frames, {message})"
    error, _ = refused(tmp_path, child(first=said))
    assert isinstance(error, BuilderCrashedError)
    assert error.message.endswith("expected a result, got a message that nobody understands")
    assert "memory" not in error.hint
