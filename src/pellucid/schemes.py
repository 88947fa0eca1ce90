"""One table of strings a kind: name or URI scheme to class. Reading it imports nothing."""

from __future__ import annotations

import importlib
from typing import Any, Final

from pellucid.errors import MissingExtraError, UnknownSchemeError

BACKENDS: Final = {
    "onnxruntime": "pellucid.backends.onnxruntime.adapter:OnnxRuntimeBackend",
    "reference": "pellucid.backends.reference:ReferenceBackend",
    "tensorrt": "pellucid.backends.tensorrt.classic:TensorRtClassicBackend",
    "tensorrt-rtx": "pellucid.backends.tensorrt.rtx:TensorRtRtxBackend",
}
KEYS: Final = {"file": "pellucid.keys.file:FileKey"}
STORES: Final = {
    "file": "pellucid.stores.file:FileStore",
    "memory": "pellucid.stores.memory:MemoryStore",
}
INDEXES: Final = {"sqlite": "pellucid.indexes.sqlite:SqliteIndex"}
SINKS: Final = {
    "stdout": "pellucid.sinks.stdout:StdoutSink",
    "file": "pellucid.sinks.file:FileSink",
}
ANCHORS: Final[dict[str, str]] = {}
KINDS: Final = {
    "backend": BACKENDS, "key": KEYS, "store": STORES, "index": INDEXES, "sink": SINKS, "anchor": ANCHORS,
}  # fmt: skip
EXTRAS: Final = {  # module that is missing -> extra that brings it
    "onnxruntime": "standard", "onnx": "standard", "numpy": "standard", "uvicorn": "standard",
    "httptools": "standard", "uvloop": "standard", "cyclonedx": "standard",
    "tensorrt_rtx": "tensorrt", "tensorrt": "tensorrt-classic", "opentelemetry": "otel",
}  # fmt: skip


def load(kind: str, name: str) -> Any:
    """Class registered for a name or scheme.

    Raises:
        UnknownSchemeError: Not in the table.
        MissingExtraError: Its library is not installed; the hint is the exact command.
    """
    table = KINDS[kind]
    if name not in table:
        raise UnknownSchemeError(
            f"{kind} {name!r:.40}: expected one of {', '.join(sorted(table)) or 'none yet'}"
        )
    module, _, attribute = table[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(missing)
        if extra is None:
            raise
        raise MissingExtraError(
            f"{kind} {name!r} needs the library {missing!r}, which is not installed",
            hint=f"pip install 'pellucid[{extra}]'",
        ) from error


def from_uri(kind: str, uri: str) -> Any:
    """Adapter of a URI such as ``sqlite:PATH``."""
    scheme = uri.partition(":")[0]
    return load(kind, scheme).from_uri(uri)
