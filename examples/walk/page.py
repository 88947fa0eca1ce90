"""The page that the demo leaves: what was proven, in one HTML file without scripts."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; padding: 0 1rem }
h1 { font-weight: 600 } h2 { margin-top: 2.5rem; font-weight: 600 }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0 }
td, th { border-bottom: 1px solid #8883 }
pre { font: 14px/1.4 ui-monospace, monospace; overflow-x: auto; background: #8881; padding: 1rem }
"""


def write(path: Path, facts: Mapping[str, Any], proven: Sequence[Sequence[str]]) -> None:
    """Write the page; nothing about a person stands in it but the call key."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>A refused loan</title>",
        f"<style>{STYLE}</style><h1>A refused loan, and what can be proven about it</h1>",
        "<p>Integrity is shown, not truth: that this is what was recorded, by whom, and unchanged.</p>",
        "<h2>What was proven</h2>",
        table(("what", "how", "where"), proven),
        "<h2>What was tried, and how it was caught</h2>",
        table(("attempt", "reason"), facts["caught"]),
        "<h2>The regulator's four</h2>",
        f"<pre>{text(facts['answers'])}</pre>",
        "<h2>The replay</h2>",
        f"<pre>{text(facts['replay'])}</pre>",
    ]
    path.write_text("\n".join(parts))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def text(value: Any) -> str:
    return html.escape(json.dumps(value, indent=1, ensure_ascii=False))
