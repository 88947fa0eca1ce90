"""The label: one page a person can read, like a medicine's leaflet; Markdown and plain HTML.

Every value from outside is escaped; the HTML loads nothing from anywhere.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core.qualification import backend_version

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.3rem .5rem;"
    "text-align:left;vertical-align:top;overflow-wrap:anywhere}th{width:14rem;font-weight:600}"
)


_LEVELS: Final = {"portable": "same bits on machines of one kind", "native": "same bits on one machine"}


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its rows of name and value."""

    title: str
    rows: Sequence[tuple[str, str]]


def sections(
    recipe: Mapping[str, Any],
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
    digests: Mapping[str, str],
    meaning: Mapping[str, Any],
) -> list[Section]:
    """What the label says, in the order a reader asks."""
    return [
        Section("What it does", _purpose(recipe, meaning)),
        Section("What it is made of", _composition(facts)),
        Section("Precision and error", _precision(recipe, facts)),
        Section("Where it runs", _hardware(recipe, environment, facts)),
        Section("Warnings", _warnings(recipe, facts)),
        Section("Where it comes from", _origin(recipe, environment, digests)),
    ]


def _purpose(recipe: Mapping[str, Any], meaning: Mapping[str, Any]) -> list[tuple[str, str]]:
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
    features = [str(f.get("name")) for f in meaning.get("features", [])]
    if features:
        rows.append((f"Inputs ({len(features)})", ", ".join(features)))
    return rows


def _composition(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    layers, nodes = facts["layers"], facts["nodes"]
    rows = [
        ("Source operations", str(len(nodes))),
        ("Engine layers", str(len(layers))),
        ("Fused layers", str(facts["fused_layers"])),
        ("Removed or folded", ", ".join(facts["eliminated"]) or "none"),
        ("Quantised operations", str(facts["quantized_ops_count"])),
    ]
    rows += [
        (f"{layer['name']} ({layer['op']})", " + ".join(layer["nodes"])) for layer in layers if layer["fused"]
    ]
    if "tactics" in facts:
        rows.append(("Kernels", facts["tactics"]))
    return rows


def _precision(recipe: Mapping[str, Any], facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    count = facts["quantized_ops_count"]
    came = f"; {count:,} quantised operations, as the source model has them" if count else ""
    return [
        (
            "Precision",
            recipe["precision"].upper() + (" with TF32" if recipe["tf32"] else ", TF32 off") + came,
        ),
        ("Error against the source", "not in this label: measured on the device, see attestations/"),
    ]


def _hardware(
    recipe: Mapping[str, Any], environment: Mapping[str, Any], facts: Mapping[str, Any]
) -> list[tuple[str, str]]:
    device, memory = environment["device"], facts["memory"]
    built_on = f"{device['name']} ({', '.join(device['isa'])})" if device else "a machine without a GPU"
    level = _LEVELS[recipe["serve_level"]]
    if recipe["backend"].startswith("tensorrt"):
        level = "the GPU picks its library kernels when it loads the engine; nobody measured its bits yet"
    buckets = ", ".join(map(str, recipe["buckets"])) or "none: each call runs alone"
    return [
        ("Target", f"{recipe['target']}, {recipe['backend']} {backend_version(environment)}"),
        ("Built on", built_on),
        ("Threads", str(recipe["threads"])),
        ("Batch buckets", buckets),
        ("Serve level", f"{recipe['serve_level']}: {level}"),
        (
            "Weights",
            _size(memory["weights_bytes"]) if memory.get("weights_bytes") is not None else "not said",
        ),
        *_device_memory(memory),
        ("Peak memory while built", _size(memory["peak_rss_bytes"])),
    ]


def _device_memory(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    peak = memory.get("device_peak_bytes")
    return [] if peak is None else [("Weights and activations on the device", _size(peak))]


def _warnings(recipe: Mapping[str, Any], facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("Builder's warning", f"{w['kind']} ({w['count']} times)") for w in facts["warnings"]]
    rows += [("Note", note) for note in facts["notes"]]
    rows += [
        ("Chosen with a reason", f"{r['choice']}: {r['reason']} ({r['reviewer']})") for r in recipe["reasons"]
    ]
    return rows or [("Warnings", "none")]


def _origin(
    recipe: Mapping[str, Any], environment: Mapping[str, Any], digests: Mapping[str, str]
) -> list[tuple[str, str]]:
    commit = environment["commit"]
    state = {True: " with changes", False: "", None: ""}[environment["dirty"]]
    return [
        ("Source ONNX", digests["source"]),
        ("Engine", digests["engine"]),
        ("Build log", digests["log"]),
        ("Commit", f"{commit}{state}" if commit else "not known"),
        ("Follows version", recipe["previous"] or "none: the first"),
    ]


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{count:,} bytes"


def markdown(title: str, parts: Sequence[Section]) -> bytes:
    """The label as Markdown."""
    lines = [f"# {_inline(title)}", ""]
    for part in parts:
        lines += [f"## {part.title}", "", "| | |", "|---|---|"]
        lines += [f"| {_inline(name)} | {_inline(value)} |" for name, value in part.rows]
        lines.append("")
    return "\n".join(lines).encode()


def _inline(text: str) -> str:
    """One line of plain text: nothing in it can become structure."""
    flat = " ".join(re.sub(r"[\x00-\x1f\x7f\u0080-\u009f\u2028\u2029]", " ", text).split())
    return re.sub(r"([\\`*\[\]<>|#!~])", r"\\\1", flat)


def page(title: str, parts: Sequence[Section]) -> bytes:
    """The label as one HTML file."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    for part in parts:
        rows = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in part.rows)
        body.append(f"<h2>{html.escape(part.title)}</h2><table>{rows}</table>")
    head = (
        f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
    )
    whole = f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'
    return whole.encode()
