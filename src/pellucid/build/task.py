"""One stage's request inside the build worker, and the ways to speak while it is worked on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from pellucid.build.beside import Beside
from pellucid.build.cancel import Heard
from pellucid.build.frame import write_frame
from pellucid.build.log import LogWriter
from pellucid.ports import Backend, LogLine, Step

_STEPS_NS: Final = 20_000_000  # a builder takes hundreds of steps a second, and nobody can read those
BackendFor = Callable[[str], Backend]


class Task(msgspec.Struct, frozen=True):
    """One stage's request, and the ways to speak while it is worked on.

    Attributes:
        request: What the parent sent.
        folder: Where files for the parent go.
        heard: Whether the parent asked for the end.
        told: When the parent was last told of a step.
        beside: Records golden cases of what is built on this machine for this machine.
    """

    request: Mapping[str, Any]
    backend_for: BackendFor
    folder: Path
    log: LogWriter
    frames: BinaryIO
    phases: dict[str, int] = msgspec.field(default_factory=dict)
    heard: Heard = msgspec.field(default_factory=Heard)
    told: dict[str, int] = msgspec.field(default_factory=dict)
    beside: Beside | None = None

    def phase(self, name: str) -> None:
        """Say what begins now, in the log and to the parent, unless that asked for the end.

        Raises:
            BuildCancelledError: It did.
        """
        self.heard.verify()
        self.phases[name] = time.monotonic_ns()
        self.log(LogLine("INFO", time.time_ns(), f"phase {name}", "pellucid.build.worker"))
        write_frame(self.frames, {"phase": name})

    def step(self, step: Step) -> bool:
        """Tell the parent of a builder's step, unless it has just heard of one; false when that asked for
        the end."""
        now = time.monotonic_ns()
        if now - self.told.get("step", -_STEPS_NS) >= _STEPS_NS:
            self.told["step"] = now
            write_frame(self.frames, {"step": [step.phase, step.done, step.of]})
        return not self.heard.to_stop

    def leave(self, name: str, data: bytes) -> None:
        """Write a file for the parent."""
        write_file(self.folder / name, data)

    def give(self, name: str, made: Path) -> Path:
        """Hand a file to the parent as it is; it may begin to hash it. Gives where it lies now."""
        path = made.replace(self.folder / name)
        write_frame(self.frames, {"given": name})
        return path


def write_file(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all."""
    temporary = path.with_suffix(".part")
    temporary.write_bytes(data)
    temporary.replace(path)
