"""Layers of a TensorRT engine: kernels, what the builder says went into them, and their identity.

What the builder leaves open (a library kernel that the GPU of the run chooses) stays open here.
Source: spec/tensorrt-facts.md, sections 4 and 5; requirement B4.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

DEFERRED: Final = "deferred to run time"
STUB: Final = "__myelin_CASK_STUB"  # a library kernel that the GPU of the run chooses

_GENERATED: Final = re.compile(r"__myl_(?P<ops>[A-Za-z0-9]+)_0x[0-9a-f]{32}(?:_vec)?")
_MOVES: Final = re.compile(r"(?:Move|Tran|Resh|Repl|Conc|Slic|Cast|Sqz|Unsq)+")
_PLUMBING: Final = {"signal", "wait", "shape_call", "jmp", "cjmp"}  # order and control, no arithmetic
_CAN_BE_QUANTIZED: Final = {"correlation", "gemm", "deconv", "maxpool", "avgpool", "pool", "runtime_fusion"}
_QUANTIZED: Final = {"Int8", "FP8", "Int4", "FP4"}
_LOWEST_FIRST: Final = ("FP4", "Int4", "FP8", "Int8", "UInt8", "BFloat16", "Half", "Float",
                        "Int32", "Int64", "Bool")  # fmt: skip


class LayerTensor(msgspec.Struct, frozen=True):
    """A tensor at the edge of a layer.

    Attributes:
        datatype: The builder's word (``Float``, ``Half``, ``Int8``), or ``""`` where it printed none.
        format: Memory layout, the builder's words.
    """

    name: str
    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    datatype: str
    format: str

    def identity(self) -> list[Any]:
        """What the fingerprint takes of it: all but the name."""
        return [list(self.dimensions), list(self.strides), self.datatype, self.format]


class Layer(msgspec.Struct, frozen=True):
    """One line of the dump.

    Attributes:
        printed_tactic: ``TacticName``, else ``TacticValue``, else ``""``, as printed.
        onnx_layers: ONNX nodes the builder names for it, in its order, as printed in brackets.
        within: ``If`` nodes that they stand in.
    """

    name: str
    type: str
    inputs: tuple[LayerTensor, ...]
    constants: tuple[LayerTensor, ...]
    outputs: tuple[LayerTensor, ...]
    printed_tactic: str
    onnx_layers: tuple[str, ...]
    within: tuple[str, ...] = ()

    @property
    def tactic(self) -> str:
        """The kernel; ``deferred to run time`` where the builder left it open; ``""`` where it names none."""
        return DEFERRED if self.printed_tactic == STUB else self.printed_tactic

    @property
    def is_kernel(self) -> bool:
        """It computes or moves data; not a signal, wait, jump or shape call."""
        return self.type not in _PLUMBING

    @property
    def is_fused(self) -> bool:
        """More than one ONNX node went into it; the ``If`` that it stands in is a place, no part of it."""
        return len(set(self.onnx_layers) - set(self.within)) > 1

    @property
    def is_quantized(self) -> bool:
        """It computes on an Int8, FP8, Int4 or FP4 input or constant."""
        taken = {tensor.datatype for tensor in self.inputs + self.constants}
        return self.type in _CAN_BE_QUANTIZED and bool(taken & _QUANTIZED)

    @property
    def is_reformat(self) -> bool:
        """It only moves, reshapes or casts."""
        generated = _GENERATED.fullmatch(self.printed_tactic)
        moves = generated is not None and _MOVES.fullmatch(generated["ops"]) is not None
        return self.type == "copy" or (self.type == "kgen" and moves)

    @property
    def precision(self) -> str | None:
        """Lowest datatype of its inputs; nothing without inputs or with a datatype unknown here."""
        ranks = [_rank(tensor.datatype) for tensor in self.inputs]
        return None if not ranks or None in ranks else _LOWEST_FIRST[min(r for r in ranks if r is not None)]


class BoundTensor(msgspec.Struct, frozen=True):
    """An input or output of the engine, with its optimisation profiles (min, opt, max) if it has any."""

    name: str
    mode: str
    datatype: str
    dimensions: tuple[int, ...]
    profiles: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...]


def fingerprint(layers: Iterable[Layer]) -> str:
    """Identity of what was built, the same for any order of the builder's memory; hexadecimal SHA-256.

    It does not see weights, TF32 or the target: the model's digest and the recipe bind those.
    Source: spec/tensorrt-facts.md, section 4.
    """
    value = [
        [
            layer.type,
            [tensor.identity() for tensor in layer.inputs],
            [tensor.identity() for tensor in layer.constants],
            [tensor.identity() for tensor in layer.outputs],
            layer.printed_tactic,
            sorted(layer.onnx_layers),
        ]
        for layer in layers
    ]
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def _rank(datatype: str) -> int | None:
    return _LOWEST_FIRST.index(datatype) if datatype in _LOWEST_FIRST else None
