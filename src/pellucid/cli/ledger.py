"""``pellucid ledger``: look into the ledger, prove an entry, check all of it, erase a person."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, pairs, site_option, table, width_of, working

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.app.followers import FollowerState
    from pellucid.app.ledger import Ledger
    from pellucid.app.site import Site
    from pellucid.ledger.complete import Completeness
    from pellucid.ledger.fsck import FsckReport
    from pellucid.ports import Found


@click.group("ledger")
def command() -> None:
    """Show, get, prove, check and erase ledger entries."""


# -- looking --------------------------------------------------------------------------------------


@command.command("show")
@click.option("--type", "kind", default="", help="Only entries of this type.")
@click.option("--model", default="", help="Only this model.")
@click.option("--label", default="", help="Only this decision.")
@click.option("--outcome", default="", help="answered, failed, refused or unresolved.")
@click.option("--trace", default="", help="Only this trace id.")
@click.option("--subject", default="", help="Only this subject.")
@click.option("--since", default="", help="RFC 3339 time, UTC.")
@click.option("--until", default="", help="RFC 3339 time, UTC.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100_000))
@site_option
@json_option
def show(
    kind: str, model: str, label: str, outcome: str, trace: str, subject: str, since: str, until: str,
    limit: int, site_path: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """List entries, newest first."""
    from pellucid.app.ledger import open_ledger, settle
    from pellucid.app.site import open_site
    from pellucid.core.entry import TYPES
    from pellucid.errors import UsageError
    from pellucid.ports import Query

    if kind and kind not in TYPES:
        raise UsageError(f"type: expected one of {', '.join(sorted(TYPES))}, got {kind!r:.60}")
    site = open_site(site_path)
    query = Query(
        type=kind, model=model, label=label, outcome=outcome, trace=trace, subject=subject, limit=limit,
        since_ns=_time(since, 0), until_ns=_time(until, 2**63 - 1),
    )  # fmt: skip
    settle(site)
    with closing(open_ledger(site)) as ledger:
        found, size, origin = ledger.reader.find(query), ledger.reader.size(), ledger.reader.origin
    value = {"origin": origin, "size": size, "entries": [_found(row) for row in found]}

    def render(console: Console) -> None:
        title = f"{origin}: {len(found):,} of {size:,} entries"
        if not found:
            console.print(f"{title}. Values are compared exactly; times are UTC.", markup=False)
            return
        _render_found(console, title, [_cells(row) for row in found])

    emit(value, render, as_json=as_json)


def _time(text: str, default: int) -> int:
    from pellucid.core.times import parse_time

    return parse_time(text) if text else default


def _found(row: Found) -> dict[str, Any]:
    from pellucid.core.times import format_time

    value = {name: getattr(row, name) for name in row.__struct_fields__ if name != "time_ns"}
    return value | {"time": format_time(row.time_ns)}


def _cells(row: Found) -> tuple[str, ...]:
    from pellucid.core.times import format_time

    model = f"{row.model}:{row.version}" if row.model else ""
    outcome = f"{row.label} {row.confidence}".strip() or row.outcome  # a decision says it was answered
    time = format_time(row.time_ns)[:19].replace("T", " ")
    return str(row.index), time, row.type, row.key, model, outcome


def _render_found(console: Console, title: str, rows: list[tuple[str, ...]]) -> None:
    """A table where it fits; else two lines an entry: a key is copied, so that it is never broken."""
    columns = ("index", "time", "type", "key", "model", "outcome")
    built = table(title, columns, rows, whole=columns)
    if width_of(console, built) <= console.width:
        console.print(built)
        return
    console.print(f"{title}\n", markup=False)
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        head = "  ".join(text.ljust(size) for text, size in zip(row, wide, strict=False))
        console.print(f"{head}  {row[3]}", markup=False, soft_wrap=True)
        if any(row[4:]):
            console.print(f"{'':{wide[0]}}  {'  '.join(filter(None, row[4:]))}", markup=False, soft_wrap=True)


@command.command("status", short_help="Show how far the ledger is, and who follows.")
@site_option
@json_option
def status(site_path: Path | None, as_json: bool) -> None:
    """Show what is integrated and published, and which of index and sinks is how far behind, since when."""
    from pellucid.app.followers import ledger_state
    from pellucid.app.site import open_site

    state = ledger_state(open_site(site_path))
    followers = [_follower(each) for each in state.followers]
    value = {
        "integrated": state.integrated, "published": state.published, "backlog_bytes": state.backlog_bytes,
        "sequencing": state.is_sequencing, "followers": followers,
    }  # fmt: skip

    def render(console: Console) -> None:
        running = "a sequencer runs" if state.is_sequencing else "no sequencer runs"
        title = f"{state.integrated:,} entries, {state.published:,} published; {running}"
        columns = ("follower", "has", "behind", "since", "failing")
        rows = [tuple("" if item is None else item for item in each.values()) for each in followers]
        console.print(table(title, columns, rows, whole=("has", "behind", "since")))

    emit(value, render, as_json=as_json)


def _follower(each: FollowerState) -> dict[str, Any]:
    from pellucid.core.times import format_time

    since = None if each.since_ns is None else format_time(each.since_ns)
    return {
        "name": each.name, "position": each.position, "behind": each.behind, "since": since,
        "failing": each.failing or None,
    }  # fmt: skip


@command.command("get", short_help="Show one entry.")
@click.argument("key")
@click.option("--reveal", is_flag=True, help="Show what the vault holds as well; this is recorded.")
@site_option
@json_option
def get(key: str, reveal: bool, site_path: Path | None, as_json: bool) -> None:
    """Show one entry by its KEY or its index, and whether what opens it is held, erased, lost or none."""
    import json

    from pellucid.app.ledger import find_entry, open_ledger, record_event
    from pellucid.app.site import open_site

    site = open_site(site_path)
    index, key = find_entry(site, key)
    if reveal:
        record_event(site, "read", {"call": key, "what": "openings"})
    with closing(open_ledger(site)) as ledger:
        entry = json.loads(ledger.reader.entry(index))
        openings = ledger.reader.openings(key)
        value = {"index": index, "entry": entry, "openings": _openings(entry, ledger.vault.state(key))}
        value["erased"] = [_erasure(row, by) for row, by in ledger.vault.erasures(key)]
    if reveal:
        value["revealed"] = [_opening(opening) for opening in openings]

    def render(console: Console) -> None:
        rows = [("index", index), ("openings", value["openings"])]
        rows += [("erased", f"{each['rows']} under {each['by']}") for each in value["erased"]]
        rows += [(name, entry[name]) for name in ("id", "type", "time", "source")]
        rows += [pair for name, item in entry["data"].items() for pair in _flat(name, item)]
        console.print(pairs(f"Entry {index}", rows))
        for each in value.get("revealed", []):
            console.print(pairs("", [(name, item) for name, item in each.items() if item is not None]))

    emit(value, render, as_json=as_json)


def _openings(entry: dict[str, Any], state: str) -> str:
    """What the vault says; an entry that commits to nothing has nothing to lose."""
    commits = entry["type"] == "call" or "personal" in entry["data"]
    return state if commits or state != "lost" else "none"


def _flat(name: str, item: Any) -> list[tuple[str, str]]:
    """One line a value: members of an object by their own names, rows by their numbers."""
    if isinstance(item, dict) and item:
        return [pair for key, value in item.items() for pair in _flat(f"{name}.{key}", value)]
    if isinstance(item, list) and any(isinstance(each, dict) for each in item):
        return [pair for n, each in enumerate(item) for pair in _flat(f"{name}[{n}]", each)]
    return [(name, _short(item))]


def _erasure(row: int, by: str) -> dict[str, str]:
    names = {-2: "all rows", -1: "what belongs to no row"}
    return {"rows": names.get(row, f"row {row}"), "by": by}


def _short(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)


def _opening(opening: Any) -> dict[str, Any]:
    value = opening.value
    text = value.decode("utf-8", "replace") if value is not None and opening.row == -1 else None
    return {
        "kind": opening.kind, "row": opening.row, "value": text, "label": opening.label,
        "confidence": opening.confidence, "kept_bytes": len(value or b""), "key": opening.key.hex(),
        "digest": opening.digest.hex() if opening.digest else None,
    }  # fmt: skip


# -- proving and checking -------------------------------------------------------------------------


@command.command("prove", short_help="Prove that an entry is in the log.")
@click.argument("key")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=None,
              help="Folder for INDEX.tlog-proof and INDEX.json (the leaf's bytes).")  # fmt: skip
@site_option
@json_option
def prove(key: str, out: Path | None, site_path: Path | None, as_json: bool) -> None:
    """Prove that the entry KEY (or index) is in the log: a C2SP tlog-proof that others' tools verify."""
    from pellucid.app.ledger import find_entry, open_ledger
    from pellucid.app.site import open_site
    from pellucid.core.bundle import format_proof
    from pellucid.core.merkle.proof import verify_inclusion

    site = open_site(site_path)
    index, key = find_entry(site, key)
    with closing(open_ledger(site)) as ledger:
        reader = ledger.reader
        head, leaf = reader.head(), reader.entry(index)
        hashes = reader.inclusion_proof(index, head.size)
        verify_inclusion(reader.leaf_hash(index), index, head.size, hashes, head.root)
        proof = format_proof(index, hashes, reader.checkpoint())
    value: dict[str, Any] = {"index": index, "size": head.size, "root": head.root.hex()}
    value |= {"proof": proof.decode(), "entry": leaf.decode()}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{index:012d}.tlog-proof").write_bytes(proof)
        (out / f"{index:012d}.json").write_bytes(leaf)

    def render(console: Console) -> None:
        console.print(
            f"Entry {index:,} is in the tree of {head.size:,}: {len(hashes)} hashes lead to its root."
        )
        if out is None:
            console.out(proof.decode(), end="", highlight=False)
        else:
            console.print(f"Written: {out}/{index:012d}.tlog-proof and .json", soft_wrap=True)

    emit(value, render, as_json=as_json)


