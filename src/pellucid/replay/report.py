"""The replay report: a signed in-toto statement, and the same for people.

Subjects are the call's entry and the package, so that a report can never be passed off for another
call. Numbers are text: nothing that is signed holds a float. Source: spec/replay.md, section 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from pellucid import __version__
from pellucid.core.divergence import BIT_EXACT, VERDICTS, WITHIN_BOUND, RowResult
from pellucid.core.dsse import sign_bundle
from pellucid.core.statement import PAYLOAD_TYPE, REPLAY, make_statement
from pellucid.ports import Signer
from pellucid.replay.replay import ReplayResult

MEANING: Final = {
    BIT_EXACT: "The same package, given the same input in the same bucket and slot, gave the same bits.",
    WITHIN_BOUND: "Not the same bits, but within the measured bound, and the decision is the same.",
    VERDICTS[2]: "The recorded answer did not come back.",
}


def make_predicate(result: ReplayResult, *, time: str) -> dict[str, Any]:
    """What the report says, JSON of the canonical profile."""
    return {
        "bound": {"absolute": _decimal(result.bound.absolute), "ulp": result.bound.ulp},
        "bucket": result.bucket,
        "call": result.call,
        "cause": result.cause,
        "causes": [
            {"effect": c.effect, "factor": c.factor, "recorded": c.recorded, "tried": c.tried}
            for c in result.causes
        ],
        "changes": [{"now": c.now, "recorded": c.recorded, "what": c.what} for c in result.changes],
        "entry": result.entry_digest,
        "environment": dict(result.environment),
        "package": result.package,
        "rows": [_row(row) for row in result.rows],
        "slot": result.slot,
        "time": time,
        "tool": {"name": "pellucid", "version": __version__},
        "verdict": result.verdict,
    }


def _row(row: RowResult) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "confidence": row.confidence,
        "input": "matches its commitment",  # otherwise there is no replay
        "label": row.label,
        "reason": row.reason,
        "replayed_confidence": row.replayed_confidence,
        "replayed_label": row.replayed_label,
        "row": row.row,
        "verdict": row.verdict,
    }
    if row.difference is not None:
        shown["absolute"] = _decimal(row.difference.absolute)
        shown["ulp"] = row.difference.ulp
    return shown


def _decimal(value: float) -> str:
    return format(value, ".9g")


def sign_report(predicate: dict[str, Any], signer: Signer) -> bytes:
    """Signed report: Sigstore bundle of the statement, by the replayer's key."""
    subjects = [(predicate["call"], predicate["entry"]), ("package", predicate["package"])]
    return sign_bundle(PAYLOAD_TYPE, make_statement(subjects, REPLAY, predicate), signer)


# -- for people -----------------------------------------------------------------------------------


def render_report(predicate: dict[str, Any]) -> bytes:
    """The report as one HTML file; nothing in it is loaded from anywhere."""
    verdict = predicate["verdict"]
    tone = {BIT_EXACT: "good", WITHIN_BOUND: "mid"}.get(verdict, "bad")
    parts = [
        f"<h1>Replay of call <code>{escape(predicate['call'])}</code></h1>",
        f'<p class="lead">Run again on {escape(predicate["time"])} in an isolated process.</p>',
        f'<div class="verdict {tone}"><b>{escape(verdict)}</b><br>{escape(MEANING[verdict])}',
        f"<br>{escape(predicate['cause'])}</div>" if predicate["cause"] else "</div>",
        "<h2>Rows</h2>",
        _table(("row", "recorded", "replayed", "apart", "verdict"), map(_row_cells, predicate["rows"])),
        "<h2>What was the same</h2>",
        _table(("", ""), _same(predicate)),
        "<h2>What differs in the environment</h2>",
        _changes(predicate["changes"]),
    ]
    if predicate["causes"]:
        rows = [[c["factor"], c["recorded"], c["tried"], c["effect"]] for c in predicate["causes"]]
        parts += ["<h2>What was tried</h2>", _table(("factor", "recorded", "tried", "effect"), rows)]
    parts.append(
        "<footer>The signed statement beside this page is the report; this page only renders it. "
        "It shows that an answer can or cannot be repeated, not that the answer is right.</footer>"
    )
    style = files("pellucid.replay").joinpath("report.css").read_text()
    head = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>Replay: {escape(verdict)}</title><style>{style}</style></head><body><main>",
    ]
    return "".join([*head, *parts, "</main></body></html>"]).encode()


def _row_cells(row: dict[str, Any]) -> list[str]:
    recorded = _answer(row["label"], row["confidence"])
    replayed = _answer(row["replayed_label"], row["replayed_confidence"])
    apart = f"{row['absolute']} ({row['ulp']} ulp)" if "absolute" in row else "not measured"
    return [
        str(row["row"]),
        recorded,
        replayed,
        apart,
        row["verdict"] + (f": {row['reason']}" if row["reason"] else ""),
    ]


def _answer(label: str | None, confidence: str | None) -> str:
    return "no decision" if label is None else f"{label} ({confidence})"


def _same(predicate: dict[str, Any]) -> list[list[str]]:
    return [
        ["input", "each row opens the commitment in the entry"],
        ["entry", predicate["entry"]],
        ["package", predicate["package"]],
        ["bucket and slot", f"{predicate['bucket']} rows, first slot {predicate['slot']}, zeros beside"],
        ["bound", f"{predicate['bound']['absolute']} absolute or {predicate['bound']['ulp']} ulp"],
    ]


def _changes(changes: Sequence[dict[str, str]]) -> str:
    if not changes:
        return "<p>Nothing: it is the recorded environment.</p>"
    return _table(("what", "recorded", "now"), [[c["what"], c["recorded"], c["now"]] for c in changes])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>{f"<tr>{top}</tr>" if top else ""}{body}</table></div>'
