"""What the build did, as far as its log says: layers and nodes both ways, memory, phases, warnings.

The log is read by ``core.tensorrt_log``, which states nothing when a name could imitate a line.
Source: spec/tensorrt-facts.md; spec/package.md, section 10.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pellucid.backends.tensorrt.graph import nodes_of
from pellucid.backends.tensorrt.library import Library
from pellucid.core.tensorrt_classic import classic_facts, parse_classic
from pellucid.core.tensorrt_dump import DUMP_START, is_plain_name
from pellucid.core.tensorrt_layers import Layer, LayerTensor
from pellucid.core.tensorrt_log import LogFacts, Said, parse_log
from pellucid.errors import BuildError, ParseError
from pellucid.ports import LogLine

if TYPE_CHECKING:
    import onnx

DEFERRED: Final = "deferred to run time: the GPU picks its library kernels when it loads the engine"
MEASURED: Final = "measured on this GPU at build time"
_MEMORY: Final = {  # our name -> the log's line
    "weights_bytes": "Total Weights Memory",
    "activations_bytes": "Total Activation Memory",
    "scratch_bytes": "Max Scratch Memory",
    "host_persistent_bytes": "Total Host Persistent Memory",
    "device_persistent_bytes": "Total Device Persistent Memory",
}
_DATATYPES: Final = {
    "Float": "FP32", "Half": "FP16", "BFloat16": "BF16", "Int8": "INT8", "UInt8": "UINT8", "Int32": "INT32",
    "Int64": "INT64", "Bool": "BOOL", "Int4": "INT4",
}  # fmt: skip


def read_facts(lines: Sequence[LogLine], model: onnx.ModelProto, library: Library) -> dict[str, Any]:
    """Facts of a build that gave an engine; canonical profile.

    The log of a library that builds for the GPU at hand was never seen: where its list of layers is
    not the known one, no layer is stated, and ``layers_reason`` says so.

    Raises:
        ParseError: The log cannot be believed: unsafe names, or a dump outside the grammar.
        BuildError: No Layers dump at all.
    """
    nodes = list(nodes_of(model.graph))
    names = [node.name for node in nodes]
    if not library.features.cross_target and not _is_readable(lines, names):
        said = parse_log([line for line in lines if not line.message.startswith(DUMP_START)], names)
        return _without_layers(said, library, nodes) | _classic(lines, library, names)
    found = parse_log(lines, names)
    _verify_branches(nodes)
    if found.layers is None:
        raise BuildError(
            "build log: expected the builder's list of layers, got none",
            hint="this version of the library prints another log: facts would be guesses",
        )
    eliminated = set(found.eliminated or ())
    return {
        "layers": [_layer(layer) for layer in found.kernels],
        "other_layers": len(found.layers) - len(found.kernels),
        "nodes": [_node(node, found, eliminated) for node in nodes],
        "fused_layers": len(found.fused),
        "eliminated": list(found.eliminated or ()),
        "unmapped_layers": [layer.name for layer in found.kernels if not layer.onnx_layers],
        "strangers": list(found.strangers),
        "quantized_ops_count": len(found.quantized),
        "reformats_count": len(found.reformats),
        "fingerprint": f"sha256:{found.layer_fingerprint}",
        "tactics": DEFERRED if library.features.cross_target else MEASURED,
        "memory": _memory(found),
        **_said(found.said),
        **({} if library.features.cross_target else _classic(lines, library, names)),
    }


def _verify_branches(nodes: Sequence[onnx.NodeProto]) -> None:
    """Refuse a branch whose name could imitate a part of the list of layers."""
    branches = [a.g.name for node in nodes for a in node.attribute if a.HasField("g")]
    unsafe = [name for name in branches if name and not is_plain_name(name)]
    if unsafe:
        raise ParseError(
            f"build log: expected names that cannot imitate a line, got {unsafe[0][:160]!r}",
            hint="rename the branches before the build (canonicalisation does)",
        )


def _classic(lines: Sequence[LogLine], library: Library, names: Sequence[str]) -> dict[str, Any]:
    """Tactics that the library timed, as ``classic``; nothing where its log is of no such form.

    Only layers that were timed are in it: it is no list of the engine's layers and takes no place of one.
    """
    try:
        log = parse_classic(lines)
    except ParseError:
        return {}
    named = {name for layer in log.layers for name in layer.nodes}
    facts = classic_facts(log) | {"library": f"{library.backend} {library.version}"}
    return {"classic": facts | {"strangers": sorted(named - set(names))}}


def _is_readable(lines: Sequence[LogLine], names: Sequence[str]) -> bool:
    try:
        return parse_log(lines, names).layers is not None
    except ParseError:
        return False


def _without_layers(found: LogFacts, library: Library, nodes: Sequence[onnx.NodeProto]) -> dict[str, Any]:
    reason = f"the log of {library.backend} {library.version} lists its layers in no form that is known here"
    known = [
        {"name": n.name, "op": n.op_type, "domain": n.domain, "layers": [], "fate": "not told"} for n in nodes
    ]
    return {
        "layers": [], "other_layers": None, "nodes": known, "fused_layers": None, "eliminated": [],
        "unmapped_layers": [], "strangers": [], "quantized_ops_count": None, "reformats_count": None,
        "fingerprint": None, "tactics": reason, "layers_reason": reason, "memory": _memory(found),
        **_said(found.said),
    }  # fmt: skip


def _memory(found: LogFacts) -> dict[str, int | None]:
    return {name: found.memory_bytes(line) for name, line in _MEMORY.items()} | {
        "device_peak_bytes": found.device_peak_bytes,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _layer(layer: Layer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "op": layer.type,
        "nodes": list(dict.fromkeys(layer.onnx_layers)),
        **({"within": list(layer.within)} if layer.within else {}),
        "mapped": bool(layer.onnx_layers),
        "fused": layer.is_fused,
        "quantized": layer.is_quantized,
        "reformat": layer.is_reformat,
        "precision": _datatype(layer.precision),
        "tactic": layer.tactic,
        "inputs": [_tensor(tensor) for tensor in layer.inputs],
        "constants": [_tensor(tensor) for tensor in layer.constants],
        "outputs": [_tensor(tensor) for tensor in layer.outputs],
    }


def _tensor(tensor: LayerTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": _datatype(tensor.datatype or None),
        "shape": list(tensor.dimensions),
        "format": tensor.format.strip(),
    }


def _datatype(word: str | None) -> str | None:
    return None if word is None else _DATATYPES.get(word, word)


def _node(node: onnx.NodeProto, found: LogFacts, eliminated: set[str]) -> dict[str, Any]:
    assert found.layers is not None
    owners = [found.layers[position] for position in found.layers_of.get(node.name, ())]
    return {
        "name": node.name,
        "op": node.op_type,
        "domain": node.domain,
        "layers": [layer.name for layer in owners if layer.is_kernel],
        "fate": "named by no layer" if node.name in eliminated else "computed",
    }


def _said(said: Said) -> dict[str, Any]:
    warnings = Counter(issue.kind for issue in said.warnings)
    return {
        "builder_phases": [
            {
                "phase": name.removesuffix(":").removesuffix(" time").removesuffix(" completed in"),
                "ns": int(Decimal(s) * 10**9),
            }
            for name, s in said.phases
        ],
        "placements": [],
        "warnings": [{"kind": kind, "count": n} for kind, n in sorted(warnings.items())],
        "log": {
            "messages": said.messages,
            "unknown": said.unknown,
            "kinds": [{"kind": kind, "count": n} for kind, n in sorted(said.kinds.items())],
        },
    }
