"""The parent's side of the stages: one fresh child each, what it left read before its folder goes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from pellucid.build import left, places
from pellucid.build.child import Child, Ended, start_child
from pellucid.build.frame import verify_map
from pellucid.build.guarded import unguarded
from pellucid.build.hashed import Hashed
from pellucid.build.shelf import Early, Shelf, early
from pellucid.core.digest import Data
from pellucid.errors import BuildCancelledError, BuilderCrashedError, FormatError

Progress = Callable[[str], None]
STEP: Final = "build: "  # begins what is said of a builder's step; anything else is a phase
_FILES: Final = ("engine", "compiled", "source")
_OWED: Final = {"prepare": "compiled", "compile": "engine"}  # stage -> file without which it gave nothing
_SHELVED: Final = ("model", "compiled", "source", "engine")  # go to a child by the name of their file


class Staged(msgspec.Struct, frozen=True):
    """One stage that gave a result.

    Attributes:
        result: What the child reported.
        files: Files it left, by name.
    """

    ended: Ended
    result: dict[str, Any]
    files: dict[str, Data]


class Ears:
    """Takes a child's messages, on a thread of its own.

    Attributes:
        given: Called with the name of a file that the child gave before its end.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.given: Callable[[str], object] = lambda name: None

    def hear(self, frame: Any) -> None:
        """Take one message.

        Raises:
            FormatError: It is none that a stage sends.
        """
        message = verify_map(frame)
        if "given" in message:
            with suppress(OSError):  # it is looked for again at the child's end
                self.given(str(message["given"]))
        else:
            self._progress(_words(message))


class Opened(msgspec.Struct, frozen=True):
    """A child that was started and waits."""

    child: Child
    scratch: tempfile.TemporaryDirectory[str]
    folder: Path
    ears: Ears

    def abandon(self) -> None:
        """End it: nobody will ask it anything."""
        with self.scratch:
            self.child.abandon()


def start(entry: str, progress: Progress) -> Opened:
    """Start a child that loads what every stage needs, and waits to hear which it will be."""
    with ExitStack() as left_over:
        scratch = tempfile.TemporaryDirectory(prefix="pellucid-build-")
        left_over.enter_context(scratch)
        folder = Path(scratch.name) / "out"
        folder.mkdir()
        ears = Ears(progress)
        child = start_child(entry, Path(scratch.name), ears.hear)
        left_over.pop_all()
    return Opened(child, scratch, folder, ears)


