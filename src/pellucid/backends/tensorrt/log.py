"""The builder's messages: every one goes to the build log, and a log that fails fails the build.

The library prints and swallows an exception that a logger raises, so it is kept here and raised
by ``verify``. Some warnings mean that the engine computes something else than the model says:
they fail the build.
"""

from __future__ import annotations

import time
from typing import Any, Final

from pellucid.core.tensorrt_messages import fatal_kind, issue_kind
from pellucid.core.words import shortened
from pellucid.errors import BuildError, PrecisionError
from pellucid.ports import BuildLog, LogLine

_SEVERITIES: Final = {0: "FATAL", 1: "ERROR", 2: "WARNING", 3: "INFO", 4: "VERBOSE"}
TURING_HINT: Final = (
    "sm75 has no FP32 matrix kernels: say precision: fp16 in the recipe (with its reason and a validation "
    "set), or build for target sm80 or later"
)
_HINTS: Final = (
    ("FP32 GEMM is not supported",
     TURING_HINT),
    ("within workspace limit",
     "raise workspace_bytes in the recipe: no kernel fits into it"),
    ("bad_alloc",
     "the builder ran out of memory: raise limits.memory_bytes in the recipe"),
    ("Resource temporarily unavailable",
     "the builder ran out of memory or threads: raise limits.memory_bytes in the recipe"),
    ("Plugin not found",
     "this builder has no such operator: replace it at export, or build with onnxruntime"),
    ("plugin registry",
     "this builder has no such operator: replace it at export, or build with onnxruntime"),
    ("dilations other than 1",
     "this builder pools without dilation only: replace it at export, or build with onnxruntime"),
    ("Failed to convert ONNX date type",
     "this builder has no such datatype (text, complex): convert it outside, or build with onnxruntime"),
    ("UNSUPPORTED_NODE",
     "this builder has no such operator: replace it at export, or build with onnxruntime"),
    ("Pre-opset 7 broadcasting",
     "export the model at opset 17"),
    ("shiftIsAllZeros",
     "quantise symmetrically: ActivationSymmetric=True, WeightSymmetric=True, type QInt8"),
    ("has type Int32 but must have type FP8",
     "quantise with QuantizeBias=False: the bias stays FP32"),
    ("tScope.getType() != ScopeType::kUNDEFINED",
     "fold the If node away at export: constant conditions and fixed shapes"),
    ("unidirectional broadcastable",
     "give the slope as many axes as its input at export, 1 where it is shared: [C, 1, 1]"),
    ("Failed to open file",
     "embed the weights: onnx.save(onnx.load(path), path, save_as_external_data=False)"),
    ("no optimization profile has been defined",
     "name the batch sizes in the recipe: buckets"),
    ("contradictory IOptimizationProfile",
     "give each variable axis a name of its own at export"),
    ("is missing dimensions in profile",
     "every input needs the batch axis first"),
    ("Dimension mismatch for tensor input and profile",
     "fix every axis but the batch at export"),
    ("MODEL_DESERIALIZE_FAILED",
     "the file is no ONNX, or cut short: export it again"),
)  # fmt: skip
_ERRORS_MAX: Final = 4  # limit: messages quoted in one error


class Messages:
    """Hands every message on and keeps what decides the build."""

    def __init__(self, sink: BuildLog, backend: str) -> None:
        self._sink = sink
        self._backend = backend
        self._failure: BaseException | None = None
        self._fatal: list[str] = []
        self.errors: list[str] = []
        self.lines: list[LogLine] = []

    def take(self, severity: int, message: str) -> None:
        """Keep one message; never raises."""
        # whatever is raised here would be printed and swallowed by the library
        try:
            line = LogLine(_SEVERITIES[severity], time.time_ns(), message, self._backend)
            self.lines.append(line)
            if line.severity in ("FATAL", "ERROR") and issue_kind(message) != "noise":
                self.errors.append(message)
            if fatal_kind(message) is not None:
                self._fatal.append(message)
            self._sink(line)
        except BaseException as error:
            self._failure = self._failure or error

    def verify(self) -> None:
        """Fail when a message was lost, or when one says that the engine is not the model.

        Raises:
            BuildError: The log's writer raised.
            PrecisionError: The builder took another type than the model has.
        """
        if self._failure is not None:
            raise BuildError(
                f"build log: expected every message to be kept, got {type(self._failure).__name__}: "
                f"{self._failure!s:.200}",
                hint="a build whose log is not whole is not kept",
            ) from self._failure
        if self._fatal:
            raise PrecisionError(
                f"{self._backend}: expected the types of the model, got {len(self._fatal)} replaced by INT8: "
                f"{_one_line(self._fatal[0])}",
                hint="quantise to symmetric INT8 (type QInt8, zero point 0 of type int8)",
            )

    def reason(self) -> tuple[str, str]:
        """The builder's own errors in one line, and what to change where that is known."""
        words = "; ".join(_one_line(text) for text in self.errors[:_ERRORS_MAX]) or "no word of why"
        return words, hint_for("\n".join(self.errors))


def make_logger(trt: Any, messages: Messages) -> Any:
    """The library's own kind of logger, with ``messages`` behind it; must live as long as its builder."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            messages.take(int(severity), message)

    return Logger()


def hint_for(words: str) -> str:
    """What to change, where these words of the library are known; else ``""``."""
    return next((hint for text, hint in _HINTS if text in words), "")


def _one_line(text: str) -> str:
    return shortened(text, 400)
