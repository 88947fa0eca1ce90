"""The build log: every message as one JSON line, written at once, and no message lost in silence."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pellucid.core.times import format_time
from pellucid.errors import BuildError
from pellucid.ports import LogLine

_encoder = msgspec.json.Encoder()


class LogWriter:
    """Appends lines to a file without a buffer: a build that dies keeps all it said.

    It remembers the first failure, since a builder may swallow what its logger raises.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._failure: OSError | None = None
        self.lines = 0

    def __call__(self, line: LogLine) -> None:
        """Keep one message.

        Raises:
            OSError: It could not be written whole.
        """
        try:
            self._append(encode_line(line))
        except OSError as error:
            self._failure = self._failure or error
            raise
        self.lines += 1

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def verify(self) -> None:
        """Fail when any message was lost.

        Raises:
            BuildError: A line could not be written.
        """
        if self._failure is not None:
            raise BuildError(
                f"build log: expected every message to be kept, got {self._failure.strerror}",
                hint="a build whose log is not whole is not kept; free the disk, or raise limits.file_bytes",
            ) from self._failure

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def encode_line(line: LogLine) -> bytes:
    """``{"severity","time","message","location"}`` and a line feed; messages keep their own line breaks."""
    fields = {
        "severity": line.severity,
        "time": format_time(line.time_ns),
        "message": line.message.encode("utf-8", "backslashreplace").decode(),
        "location": line.location,
    }
    return _encoder.encode(fields) + b"\n"
