"""Structured log lines in a file, exactly once each: the file itself says how far it is."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pellucid.core.entry import Formed
from pellucid.sinks import (
    format_line,
    format_tombstone,
    parse_fields,
    parse_sink_uri,
    read_position,
    write_position,
)

_TAIL: Final = 64 * 1024  # limit: longer than any line


class FileSink:
    """JSON lines appended to a file (``ports.Sink``); durable on return.

    Args:
        path: The file; made when absent. Its position lies beside it in ``PATH.position``.
        fields: Which fields a call's line has.
    """

    EXAMPLE_URI: Final = "file:calls.jsonl?fields=timestamp,model_name"

    def __init__(self, path: Path, fields: Sequence[str] = ()) -> None:
        self._fields = tuple(fields) or parse_fields("")
        self._mark = path.with_name(path.name + ".position")
        self._file = open(path, "ab+")  # noqa: SIM115 - open as long as the sink is
        last = _cut_torn_line(self._file.fileno())
        self._position = max(read_position(self._mark), last + 1)

    @classmethod
    def from_uri(cls, uri: str) -> FileSink:
        """Sink of ``file:PATH?fields=a,b``."""
        path, options = parse_sink_uri(uri)
        return cls(Path(path), parse_fields(options.get("fields", "")))

    def position(self) -> int:
        """The next index to apply."""
        return self._position

    def apply(self, start: int, formed: Sequence[Formed]) -> None:
        """Append a line for each entry from ``start`` on that gives one and is not there yet."""
        lines = []
        for index, each in enumerate(formed, start):
            line = format_line(index, each, self._fields) if index >= self._position else None
            lines += [line] if line is not None else []
        self._append(lines)
        self._position = max(self._position, start + len(formed))
        write_position(self._mark, self._position)

    def _append(self, lines: list[str]) -> None:
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def forget(self, key: str) -> None:
        """Append a tombstone: readers downstream drop what they have of the entry."""
        self._append([format_tombstone(key)])

    def close(self) -> None:
        self._file.close()


def _cut_torn_line(fd: int) -> int:
    """Cut off a line that a crash left unfinished; returns the index of the last whole one, or -1."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, _TAIL, max(0, size - _TAIL))
    whole = tail.rfind(b"\n") + 1
    os.ftruncate(fd, size - len(tail) + whole)
    for line in reversed(tail[:whole].splitlines()):
        try:
            index = json.loads(line).get("index")
        except (ValueError, AttributeError):
            continue  # the tail may begin within a line
        if isinstance(index, int):
            return index
    return -1