@command.command("complete")
@click.option("--from", "since", default="", help="RFC 3339 time, UTC (default: the beginning).")
@click.option("--to", "until", default="", help="RFC 3339 time, UTC (default: now).")
@site_option
@json_option
def complete_(since: str, until: str, site_path: Path | None, as_json: bool) -> int:
    """Show that nothing we numbered is missing. Exit 3 if something is."""
    from pellucid.app.site import open_site
    from pellucid.ledger.complete import complete

    site = open_site(site_path)
    with working("counting every number", as_json=as_json), closing(_settled(site)) as ledger:
        entries = ledger.reader.entries(0, ledger.reader.size())
        result = complete(entries, _time(since, 0), _time(until, 2**63 - 1))
    emit(_completeness(result), lambda console: _render_complete(console, result), as_json=as_json)
    return 0 if result.is_complete else 3


def _settled(site: Site) -> Ledger:
    from pellucid.app.ledger import open_ledger, settle

    settle(site)
    return open_ledger(site)


def _completeness(result: Completeness) -> dict[str, Any]:
    parts = [
        {
            "epoch": part.epoch, "worker": part.worker, "last": part.last, "highest": part.highest,
            "closed": len(part.closed), "unresolved": part.unresolved, "recovered": part.recovered,
            "not_closed": [list(pair) for pair in part.open],
        }
        for part in result.parts
    ]  # fmt: skip
    return {
        "complete": result.is_complete, "calls": result.calls, "findings": list(result.findings),
        "parts": parts, "gaps": list(result.gaps), "notes": list(result.notes), "limits": list(result.limits),
    }  # fmt: skip


