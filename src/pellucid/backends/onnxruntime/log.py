"""The library's messages: kept whole, then read for facts, one message at a time.

A message is believed only by the place in the library it came from, and node names were made safe
before, so a name can never speak as the library. Lines we do not know are counted, not guessed.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any, Final

import onnxruntime as ort

from pellucid.errors import BuildError
from pellucid.ports import BuildLog, LogLine

SEVERITIES: Final = ("VERBOSE", "INFO", "WARNING", "ERROR", "FATAL")
_WARNING: Final = 2  # the library's own default
_ARENA: Final = (
    r"(?:Reserving memory in BFCArena for Cpu size: (?P<reserved>\d+)"
    r"|Extended allocation by (?P<extended>\d+) bytes\.)"
)
_PLACED: Final = r" ?(?:All nodes|Node\(s\)) placed on \[(?P<ep>\w+)\]\. Number of nodes: (?P<n>\d+)"
_SESSION: Final = r"(?:inference_session|session_state|session_state_utils|allocation_planner)\.cc:.*"
_PATTERNS: Final = tuple(
    (kind, re.compile(place), re.compile(text, re.DOTALL))
    for kind, place, text in (
        ("options", r"inference_session\.cc:\d+ TraceSessionOptions", r"Session Options \{ .*\}"),
        (
            "transformer",
            r"graph_transformer\.cc:.*",
            r"GraphTransformer (?P<name>\w+) modified: (?P<n>\d) with status: OK",
        ),
        ("transforming", r"graph_transformer_mgr\.cc:.*", r".*"),
        ("matched", r"selector_action_transformer\.cc:.*", r"Matched .*"),
        ("initializer", r"graph\.cc:.*", r"Removing initializer '.*'\. It is no longer used by any node\."),
        ("placement", r"session_state\.cc:.*", _PLACED),
        ("session", _SESSION, r".*"),
        ("arena", r"bfc_arena\.cc:.*", _ARENA),
        ("arena_other", r"bfc_arena\.cc:.*", r".*"),
        ("partition", r"(?:graph_partitioner|fallback_cpu_capability)\.cc:.*", r".*"),
    )
)


class Log:
    """Takes the library's messages while it is entered; gives them to ``sink`` and counts them."""

    def __init__(self, sink: BuildLog) -> None:
        self._sink = sink
        self._failure: BaseException | None = None
        self._kinds: Counter[str] = Counter()
        self._warnings: Counter[str] = Counter()
        self._transformers: Counter[str] = Counter()
        self._placements: Counter[str] = Counter()
        self._arena = {"reserved_bytes": 0, "extended_bytes": 0}
        self.trace: str | None = None

    def __enter__(self) -> Log:
        if not hasattr(ort, "set_default_logger_callback"):
            raise BuildError(
                f"onnxruntime: expected a version that hands over its log, got {ort.__version__}",
                hint="pip install 'onnxruntime>=1.32'",
            )
        ort.set_default_logger_callback(self._take, 0)
        return self

    def __exit__(self, *_: object) -> None:
        ort.set_default_logger_callback(None, _WARNING)
        ort.set_default_logger_severity(_WARNING)

    def _take(self, severity: int, _category: str, _logid: str, location: str, message: str) -> None:
        # an exception here would be printed and swallowed by the library: keep it for verify()
        try:
            self._sink(LogLine(SEVERITIES[severity], time.time_ns(), message, location))
            self._read(SEVERITIES[severity], location, message)
        except BaseException as error:
            self._failure = self._failure or error

    def verify(self) -> None:
        """Fail when any message was lost.

        Raises:
            BuildError: The log's writer raised.
        """
        if self._failure is not None:
            raise BuildError(
                f"build log: expected every message to be kept, got {type(self._failure).__name__}: "
                f"{self._failure!s:.200}",
                hint="a build whose log is not whole is not kept",
            ) from self._failure

    def _read(self, severity: str, location: str, message: str) -> None:
        kind, match = _classify(location, message)
        self._kinds[kind] += 1
        if severity in ("WARNING", "ERROR", "FATAL"):
            self._warnings[location[:120]] += 1
        if kind == "options" and self.trace is None:
            self.trace = message
        if match is None:
            return
        if kind == "transformer" and match["n"] != "0":
            self._transformers[match["name"]] += int(match["n"])
        elif kind == "placement":
            self._placements[match["ep"]] = int(match["n"])
        elif kind == "arena":
            self._arena["reserved_bytes"] += int(match["reserved"] or 0)
            self._arena["extended_bytes"] += int(match["extended"] or 0)

    def facts(self) -> dict[str, Any]:
        """What the messages say; canonical profile."""
        return {
            "memory": {f"arena_{key}": value for key, value in self._arena.items()},
            "placements": [{"provider": name, "nodes": n} for name, n in sorted(self._placements.items())],
            "transformers": [{"name": name, "times": n} for name, n in sorted(self._transformers.items())],
            "warnings": [{"kind": kind, "count": n} for kind, n in sorted(self._warnings.items())],
            "log": {
                "messages": sum(self._kinds.values()),
                "unknown": self._kinds["unknown"],
                "kinds": [{"kind": kind, "count": n} for kind, n in sorted(self._kinds.items())],
            },
        }


def _classify(location: str, message: str) -> tuple[str, re.Match[str] | None]:
    for kind, place, text in _PATTERNS:
        if place.fullmatch(location):
            match = text.fullmatch(message)
            if match:
                return kind, match
    return "unknown", None
