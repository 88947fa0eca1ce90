"""Sinks: followers that send field selections elsewhere. One file an adapter; the line is here.

A line is one JSON object in ASCII, under the names operators know. Everything from outside is a
string value: nothing from a request can become structure, a second line or a terminal command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from pellucid.core.entry import Entry, Formed, Opening, parse_trusted
from pellucid.errors import ConfigError, FormatError

ALIASES: Final = {"execution_time_ms": "inference_time_ms"}
FIELDS: Final = (
    "timestamp", "trace_id", "client_ip", "model_name", "model_version", "input_size", "input_hash",
    "output_label", "confidence", "inference_time_ms", "precision_mode", "gpu_device",
)  # fmt: skip
SILENT: Final = ("batch",)  # its calls say the same


def parse_fields(text: str) -> tuple[str, ...]:
    """Field selection of a comma-separated list; empty means all.

    Raises:
        ConfigError: A name that no line has.
    """
    chosen = tuple(name.strip() for name in text.split(",") if name.strip()) or FIELDS
    unknown = [name for name in chosen if name not in FIELDS and name not in ALIASES]
    if unknown:
        raise ConfigError(
            f"sink fields: expected of {', '.join((*FIELDS, *ALIASES))}, got {', '.join(unknown):.120}"
        )
    return chosen


def parse_sink_uri(uri: str) -> tuple[str, dict[str, str]]:
    """Path and options of ``scheme:PATH?fields=a,b&...``.

    Raises:
        ConfigError: An unknown option.
    """
    path, _, query = uri.partition(":")[2].partition("?")
    options = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    unknown = sorted(set(options) - {"fields", "position"})
    if unknown:
        raise ConfigError(f"sink {uri:.80}: expected options fields, position, got {', '.join(unknown)}")
    return path, options


def format_line(index: int, formed: Formed, fields: Sequence[str]) -> str | None:
    """Line of an entry, without its newline; ``None`` for entries that give none.

    ``index``, ``type`` and ``call`` always stand in it: redelivery is recognised by them.
    """
    if formed.type in SILENT:
        return None
    entry = parse_trusted(formed.entry)
    values = _values(entry, formed.openings)
    chosen = {name: values.get(ALIASES.get(name, name)) for name in fields}
    if entry.type != "call":
        chosen = {name: value for name, value in chosen.items() if value is not None}
    return _dump({"index": index, "type": entry.type, "call": entry.id, **chosen})


def format_tombstone(key: str) -> str:
    """Line that tells every reader to drop the personal values of an entry."""
    return _dump({"type": "tombstone", "call": key})


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _values(entry: Entry, openings: Sequence[Opening]) -> dict[str, Any]:
    data, said = entry.data, _said(openings)
    outputs = sorted((o.row, o) for o in openings if o.kind == "output")
    values = {
        "timestamp": data.get("accepted", entry.time),
        "trace_id": data.get("trace") or said.get("trace_id"),
        "client_ip": said.get("address"),
        "model_name": data.get("model"),
        "model_version": data.get("version"),
        "input_size": data.get("input_bytes"),
        "input_hash": _one_or_all([row.get("input") for row in data.get("rows", [])]) or _root(data),
        "output_label": _one_or_all([o.label for _, o in outputs]),
        "confidence": _one_or_all([_number(o.confidence) for _, o in outputs]),
        "precision_mode": data.get("precision"),
        "gpu_device": data.get("device"),
    }
    if entry.type == "call":
        values["inference_time_ms"] = data["stages"]["infer_ns"] / 1e6
    return values


def _said(openings: Sequence[Opening]) -> dict[str, str]:
    return {
        o.kind: o.value.decode("utf-8", "replace") for o in openings if o.row == -1 and o.value is not None
    }


def _root(data: dict[str, Any]) -> str | None:
    tree = data.get("rows_tree")
    return f"rfc6962:{tree['root']}" if tree else None


def _number(text: str | None) -> float | None:
    return float(text) if text is not None else None


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values or None


def read_position(path: Path) -> int:
    """Number in a position file; 0 when there is none.

    Raises:
        FormatError: Not a number.
    """
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return 0
    if not text.isdecimal():
        raise FormatError(f"{path.name}: expected a number, got {text!r:.40}")
    return int(text)


def write_position(path: Path, position: int) -> None:
    """Remember a position; a crash leaves the old or the new one."""
    write_text(path, f"{position}\n")


def write_text(path: Path, text: str) -> None:
    """Put a small file in place of an older one; who reads it finds one of both, whole."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text)
    os.replace(draft, path)
