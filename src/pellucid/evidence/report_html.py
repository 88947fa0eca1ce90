"""Pages for people: the page inside a bundle, and the report of a case.

One file each, everything inlined, nothing loaded from anywhere. What a page says comes from the
exporter; the page lets its reader check it against keys that did not come with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from pellucid.core.entry import Opening, parse_entry
from pellucid.evidence.chain import Chain
from pellucid.evidence.story import short_time, tell_story

ROWS_SHOWN_MAX: Final = 16  # a page is for reading; all rows are in the openings
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_COMMAND: Final = "python3 -I verify.py bundle.zip --trust DIR"
_LIMITS: Final = (
    "It shows that these entries are what was recorded, when and by whom, and that nothing was changed "
    "since. It does not show that what was recorded is true, that a model is fair, or that a call which "
    "bypassed the recorded server did not happen."
)
_CHECK: Final = f"""
<section class="check" id="check-yourself"><h2>Check it yourself</h2>
<p>This page believes nobody. Choose the keys that <em>you</em> were given on another way, and the bundle
this page came in. Everything happens in this browser; the page cannot reach any network.</p>
<label for="trust">Your trust files: log.vkey, exporter.pem, and seen.checkpoint if you have one</label>
<input type="file" id="trust" multiple>
<label for="bundle">The bundle (.zip)</label>
<input type="file" id="bundle" accept=".zip">
<br><button type="button" id="check">Check the bundle</button>
<p id="verdict" role="status" aria-live="polite"></p><ul id="result"></ul>
<p class="hint">The full check, packages, replays and completeness included, needs only Python 3.11:</p>
<pre>{_COMMAND}</pre></section>"""


def render_case_page(
    chain: Chain, answers: Mapping[str, Any] | None, members: Mapping[str, bytes], *, created: str
) -> bytes:
    """``index.html`` of a case bundle."""
    lead = (
        f"Exported {short_time(created)} with {len(members)} other files, for readers who trust none of us."
    )
    body = [*_case(chain, answers), _CHECK, _entries(chain)]
    return _page(f"Evidence for call {chain.call.entry.id}", lead, body, script=True)


def render_case_report(
    chain: Chain, answers: Mapping[str, Any] | None, checked: Sequence[str], *, created: str
) -> bytes:
    """A case as one page to read or print; ``checked`` is what the verifier found to hold."""
    items = "".join(f'<li class="holds"><b>holds</b>{escape(text)}</li>' for text in checked)
    proven = f'<section><h2>What was checked</h2><ul id="result">{items}</ul></section>'
    lead = f"Written {short_time(created)}. The bundle beside this page lets anyone check it."
    body = [*_case(chain, answers), proven, _entries(chain)]
    return _page(f"Report on call {chain.call.entry.id}", lead, body, script=False)


def render_period_page(
    entries: Sequence[bytes], start: int, members: Mapping[str, bytes], *, created: str
) -> bytes:
    """``index.html`` of a period bundle."""
    first, last = parse_entry(entries[0]), parse_entry(entries[-1])
    rows = [
        ("entries", f"{start:,} to {start + len(entries) - 1:,}, none left out"),
        ("from", short_time(first.time)),
        ("to", short_time(last.time)),
        *((f"of type {kind}", f"{count:,}") for kind, count in sorted(_count(entries).items())),
    ]
    lead = (
        f"Exported {short_time(created)} with {len(members)} other files, for readers who trust none of us."
    )
    body = [f"<section><h2>What is in it</h2>{_table(rows)}</section>", _CHECK]
    return _page(f"Evidence for entries {start:,} to {start + len(entries) - 1:,}", lead, body, script=True)


def _count(entries: Sequence[bytes]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for raw in entries:
        kind = parse_entry(raw).type
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _case(chain: Chain, answers: Mapping[str, Any] | None) -> list[str]:
    parts = [_decision(chain), _story(chain)]
    if answers is not None:
        parts.append(f"<section><h2>The regulator's four</h2>{_table(answer_rows(answers))}</section>")
    parts.append(f"<section><h2>Where it ran</h2>{_table(_facts(chain))}</section>")
    return parts


def _decision(chain: Chain) -> str:
    data = chain.call.entry.data
    outputs = sorted((o for o in chain.openings if o.kind == "output"), key=lambda o: o.row)
    if data["outcome"] != "answered":
        said = (
            f"<p><strong>{escape(data['outcome'])}</strong></p><p>{escape(str(data.get('error') or ''))}</p>"
        )
    elif not outputs:
        gone = "What it answered can no longer be opened; its proofs hold."
        said = f"<p><strong>answered</strong></p><p>{gone}</p>"
    else:
        said = "".join(_row(output, len(outputs) > 1) for output in outputs[:ROWS_SHOWN_MAX])
    who = f"{data.get('model', 'no model')} {data.get('version', '')}".strip()
    when = short_time(chain.call.entry.time)
    hint = f'<p class="hint">{escape(who)}, {when}</p>'
    return f'<section class="answer"><h2>The answer</h2>{said}{hint}</section>'


def _row(output: Opening, is_numbered: bool) -> str:
    number = f" (row {output.row})" if is_numbered else ""
    label, confidence = escape(output.label or "no decision"), escape(output.confidence or "none")
    return f"<p><strong>{label}</strong> with confidence {confidence}{number}</p>"


def _story(chain: Chain) -> str:
    items = ""
    for said in tell_story(chain):
        text = f"{escape(said['text'])} <small>entry {said['index']:,}</small>"
        items += f"<li><time>{escape(said['time'])}</time><span>{text}</span></li>"
    return f'<section><h2>What happened</h2><ol class="story">{items}</ol></section>'


def answer_rows(answers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The four answers as names and words."""
    image, calibration, signature = answers["image"], answers["calibration"], answers["signature"]
    precision, words = answers["precision"], {True: ", TF32 on", False: ", TF32 off"}
    said = calibration["from"] is not None
    period = f"{calibration['from']} to {calibration['to']}" if said else "times not said"
    chosen = f"{calibration['selection'] or 'selection not said'}, {period}, set {calibration['digest']}"
    return [
        ("image digest", image["digest"] or f"none: {image['reason']}"),
        ("precision", precision["value"] + words.get(precision["tf32"], "") + _mixed(precision)),
        ("calibration", calibration["reason"] or chosen),
        ("signature", f"{signature['check']} (key {signature['key'][:16]}, package {signature['package']})"),
    ]