def _render_complete(console: Console, result: Completeness) -> None:
    from rich.padding import Padding
    from rich.text import Text

    columns = ("epoch", "worker", "numbers", "entries", "unresolved", "state")
    rows = [
        (part.epoch, part.worker, f"1-{part.highest}" if part.highest else "none", len(part.closed),
         part.unresolved, "recovered" if part.recovered else "runs" if part.last is None else "ended")
        for part in result.parts
    ]  # fmt: skip
    console.print(table(f"{result.calls:,} calls in the period", columns, rows))
    for finding in result.findings:
        console.print(f"MISSING  {finding}", style="red", markup=False)
    for gap in result.gaps:
        console.print(f"gap      {gap['entry']}: {_short(gap)}", style="yellow", markup=False)
    for note in result.notes:
        console.print(f"note     {note}", markup=False)
    verdict = "Nothing we numbered is missing." if result.is_complete else "Something is missing."
    console.print(verdict, style="bold")
    console.print("What no log can know about itself:")
    for limit in result.limits:
        console.print(Padding(Text(limit), (0, 0, 0, 4)))


@command.command("fsck", short_help="Read and check every value again.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), default=None,
              help="Check this copy of a log's files instead of the site's ledger.")  # fmt: skip
@click.option("--vkey", default="", help="Verifier key of the log (default: the site's trust folder).")
@site_option
@json_option
def fsck_(folder: Path | None, vkey: str, site_path: Path | None, as_json: bool) -> int:
    """Read every value again: entries, tiles of all levels, root, signature. Exit 3 on any finding."""
    from pellucid.app.ledger import check_ledger, ledger_vkey, settle
    from pellucid.app.site import open_site
    from pellucid.core.note import parse_vkey

    if vkey:
        parse_vkey(vkey)  # a key mistyped is a question badly asked, no finding
    with working("reading every value again", as_json=as_json):
        if folder is None:
            site = open_site(site_path)
            settle(site)
            report = check_ledger(site.ledger_folder, vkey or ledger_vkey(site), site.config.ledger.origin)
        else:
            report = check_ledger(folder, vkey or _site_vkey(site_path), None)
    emit(_report(report), lambda console: _render_fsck(console, report), as_json=as_json)
    return 0 if report.is_clean else 3


