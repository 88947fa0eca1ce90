"""RESULTS.md out of what was measured last: the comparison (peers.json), then the ledger (results.json)."""

from __future__ import annotations

import json
from pathlib import Path

import render_ledger
import render_peers

PARTS = {"peers.json": render_peers.render, "results.json": render_ledger.render}


def write(out: Path) -> str:
    """Write the page and its plots into a folder that holds at least one of the two; the page's text."""
    parts = [
        "# Results\n\nWritten by `make bench`. Read the ratios: absolute numbers belong to one machine "
        "and one hour.\n"
    ]
    for name, render in PARTS.items():
        if (out / name).exists():
            parts.append(render(json.loads((out / name).read_bytes())))
    if (out / "peers.json").exists():
        (out / "plots").mkdir(exist_ok=True)
        for name, text in render_peers.plots(json.loads((out / "peers.json").read_bytes())).items():
            (out / "plots" / name).write_text(text)
    text = "\n".join(parts)
    (out / "RESULTS.md").write_text(text)
    return text
