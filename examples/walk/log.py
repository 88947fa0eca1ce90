"""Reads the log where it lies, like any client of C2SP tlog-tiles; checks nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pellucid.core.checkpoint import Checkpoint, parse_checkpoint
from pellucid.core.merkle.tile import TILE_WIDTH, decode_bundle, entries_path

Entries = list[bytes]


def read_log(ledger: Path) -> Entries:
    """Every entry below the published checkpoint."""
    size = published(ledger).size
    entries: Entries = []
    for n in range(-(-size // TILE_WIDTH)):
        width = min(TILE_WIDTH, size - n * TILE_WIDTH)
        entries += decode_bundle(bundle(ledger, n, width).read_bytes(), width)
    return entries


def published(ledger: Path) -> Checkpoint:
    """What the log says it is."""
    text, _, _ = (ledger / "checkpoint").read_text().partition("\n\n")
    return parse_checkpoint(text + "\n")


def bundle(ledger: Path, n: int, width: int) -> Path:
    path = ledger / entries_path(n, width)
    return path if path.is_file() else ledger / entries_path(n)


def position(entries: Entries, key: str) -> int:
    """Index of the entry with this key."""
    for index, raw in enumerate(entries):
        if json.loads(raw)["id"] == key:
            return index
    raise LookupError(f"expected an entry {key}, got none")


def read_log_of_any_size(ledger: Path) -> Entries:
    """Every entry in the bundles, whatever the checkpoint says."""
    entries: Entries = []
    for path in sorted((ledger / "tile" / "entries").rglob("*")):
        if path.is_file():
            width = int(path.name) if path.parent.name.endswith(".p") else TILE_WIDTH
            entries += decode_bundle(path.read_bytes(), width)
    return entries


def calls(ledger: Path) -> dict[str, dict[str, Any]]:
    """Answered calls: call key to the entry's data."""
    found = {}
    for raw in read_log(ledger) if (ledger / "checkpoint").is_file() else []:
        entry = json.loads(raw)
        if entry["type"] == "call" and entry["data"]["outcome"] == "answered":
            found[entry["id"]] = entry["data"]
    return found
