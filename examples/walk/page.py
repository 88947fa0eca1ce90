"""The page that the demo leaves: what was proven, in one HTML file without scripts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pellucid.evidence.report_html import answer_rows

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; padding: 0 1rem }
h1, h2 { font-weight: 600 } h2 { margin-top: 2.5rem } .dim { opacity: .7 }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; overflow-wrap: anywhere }
td, th { border-bottom: 1px solid #8883 } th { white-space: nowrap }
"""


def write(path: Path, facts: Mapping[str, Any], proven: Sequence[Sequence[str]]) -> None:
    """Write the page; the call key, the decision and its confidence are all it says about a person."""
    answers, replay = facts["answers"], facts["replay"]
    story = [(s["time"], s["text"], str(s["index"])) for s in answers["story"]]
    row = replay["rows"][0]
    again = [
        ("verdict", f"{replay['verdict']}, in bucket {replay['bucket']}, slot {replay['slot']}"),
        ("recorded", f"{row['label']} ({row['confidence']})"),
        ("replayed", f"{row['replayed_label']} ({row['replayed_confidence']}); input {row['input']}"),
        ("signed report", f"reports/{Path(replay['report']).name}"),
    ]
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'><title>A refused loan</title>",
        f"<style>{STYLE}</style><h1>A refused loan, and what can be proven about it</h1>",
        f"<p>Call {html.escape(answers['call'])}, entry {answers['index']} of the log.</p>",
        "<h2>What happened</h2>", table(("when", "what", "entry"), story),
        "<h2>The regulator's four</h2>", table((), [(a, str(b)) for a, b in answer_rows(answers["four"])]),
        "<h2>The same again</h2>", table((), again),
        "<h2>What was proven</h2>", table(("what", "how", "where"), proven),
        "<h2>What was tried, and how it was caught</h2>", table(("attempt", "reason"), facts["caught"]),
        "<p class='dim'>Integrity is shown, not truth: that this is what was recorded, by whom, and",
        "unchanged. bundle.zip holds the evidence; its verify.py checks it with nothing but Python.</p>",
    ]  # fmt: skip
    path.write_text("\n".join(parts) + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; without columns, the first cell of each row is its head."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = []
    for first, *rest in rows:
        tag = "td" if columns else "th"
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
        body.append(f"<tr><{tag}>{html.escape(first)}</{tag}>{cells}</tr>")
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{''.join(body)}</table>"
