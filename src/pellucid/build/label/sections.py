"""What the label says, in the order a reader asks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pellucid.build.label import measured
from pellucid.build.label.calibrated import calibration
from pellucid.build.label.composition import composition
from pellucid.build.label.content import (
    NOT_MEASURED,
    Command,
    Figure,
    Section,
    Table,
    counted,
    cut,
    in_words,
    listed,
    size,
    told,
)
from pellucid.build.label.plots import Bar, bars
from pellucid.core.environment import backend_version

_LEVELS: Final = {"portable": "same bits on machines of one kind", "native": "same bits on one machine"}
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_MEMORY: Final = (  # name in facts, words, what it is
    ("weights_bytes", "Weights"),
    ("activations_bytes", "Activations"),
    ("scratch_bytes", "Scratch, largest"),
    ("device_peak_bytes", "Weights and activations on the device"),
    ("peak_rss_bytes", "Peak memory while built"),
)


def sections(
    recipe: Mapping[str, Any],
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
    digests: Mapping[str, str],
    meaning: Mapping[str, Any],
    *,
    documents: Mapping[str, Any] = _NOTHING,
    drawing: str = "",
) -> list[Section]:
    """The whole label.

    Args:
        documents: Parsed documents of the package by path: ``precision.json``,
            ``calibration/ranges.json``, ``calibration/manifest.json``, ``accuracy.json``,
            ``representativeness.json``, ``model/steps.json``; what is absent was not measured.
        drawing: What ``build.drawing.draw`` gave, or ``""``.
    """
    warnings = _warnings(recipe, facts, documents)
    return [
        _glance(recipe, facts, environment, documents, warnings),
        _purpose(recipe, meaning),
        warnings,
        composition(facts, drawing),
        measured.precision(recipe, facts, documents),
        measured.accuracy(recipe, documents),
        *calibration(recipe, documents),
        _hardware(recipe, environment, facts),
        _origin(recipe, environment, digests, documents),
        _checks(digests),
    ]


def _glance(
    recipe: Mapping[str, Any],
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
    documents: Mapping[str, Any],
    warnings: Section,
) -> Section:
    found = documents.get("accuracy.json") or {}
    flips, samples = found.get("flips"), found.get("samples")
    changed = NOT_MEASURED if flips is None or not samples else f"{flips:,} of {samples:,}"
    return Section(
        "At a glance",
        [
            ("Precision", recipe["precision"].upper() + (" with TF32" if recipe["tf32"] else "")),
            ("Runs on", f"{recipe['target']}, {recipe['backend']} {backend_version(environment)}"),
            ("Operators became layers", f"{len(facts['nodes']):,} \u2192 {len(facts['layers']):,}"),
            ("Weights", size(facts["memory"].get("weights_bytes"))),
            ("Decisions changed by the build", changed),
            ("Warnings", "none" if warnings.tone == "calm" else str(len(warnings.rows))),
        ],
        tone="glance",
    )


def _purpose(recipe: Mapping[str, Any], meaning: Mapping[str, Any]) -> Section:
    decision = meaning.get("decision") or {}
    rows = [
        ("Model", f"{recipe['name']} {recipe['version']}"),
        ("Purpose", meaning.get("description") or "not said"),
    ]
    if decision.get("kind") == "threshold":
        low, high = decision["labels"]
        rows.append(("Decision", f"{high} from {decision['threshold']} on, otherwise {low}"))
    elif decision:
        rows.append(("Decision", "the largest score of: " + ", ".join(decision["labels"])))
    else:
        rows.append(("Decision", "none stated: the model gives numbers only"))
    features = listed(meaning, "features")
    if not features:
        return Section("What it does", rows)
    rows.append(("Inputs", f"{len(features):,}, listed here in their order"))
    shown, rest = cut(features, "meaning.json")
    table = Table(
        "Inputs in the order of the columns", ("Column", "Name", "Unit"),
        [(str(at), told(f, "name"), str(f.get("unit") or "not said")) for at, f in enumerate(shown, 1)],
        (0,), rest,
    )  # fmt: skip
    return Section("What it does", rows, tables=[table])


# -- warnings -------------------------------------------------------------------------------------


def _warnings(recipe: Mapping[str, Any], facts: Mapping[str, Any], documents: Mapping[str, Any]) -> Section:
    rows = [("Builder's warning", f"{w['kind']} ({counted(w['count'], 'time')})") for w in facts["warnings"]]
    rows += [("Note", note) for note in facts["notes"]]
    rows += [
        ("Chosen with a reason", f"{r['choice']}: {r['reason']} ({r['reviewer']})") for r in recipe["reasons"]
    ]
    rows += measured.warnings(documents)
    if recipe["backend"].startswith("tensorrt"):
        rows.append(("Bits", "nobody measured yet whether this engine repeats its bits on its GPU"))
    if not rows:
        words = "The builder gave no warning, and nothing that needs a reason was chosen."
        return Section("Warnings", [("Warnings", "none")], words, tone="calm")
    return Section("Warnings", rows, tone="warning")


# -- where it runs --------------------------------------------------------------------------------


def _hardware(recipe: Mapping[str, Any], environment: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    device, memory = environment["device"], facts["memory"]
    built_on = f"{device['name']} ({', '.join(device['isa'])})" if device else "a machine without a GPU"
    level = _LEVELS[recipe["serve_level"]]
    if recipe["backend"].startswith("tensorrt"):
        level = "the GPU picks its library kernels when it loads the engine; nobody measured its bits yet"
    rows = [
        ("Target", f"{recipe['target']}, {recipe['backend']} {backend_version(environment)}"),
        ("Built on", built_on),
        ("Threads", str(recipe["threads"])),
        ("Batch buckets", ", ".join(map(str, recipe["buckets"])) or "none: each call runs alone"),
        ("Serve level", f"{recipe['serve_level']}: {level}"),
        ("Speed", "not in this label: measured on the device, see attestations/"),
    ]
    sizes = [(words, memory.get(name)) for name, words in _MEMORY]
    table = Table("Memory", ("Of what", "Size"), [(words, size(count)) for words, count in sizes], (1,))
    said = [Bar(words, float(count), text=size(count)) for words, count in sizes if count is not None]
    plot = bars("Memory", said, name="memory") if said else ""
    figures = [Figure(plot, "Memory as the builder and the system report it")] if plot else []
    return Section("Where it runs", rows, figures=figures, tables=[table])


# -- where it comes from --------------------------------------------------------------------------


def _origin(
    recipe: Mapping[str, Any],
    environment: Mapping[str, Any],
    digests: Mapping[str, str],
    documents: Mapping[str, Any],
) -> Section:
    commit = environment["commit"]
    state = {True: " with changes", False: "", None: ""}[environment["dirty"]]
    rows = [
        ("Source ONNX", digests["source"]),
        *([("Compiled graph", digests["compiled"])] if "compiled" in digests else []),
        ("Engine", digests["engine"]),
        ("Build log", digests["log"]),
        ("Commit", f"{commit}{state}" if commit else "not known"),
        ("Follows version", recipe["previous"] or "none: the first"),
    ]
    rows += [
        (words, str(environment[key]))
        for key, words in (("image", "Container image"), ("who", "Built by"), ("ci", "CI run"))
        if environment.get(key) and isinstance(environment[key], str)
    ]
    found = documents.get("model/steps.json") or ()
    steps = listed(found, "steps") if isinstance(found, Mapping) else listed({"steps": found}, "steps")
    if not steps:
        return Section("Where it comes from", rows)
    table = Table(
        "What was done to the graph before the builder got it",
        ("Step", "What", "Graph after"),
        [(told(s, "step"), in_words(s.get("detail")), str(s.get("after") or "not said")) for s in steps],
    )
    return Section("Where it comes from", rows, tables=[table])


def _checks(digests: Mapping[str, str]) -> Section:
    return Section(
        "How to check it",
        [
            ("Everything at once", Command("pellucid verify FOLDER --trust TRUST")),
            (
                "Without our software",
                Command(
                    "model_signing verify key FOLDER --public_key builder.pem --signature FOLDER/model.sig"
                ),
            ),
            ("The engine alone", Command("sha256sum FOLDER/engine/*")),
            ("which must print", digests["engine"][7:]),
            ("This page", "is one of the signed files: manifest.json lists label.html and label.md"),
            ("Measured on the device", "attestations/, each signed by itself, added after this label"),
        ],
        "Believe keys that reached you on another way than this package, never keys inside it.",
    )