def _mixed(precision: Mapping[str, Any]) -> str:
    count = precision["quantised_operations"]
    came = "" if precision["value"] == "INT8" else ", as the source model has them"
    return f"; {count:,} of the engine's layers compute quantised{came}" if count else ""


def _facts(chain: Chain) -> list[tuple[str, str]]:
    data = chain.call.entry.data
    names = ("package", "engine", "policy", "config", "environment", "precision", "label_variance")
    rows = [(name.replace("_", " "), str(data[name])) for name in names if data.get(name) is not None]
    count = f"{data['row_count']} row" + ("s" if data["row_count"] != 1 else "")
    rows.append(("bucket and slot", f"{count} at slot {data['slot']} of a bucket of {data['bucket']}"))
    stages = ", ".join(f"{k.removesuffix('_ns')} {v / 1e6:.3f} ms" for k, v in data["stages"].items())
    return [*rows, ("time spent", stages)]


def _entries(chain: Chain) -> str:
    blocks = []
    for leaf in chain.leaves:
        pretty = json.dumps(json.loads(leaf.entry.raw), indent=2, ensure_ascii=False)
        title = f"entry {leaf.index:,}: {leaf.entry.type}"
        blocks.append(f"<details><summary>{escape(title)}</summary><pre>{escape(pretty)}</pre></details>")
    return f"<section><h2>The entries</h2>{''.join(blocks)}</section>"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{_value(value)}</td></tr>" for name, value in rows)
    return f'<div class="scroll"><table>{cells}</table></div>'


def _value(text: str) -> str:
    return f"<code>{escape(text)}</code>" if text.startswith("sha256:") else escape(text)


def _page(title: str, lead: str, body: Sequence[str], *, script: bool) -> bytes:
    room = files("pellucid.evidence")
    style = room.joinpath("page.css").read_text()
    code = f"<script>{room.joinpath('page.js').read_text()}</script>" if script else ""
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{style}</style></head>',
        f"<body><main><header><h1>{escape(title)}</h1><p>{escape(lead)}</p></header>",
        *body,
        f"<footer><p>{_LIMITS}</p></footer></main>{code}</body></html>\n",
    ]
    return "\n".join(parts).encode()