class Stages(msgspec.Struct):
    """The children of one build, in order, and everything they said, also when one failed.

    Attributes:
        entry: Python source that a child runs.
        log: Lines of all stages so far.
        stderr: What all children printed so far.
        ended: How the last child ended, in words.
        measured: Path -> value of documents that the judge left, also when its gate failed.
        hashed: Digests of what they left, and of whatever else the build asks for.
        shelf: Files that they left or were given; gone when the ``with`` block is.
        ahead: Children that were started already; who started them ends those that nobody asked.
    """

    recipe: Mapping[str, Any]
    progress: Progress
    entry: str = left.ENTRY
    log: bytes = b""
    stderr: bytes = b""
    ended: str = "not started"
    phases_ns: dict[str, int] = msgspec.field(default_factory=dict)
    measured: dict[str, Any] = msgspec.field(default_factory=dict)
    hashed: Hashed = msgspec.field(default_factory=Hashed)
    shelf: Shelf = msgspec.field(default_factory=Shelf)
    ahead: list[Opened] = msgspec.field(default_factory=list)
    _opened: dict[str, Opened] = msgspec.field(default_factory=dict)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        """End children that were opened and never asked, and remove what nobody kept."""
        with ExitStack() as left_over:  # also when one of them fails
            left_over.callback(self.shelf.close)
            while self._opened:
                left_over.callback(self._opened.popitem()[1].abandon)

    def open(self, stage: str) -> None:
        """Start a stage's child, which loads what it needs and waits; ``run`` asks it."""
        opened = self.ahead.pop() if self.ahead else start(self.entry, self.progress)
        self._opened[stage] = opened
        opened.child.say({"stage": stage, "recipe": self.recipe, "folder": str(opened.folder), "more": True})

    def run(
        self, stage: str, request: Mapping[str, Any], meanwhile: Callable[[], None] = lambda: None
    ) -> Staged:
        """Run one stage in a fresh child, the one opened for it if there is one.

        Args:
            meanwhile: Called once the child works.

        Raises:
            BuilderCrashedError: It died, by signal or by time, or left another file than it gave, or none.
            BuildCancelledError: Somebody asked for the end.
            DiskFullError: What it makes did not fit into its folder.
            PellucidError: What the child raised.
        """
        if stage not in self._opened:
            self.open(stage)
        # a full disk is met here, where the child is still one of those that are ended
        shelved = {name: str(self.shelf.put(request[name])) for name in _SHELVED if name in request}
        asked = {name: value for name, value in request.items() if name not in _SHELVED}
        opened = self._opened.pop(stage)
        self.shelf.adopt(opened.scratch)
        given: dict[str, Early] = {}
        opened.ears.given = lambda name: _hash_early(opened.folder, name, given)
        timeout_s = self.recipe["limits"]["timeout_s"]
        ended = opened.child.finish(asked | {"shelved": shelved}, timeout_s, meanwhile)
        folder, place = opened.folder, Path(opened.scratch.name)
        raw, log = _part(folder / left.RESULT), _part(folder / left.LOG)
        self.log += places.hide_in_log(log, place)
        self.stderr += ended.stderr
        self.ended = ended.reason
        result = _verified(stage, ended, raw, place)
        files = {
            name: self._taken(folder / name, given.get(name)) for name in _FILES if (folder / name).is_file()
        }
        if stage in _OWED and _OWED[stage] not in files:
            raise BuilderCrashedError(f"build worker, {stage}: expected a file {_OWED[stage]}, got none")
        self.phases_ns |= result["phases_ns"]
        return Staged(ended, result, files)

    def _taken(self, path: Path, given: Early | None) -> Data:
        """A file as its child left it, which is gone; hashed already where it is the one that was given."""
        data = self.shelf.take(path)
        if given is None:
            return data
        if given.holds(path):
            self.hashed.know(data, given.digest)
        elif self.hashed(data) != given.digest:
            raise BuilderCrashedError(
                f"build worker: {path.name}: expected the bytes that it gave, got others"
            )
        return data


def _hash_early(folder: Path, name: str, given: dict[str, Early]) -> None:
    """Hash a file that is whole while its child goes on; once, since the child's end waits for this."""
    if name in _FILES and name not in given:
        given[name] = early(folder / name)


def _words(frame: Mapping[str, Any]) -> str:
    """A phase by its name, a builder's step as ``build: PHASE, 3 of 6``."""
    if "step" in frame:
        try:
            phase, done, of = frame["step"]
        except (TypeError, ValueError) as error:
            raise FormatError(
                f"build worker: expected a phase and two numbers, got {error!s:.120}"
            ) from error
        return f"{STEP}{phase}, {done} of {of}"
    return str(frame.get("phase"))


def _part(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _verified(stage: str, ended: Ended, raw: bytes, place: Path) -> dict[str, Any]:
    result: dict[str, Any] | None = msgspec.msgpack.decode(raw) if raw and ended.is_clean else None
    if str(place).encode() in raw:  # seldom, and a walk through all facts
        result = places.hide_in(result, place)
    if ended.cancelled and (result is None or "error" not in result):
        raise BuildCancelledError(f"build worker, {stage}: expected a result, got a request to stop")
    if ended.code == left.NO_ROOM:
        raise left.no_room(f"build worker, {stage}")
    if result is None:
        is_killed = ended.code == -9 and not ended.is_garbled
        hint = "killed from outside: often the machine ran out of memory" if is_killed else ""
        if ended.timed_out:
            hint = "raise limits.timeout_s in the recipe"
        raise BuilderCrashedError(f"build worker, {stage}: expected a result, got {ended.reason}", hint=hint)
    return unguarded(result)
