"""Kinds of messages in a TensorRT log: one row a kind, matched against the whole message.

Rows are measured on TensorRT-RTX 1.7 unless they say otherwise.
Source: spec/tensorrt-facts.md, section 2.
"""

from __future__ import annotations

import re
from typing import Final

_FLAGS: Final = re.DOTALL | re.ASCII
_NUMBER: Final = r"\d{1,19}"
_DECIMAL: Final = r"\d{1,19}(?:\.\d{1,30})?(?:e[+-]?\d{1,3})?"
_ROWS: Final = (
    ("header", r"ONNX IR version: .*|Opset version: .*|Producer (?:name|version): .*|Domain: .*"),
    ("header", r"Model version: .*|Doc string: .*|Input filename: .*|-{64}"),
    ("static_check", r"Static check for parsing node: .*"),
    ("parse_node", r"Parsing node: (?P<name>.*) \[(?P<op>\w+)\]"),
    ("searching", r"Searching for input: (?P<name>.*)"),
    ("initializer", r"Importing initializer: (?P<name>.*)"),
    (
        "onnx_input",
        r"Adding network input: (?P<name>.*) with dtype: (?P<dtype>\w+), dimensions: \((?P<dims>[-\d, ]*)\)",
    ),
    ("onnx_output", r"Marking (?P<tensor>.*) as output: (?P<name>.*)"),
    ("registering", r"Registering layer: (?P<name>.*) required by ONNX-TRT"),
    ("registering", r"Registering (?:layer|tensor): (?P<name>.*) for ONNX (?:node|tensor): (?P<onnx>.*)"),
    ("layers_after", rf"(?P<stage>Original|After [\w -]{{1,64}}?): (?P<n>{_NUMBER}) layers"),
    ("foreign", r"ForeignNode (?P<name>\{ForeignNode\[.*\]\}) metadata: (?P<meta>.*)"),
    ("pattern", r"Found (?P<name>.*) to be part of (?P<pat>[\w -]{1,64}) pattern\."),
    ("autotune", r"\*{15} Autotuning format combination: (?P<fmt>.*) \*{15}"),
    ("timing", r"-{15} Timing Runner: (?P<layer>.*) \((?P<runner>\w+)(?:\[(?P<id>0x[0-9a-f]+)\])?\)"),
    (  # classic form (TensorRT 10, 11); not measured
        "tactic_time",
        r"(?:Tactic Name: (?P<name>[!-~]+) )?Tactic: (?P<tactic>0x[0-9a-f]{1,32})"
        rf" Time: (?P<time>{_DECIMAL})",
    ),
    ("fastest", rf"Fastest Tactic: 0x[0-9a-f]{{1,32}} Time: {_DECIMAL}"),  # classic form
    ("skipping", r"Skipping \w+: No valid tactics for .*"),  # classic form
    ("chose", r">{15} Chose Runner Type: (?P<runner>\w+) Tactic: (?P<tactic>0x[0-9a-f]+)"),
    (
        "layer_mem",
        rf"Layer: (?P<layer>.*) Host Persistent: (?P<host>{_NUMBER}) bytes"
        rf" Device Persistent: (?P<dev>{_NUMBER}) bytes Scratch Memory: (?P<scratch>{_NUMBER}) bytes",
    ),
    (
        "mem_total",
        r"(?P<k>Total Host Persistent Memory|Total Device Persistent Memory|Max Scratch Memory"
        rf"|Total Activation Memory|Total Weights Memory): (?P<v>{_NUMBER}) bytes",
    ),
    ("mem_peak", r"\[MemUsageStats\] Peak memory usage of TRT CPU/GPU memory allocators: .*"),
    ("mem_build", r"\[MemUsageStats\] Peak memory usage during Engine building and serialization: .*"),
    ("mem_change", r"\[MemUsageChange\] .*"),
    (
        "time",
        r"(?P<k>Graph construction completed in|Graph optimization time:"
        r"|Formats and tactics selection completed in|Subgraph compilation completed in"
        rf"|Engine generation completed in) (?P<v>{_DECIMAL}) seconds\.",
    ),
    ("target_ccs", rf"Number of target compute capabilities: (?P<n>{_NUMBER})"),
    ("target_ccs_mode", r" \(foreignNode\) Using legacy CPU-only mode\."),
    ("plan", rf"Adding (?P<n>{_NUMBER}) engine(?P<w>\(s\) to| weights\(s\) to) plan file\."),
    ("profile", rf"Constructing optimization profile number {_NUMBER} \[{_NUMBER}/{_NUMBER}\]\."),
    ("shapes", r"SYMBOLIC CHECKS|GRAPH NODES|[A-Z][A-Z_]{2,} [!-~]+|    (?:In|Out)put \d{1,9}"),
    ("shapes", r"[A-Z][A-Z_]{2,} \(Unnamed Layer\* \d{1,9}\) \[[\w ]{1,64}\]"),
    ("shapes", r" {8}[!-~]+\t[^\n]{1,512}"),
    ("costs", r"={15} Computing (?:reformatting )?costs for .*|Running: \w+ on .*"),
    ("qdq", r"QDQ (?P<what>.*)"),
)
_FIRST: Final = {
    "header": "OPDMI-", "layers_after": "OA", "mem_total": "TM", "time": "GFSE", "costs": "=R",
    "shapes": " ABCDEFGHIJKLMNOPQRSTUVWXYZ", "tactic_time": "T",
}  # fmt: skip
"""First characters of kinds that do not begin with one fixed character; only to be quick."""