def _site_vkey(site_path: Path | None) -> str:
    from pellucid.app.ledger import ledger_vkey
    from pellucid.app.site import open_site
    from pellucid.errors import NotFoundError

    try:
        return ledger_vkey(open_site(site_path))
    except NotFoundError as error:
        raise NotFoundError(
            error.message, hint="name the log's key with --vkey, or its site with --site"
        ) from None


def _report(report: FsckReport) -> dict[str, Any]:
    findings = [{"place": finding.place, "reason": finding.reason} for finding in report.findings]
    return {
        "clean": report.is_clean, "size": report.size, "entries": report.entries, "tiles": report.tiles,
        "calls": report.calls, "findings": findings,
    }  # fmt: skip


def _render_fsck(console: Console, report: FsckReport) -> None:
    console.print(
        f"Read {report.entries:,} entries ({report.calls:,} calls) and {report.tiles:,} tiles and bundles "
        f"of a tree of {report.size:,}."
    )
    for finding in report.findings:
        console.print(f"FINDING  {finding}", style="red", markup=False, soft_wrap=True)
    if report.is_clean:
        console.print("Every value is as it was signed.", style="bold green")


# -- erasing, rebuilding, sequencing --------------------------------------------------------------


@command.command("erase", short_help="Erase a call, rows of it, or a person.")
@click.argument("key", required=False, default="")
@click.option("--row", "rows", type=click.IntRange(0), multiple=True, help="Only this row (repeatable).")
@click.option("--subject", default="", help="All calls of this subject instead of one KEY.")
@click.option("--rule", required=True, help="Under which rule, for example 'GDPR Art. 17'.")
@click.option("--reason", required=True, help="Why; stands in the entry in the clear, so name no person.")
@site_option
@json_option
def erase_(
    key: str,
    rows: tuple[int, ...],
    subject: str,
    rule: str,
    reason: str,
    site_path: Path | None,
    as_json: bool,
) -> None:
    """Shred what opens a call (KEY), some of its rows, or all calls of a subject. Proofs keep holding."""
    from pellucid.app.ledger import erase
    from pellucid.app.site import open_site

    site = open_site(site_path)
    done = erase(site, call=key, rows=list(rows), subject=subject, rule=rule, reason=reason)
    rotate_s = site.config.ledger.rotate_s
    value = {
        "erasure": done.entry, "call": key or None, "rows": list(rows), "calls": done.calls,
        "journal_gone_within_s": rotate_s,
    }  # fmt: skip

    def render(console: Console) -> None:
        what = f"{'Rows of ' if rows else ''}{done.calls:,} call{'' if done.calls == 1 else 's'}"
        console.print(f"{what} erased under {done.entry}. Every proof still holds.", markup=False)
        console.print(f"A running server's journal lets go of its copy within {rotate_s:g} s.")

    emit(value, render, as_json=as_json)


@command.command("index", short_help="Make the search index again.")
@site_option
@json_option
def index_(site_path: Path | None, as_json: bool) -> None:
    """Throw the search index away and make it again from the ledger and the vault."""
    from pellucid.app.ledger import rebuild_index
    from pellucid.app.site import open_site

    count = rebuild_index(open_site(site_path))
    emit({"entries": count}, lambda console: console.print(f"{count:,} entries indexed."), as_json=as_json)


@command.command("sequence", hidden=True)
@site_option
def sequence(site_path: Path | None) -> None:
    """Integrate what is recorded until standard input closes (the server's own child)."""
    from pellucid.app.ledger import run_sequencer
    from pellucid.app.site import open_site

    run_sequencer(open_site(site_path))
