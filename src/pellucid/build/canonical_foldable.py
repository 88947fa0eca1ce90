"""Whether folding could change a graph at all; where not, the library that folds is never loaded.

Errs to one side: every operator that any rule of that library looks at counts as something to fold.
Tests hold the answer against the library itself, byte for byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid.build.canonical_opset import STANDARD

if TYPE_CHECKING:
    import onnx

_KEPT: Final = frozenset({  # no rule removes or rewrites these when data flows through them
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Elu", "Erf", "Exp", "Flatten", "Gemm",
    "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "LeakyRelu", "LogSoftmax", "MatMul", "MaxPool",
    "PRelu", "Relu", "Selu", "Sigmoid", "Softmax", "Softplus", "Softsign", "Sqrt", "Tanh",
})  # fmt: skip
_KEPT_OF_TWO: Final = frozenset(
    {"Add", "Concat", "Max", "Min", "Mul", "Sum"}
)  # of data only: x + 0 is removed


def nothing_to_fold(model: onnx.ModelProto) -> bool:
    """True only where folding would give the same bytes."""
    graph = model.graph
    fixed = {t.name for t in graph.initializer}
    inputs = {value.name for value in graph.input}
    if model.functions or graph.sparse_initializer or fixed & inputs:
        return False
    made = set(inputs)
    read = {value.name for value in graph.output}
    for node in graph.node:
        taken = [name for name in node.input if name]
        is_data = [name in made for name in taken]
        known = (node.op_type in _KEPT and any(is_data)) or (node.op_type in _KEPT_OF_TWO and all(is_data))
        if node.domain not in STANDARD or not known:
            return False
        made.update(node.output)
        read.update(taken)
    # what nothing reads is removed; an output that the model gives straight away is left to the library
    return all(any(name in read for name in node.output) for node in graph.node) and fixed <= read