_KINDS_BY_FIRST: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
for _kind, _text in _ROWS:
    for _first in _FIRST.get(_kind, _text.removeprefix("\\")[:1]):
        _KINDS_BY_FIRST.setdefault(_first, []).append((_kind, re.compile(_text, _FLAGS)))
_FASTEST: Final = re.compile(  # classic form
    r"(?P<layer>.*) \(\w+(?:\[0x[0-9a-f]+\])?\) profiling completed in " + _DECIMAL + r" seconds\."
    r" Fastest Tactic: 0x[0-9a-f]{1,32} Time: " + _DECIMAL, _FLAGS,
)  # fmt: skip
# two patterns: with an optional list each place that looks like the last one would be read to the end
_NODE_IO_TEXT: Final = r"(?P<name>.*) \[(?P<op>\w+)\] (?:inputs|outputs): "
_NODE_IO: Final = re.compile(_NODE_IO_TEXT + ".*, ", _FLAGS)
_NODE_NO_IO: Final = re.compile(_NODE_IO_TEXT, _FLAGS)

NAMED: Final = {
    "node_io": ("name",),
    "parse_node": ("name",),
    "searching": ("name",),
    "initializer": ("name",),
    "onnx_input": ("name",),
    "onnx_output": ("tensor", "name"),
    "registering": ("name", "onnx"),
}
"""Which fields of a kind are names from the model, or made from them."""

_PLACE: Final = r"(?:\w+\.\w+:\d+: )?"
_FATAL: Final = (
    (
        "uint8_zero_point",
        _PLACE + r"TensorRT supports QuantizeLinear/DequantizeLinear with UINT8 zero_point only on DLA"
        r".*Defaulting to INT8",
    ),
    ("int32_zero_point", _PLACE + r"For zero_point with type int32 TensorRT will use INT8 instead\."),
)
_WARNINGS: Final = (
    ("int64_binding", _PLACE + r"Make sure input .* has Int64 binding\."),
    ("unused_input", _PLACE + r"Unused Input: "),
    ("empty_initializer", _PLACE + r"Empty initializer "),
    ("mixed_types", _PLACE + r"IElementWiseLayer with inputs .*: first input has type "),
    ("duplicate_name", _PLACE + r"A node named .* already exists, "),
    ("second_logger", r"The logger passed into \w+ differs from one already registered "),
)
_ISSUES: Final = (
    # at the start only: the parser's own error quotes the same text
    ("noise", r"\[checkMacros\.cpp::catchCudaError::\d+\] .*cudaError 35"),
    ("noise", r"Thread context has not been set! Using global log stream\."),
    ("parser", r"ModelImporter\.cpp:\d+: "),
    ("builder", r"(?:[\w:]+: |\[[\w.:]+\] )Error Code \d+: "),
)


def _compiled(rows: tuple[tuple[str, str], ...]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(text, _FLAGS)) for kind, text in rows)


_FATAL_KINDS: Final = _compiled(_FATAL)
_WARNING_KINDS: Final = _compiled(_WARNINGS)
_ISSUE_KINDS: Final = _compiled(_ISSUES)


def kind_of(message: str) -> tuple[str, dict[str, str]]:
    """Kind of a message and its fields, or ``unknown``."""
    # first, since a node's name could begin like any other kind
    if message.endswith((", ", "puts: ")):
        found = (_NODE_IO if message.endswith(", ") else _NODE_NO_IO).fullmatch(message)
        if found:
            return "node_io", found.groupdict("")
    if " profiling completed in " in message and _FASTEST.fullmatch(message):
        return "fastest", {}
    for kind, pattern in _KINDS_BY_FIRST.get(message[:1], ()):
        if found := pattern.fullmatch(message):
            return kind, found.groupdict("")
    return "unknown", {}


def fatal_kind(message: str) -> str | None:
    """Kind of a warning after which the engine computes something else than the model."""
    if "zero_point" not in message:  # only to be quick
        return None
    return next((kind for kind, pattern in _FATAL_KINDS if pattern.match(message)), None)


def warning_kind(message: str) -> str:
    """Kind of a warning, or ``other``."""
    return next((kind for kind, pattern in _WARNING_KINDS if pattern.match(message)), "other")


def issue_kind(message: str) -> str:
    """Kind of an error: ``noise`` of a machine without a GPU, ``parser``, ``builder`` or ``other``."""
    return next((kind for kind, pattern in _ISSUE_KINDS if pattern.match(message)), "other")
