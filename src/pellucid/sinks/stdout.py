"""Structured log lines on standard output, for whatever collects them (Fluent Bit, journald)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from pellucid.core.entry import Formed
from pellucid.sinks import (
    format_line,
    format_tombstone,
    parse_fields,
    parse_sink_uri,
    read_position,
    write_position,
)


class StdoutSink:
    """JSON lines on a stream (``ports.Sink``). At least once: after a crash lines may repeat.

    Args:
        fields: Which fields a call's line has.
        position: File that remembers how far we are; ``None``: begin at entry 0 every time.
        stream: Standard output otherwise.
    """

    EXAMPLE_URI: Final = "stdout:?fields=timestamp,model_name"

    def __init__(
        self, fields: Sequence[str] = (), position: Path | None = None, stream: TextIO | None = None
    ) -> None:
        self._fields = tuple(fields) or parse_fields("")
        self._stream, self._file = stream or sys.stdout, position
        self._position = read_position(position) if position is not None else 0
        self._writing = position.with_name(position.name + ".writing") if position is not None else None
        # killed within a line: what comes next must not become a part of it
        self._is_torn = self._writing is not None and self._writing.exists()

    @classmethod
    def from_uri(cls, uri: str) -> StdoutSink:
        """Sink of ``stdout:?fields=a,b&position=FILE``."""
        _, options = parse_sink_uri(uri)
        position = Path(options["position"]) if options.get("position") else None
        return cls(parse_fields(options.get("fields", "")), position)

    def position(self) -> int:
        """The next index to apply."""
        return self._position

    def apply(self, start: int, formed: Sequence[Formed]) -> None:
        """Write a line for each entry from ``start`` on that gives one."""
        lines = [format_line(start + offset, each, self._fields) for offset, each in enumerate(formed)]
        self._write("".join(f"{line}\n" for line in lines if line is not None))
        self._position = max(self._position, start + len(formed))
        if self._file is not None:
            write_position(self._file, self._position)

    def forget(self, key: str) -> None:
        """Write a tombstone: what was sent cannot be called back, only revoked."""
        self._write(format_tombstone(key) + "\n")

    def _write(self, text: str) -> None:
        if self._writing is not None:
            self._writing.touch()
        self._stream.write("\n" + text if self._is_torn else text)
        self._stream.flush()
        self._is_torn = False
        if self._writing is not None:
            self._writing.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held; the stream is its owner's."""
