"""The parent's side of the stages: one fresh child each, what it left read before its folder goes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from pellucid.build import worker
from pellucid.build.child import Ended, run_child
from pellucid.core.digest import verify_digest
from pellucid.errors import BuilderCrashedError, BuildError, by_code

Progress = Callable[[str], None]
_FILES: Final = ("engine", "compiled", "source")


@dataclass(frozen=True, slots=True)
class Staged:
    """One stage that gave a result.

    Attributes:
        result: What the child reported.
        files: Files it left, by name, their digests checked.
    """

    ended: Ended
    result: dict[str, Any]
    files: dict[str, bytes]


@dataclass(slots=True)
class Stages:
    """The children of one build, in order, and everything they said, also when one failed.

    Attributes:
        entry: Python source that a child runs.
        log: Lines of all stages so far.
        stderr: What all children printed so far.
        ended: How the last child ended, in words.
        measured: Path -> value of documents that the judge left, also when its gate failed.
    """

    recipe: Mapping[str, Any]
    progress: Progress
    entry: str = worker.ENTRY
    log: bytes = b""
    stderr: bytes = b""
    ended: str = "not started"
    phases_ns: dict[str, int] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)

    def run(self, stage: str, request: Mapping[str, Any]) -> Staged:
        """Run one stage in a fresh child.

        Raises:
            BuilderCrashedError: It died, by signal or by time.
            PellucidError: What the child raised.
        """
        with tempfile.TemporaryDirectory(prefix="pellucid-build-") as scratch:
            folder = Path(scratch) / "out"
            folder.mkdir()
            whole = {"stage": stage, "recipe": self.recipe, "folder": str(folder), **request}
            ended = run_child(
                self.entry, whole, Path(scratch), timeout_s=self.recipe["limits"]["timeout_s"],
                on_frame=lambda frame: self.progress(str(frame.get("phase"))),
            )  # fmt: skip
            raw, log = _part(folder / worker.RESULT), _part(folder / worker.LOG)
            files = {name: data for name in _FILES if (data := _part(folder / name))}
        self.log += log
        self.stderr += ended.stderr
        self.ended = ended.reason
        result = _verified(stage, ended, raw)
        for name, data in files.items():
            verify_digest(name, data, result[name])
        self.phases_ns |= result["phases_ns"]
        return Staged(ended, result, files)


def _part(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _verified(stage: str, ended: Ended, raw: bytes) -> dict[str, Any]:
    result: dict[str, Any] | None = msgspec.msgpack.decode(raw) if raw and ended.code == 0 else None
    if result is None:
        hint = "killed from outside: often the machine ran out of memory" if ended.code == -9 else ""
        if ended.timed_out:
            hint = "raise limits.timeout_s in the recipe"
        raise BuilderCrashedError(f"build worker, {stage}: expected a result, got {ended.reason}", hint=hint)
    if "error" in result:
        error = result["error"]
        raise by_code(error["code"], BuildError)(error["message"], hint=error["hint"])
    return result
