"""Precision as data: the graph gets the types that the recipe asks for, before the builder sees it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from pellucid.build import precision_graph as graph
from pellucid.build.precision_graph import Precise
from pellucid.build.precision_quantised import quantised, verify_float, verify_for_tensorrt
from pellucid.core.words import counted

DOCUMENT: Final = "precision.json"
FORMAT: Final = "pellucid-precision/1"
_MODULES: Final = {"int8": "precision_int8", "fp16": "precision_half", "bf16": "precision_half"}


def load(recipe: Mapping[str, Any]) -> None:
    """Import what gives a graph the recipe's precision, before there is a graph."""
    if recipe["precision"] in _MODULES:
        importlib.import_module(f"pellucid.build.{_MODULES[recipe['precision']]}")


def apply(model: bytes, recipe: Mapping[str, Any], files: Mapping[str, bytes]) -> Precise:
    """The graph in the recipe's precision; twice the same arguments give the same bytes.

    Args:
        model: The canonical graph.
        files: What the recipe names, by role: ``calibration``, ``artefact``.

    Raises:
        PrecisionError: The graph cannot have it.
        RecipeError, FormatError: The calibration set does not fit.
    """
    said = recipe["precision"]
    precise = _int8(model, recipe, files) if said == "int8" else _float(model, said)
    if recipe["backend"] != "onnxruntime":
        verify_for_tensorrt(graph.read(precise.model))
    return precise


def _int8(model: bytes, recipe: Mapping[str, Any], files: Mapping[str, bytes]) -> Precise:
    from pellucid.build.precision_int8 import as_precise, quantise

    found = quantise(model, recipe, files)
    precise = as_precise(model, found)
    precise.documents[DOCUMENT] = _document("int8", quantised=found.nodes, scheme=found.scheme)
    return precise


def _float(model: bytes, said: str) -> Precise:
    source = graph.read(model)
    if said == "fp32":
        came = quantised(source)
        words = f"precision: {counted(len(came), 'operator')} of the graph came quantised with the model"
        notes = [words] if came else []
        return Precise(model, documents={DOCUMENT: _document("fp32", quantised=came)}, notes=notes)
    from pellucid.build.precision_half import BF16, FP16, halve

    half = FP16 if said == "fp16" else BF16
    verify_float(source, said)
    halved = halve(source, half)
    after = graph.encode(halved.model)
    subnormal = sum(item["subnormal"] + item["flushed"] for item in halved.initialisers)
    notes = (
        [f"precision: {counted(subnormal, 'weight')} below what {said} holds in full precision, or 0 in it"]
        if subnormal
        else []
    )
    kept = f"{counted(len(halved.kept), 'operator')} of the graph kept in FP32"
    detail = f"{said} inside, inputs and outputs as they were; {kept}"
    document = _document(said, initialisers=halved.initialisers, kept_fp32=halved.kept)
    return Precise(
        after, [graph.step(f"precision.{said}", model, after, detail)], {DOCUMENT: document}, notes
    )


def _document(precision: str, **parts: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"initialisers": [], "kept_fp32": [], "quantised": [], "scheme": None}
    return {"format": FORMAT, "precision": precision} | empty | parts
