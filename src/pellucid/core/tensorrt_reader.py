"""What the messages of a TensorRT log say, one by one; for any log, also of a build that failed.

A message is of one kind or of none, by its whole text. Names that could imitate a line are listed here
and refused by ``tensorrt_log``, before any fact is believed.
Source: spec/tensorrt-facts.md, sections 1, 2 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from pellucid.core.tensorrt_dump import DUMP_START, is_plain_name
from pellucid.core.tensorrt_messages import (
    NAMED,
    fatal_kind,
    issue_kind,
    kind_of,
    warning_kind,
)
from pellucid.errors import LimitError

ENGINE_LAYERS_START: Final = "Engine Layer Information:\n"
MESSAGES_MAX: Final = 5_000_000  # limit: the longest log measured has 60,800
_LISTED_MAX: Final = 100  # limit: unsafe names shown; all are counted
_ERRORS: Final = {"ERROR", "INTERNAL_ERROR", "FATAL"}
_PLAIN: Final = {"VERBOSE", "INFO"}
_TELLING: Final = {  # kinds that state more than that they were said
    *NAMED, "unknown", "mem_total", "time", "profile", "target_ccs", "autotune", "timing", "tactic_time",
    "chose",
}  # fmt: skip


class Line(Protocol):
    """A message of the builder's logger."""

    @property
    def severity(self) -> str: ...
    @property
    def message(self) -> str: ...


class Message(msgspec.Struct, frozen=True):
    severity: str
    message: str


class Issue(msgspec.Struct, frozen=True):
    """An error or a warning; the text is the builder's and may hold control characters."""

    kind: str
    text: str


class TimedTactic(msgspec.Struct, frozen=True):
    """A tactic that the builder timed on a GPU (classic form); milliseconds are the text it printed.

    Attributes:
        format: Formats of the layer's tensors that were being tried, as printed, or ``""``.
    """

    layer: str
    runner: str
    tactic: str
    name: str
    time_ms: str
    format: str = ""


class ChosenTactic(msgspec.Struct, frozen=True):
    """The fastest tactic of one combination of formats; which combination won, the end of the log says."""

    layer: str
    runner: str
    tactic: str
    format: str = ""


class Said(msgspec.Struct):
    """What the messages say one by one; safe for any log, also of a build that failed.

    Attributes:
        nodes: Parsed nodes as (name, operator), in order.
        memory: Bytes of each memory line, every value that was printed.
        phases: (phase, seconds as printed), in order.
        profiles: Messages that the builder takes up an optimisation profile.
        fatal_warnings: Warnings after which the engine computes something else than the model.
        unsafe_names: Names that could imitate a line, the first of them.
        unsafe_count: How many times such a name was printed.
        kinds: Messages of each kind.
        unknown: Messages of no known kind.
        dumps: Layers dumps, unread.
        engine_layers: Lists of layers as a builder without DETAILED verbosity prints them, unread.
    """

    messages: int = 0
    nodes: list[tuple[str, str]] = msgspec.field(default_factory=list)
    memory: dict[str, list[int]] = msgspec.field(default_factory=dict)
    phases: list[tuple[str, str]] = msgspec.field(default_factory=list)
    profiles: int = 0
    targets: int | None = None
    timed: list[TimedTactic] = msgspec.field(default_factory=list)
    chosen: list[ChosenTactic] = msgspec.field(default_factory=list)
    errors: list[Issue] = msgspec.field(default_factory=list)
    warnings: list[Issue] = msgspec.field(default_factory=list)
    fatal_warnings: list[Issue] = msgspec.field(default_factory=list)
    unsafe_names: list[str] = msgspec.field(default_factory=list)
    unsafe_count: int = 0
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    unknown: int = 0
    dumps: list[str] = msgspec.field(default_factory=list)
    engine_layers: list[str] = msgspec.field(default_factory=list)
    _timing: tuple[str, str] = ("", "")
    _format: str = ""

    @property
    def form(self) -> str:
        """``classic`` where tactics were timed one by one (TensorRT 10 and 11), else ``rtx``."""
        return "classic" if self.timed else "rtx"


def read_messages(lines: Iterable[Line]) -> Said:
    """What each message says; the dump stays unread, and unsafe names are listed, not refused.

    Raises:
        LimitError: Too many messages.
    """
    said = Said()
    for line in lines:
        said.messages += 1
        if said.messages > MESSAGES_MAX:
            raise LimitError(f"build log: expected at most {MESSAGES_MAX:,} messages, got more")
        if not _judge(said, line.severity, line.message):
            _take(said, line.message)
    return said


def _judge(said: Said, severity: str, message: str) -> bool:
    """Whether it is an error or a warning, which states no other fact."""
    fatal = fatal_kind(message)
    if fatal is None and severity in _PLAIN:  # nearly every one
        return False
    severity = severity.rpartition(".")[2].upper()
    if fatal:  # at whatever severity it is printed
        said.fatal_warnings.append(Issue(fatal, message))
    if severity in _ERRORS:
        said.errors.append(Issue(issue_kind(message), message))
    elif severity == "WARNING":
        said.warnings.append(Issue(fatal or warning_kind(message), message))
    return severity in _ERRORS or severity == "WARNING"


def _take(said: Said, message: str) -> None:
    kind, fields = kind_of(message)
    if message.startswith(DUMP_START) and kind != "node_io":
        said.dumps.append(message)
        kind = "layers"
    elif message.startswith(ENGINE_LAYERS_START) and kind == "unknown":
        said.engine_layers.append(message)
        kind = "engine_layers"
    said.kinds[kind] = said.kinds.get(kind, 0) + 1
    if kind not in _TELLING:
        return
    for key in NAMED.get(kind, ()):
        if fields.get(key) and not is_plain_name(fields[key]):
            said.unsafe_count += 1
            if len(said.unsafe_names) < _LISTED_MAX:
                said.unsafe_names.append(fields[key])
    match kind:
        case "unknown":
            said.unknown += 1
        case "parse_node":
            said.nodes.append((fields["name"], fields["op"]))
        case "mem_total":
            said.memory.setdefault(fields["k"], []).append(int(fields["v"]))
        case "time":
            said.phases.append((fields["k"], fields["v"]))
        case "profile":
            said.profiles += 1
        case "target_ccs":
            said.targets = int(fields["n"])
        case "autotune":
            said._format = fields["fmt"]
        case "timing":
            said._timing = (fields["layer"], fields["runner"])
        case "tactic_time":
            said.timed.append(
                TimedTactic(
                    *said._timing, fields["tactic"], fields["name"] or "", fields["time"], said._format
                )
            )
        case "chose":
            said.chosen.append(
                ChosenTactic(said._timing[0], fields["runner"], fields["tactic"], said._format)
            )
