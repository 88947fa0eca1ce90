"""``pellucid inspect``: what is inside a package, verified where there is a trust, and said so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, pairs, site_option, table

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.core.trust import TrustedPackage


_NAMES = {  # what a name of the specification counts
    "quantized_ops_count": "quantized_ops_count (engine layers)", "source_nodes": "source_nodes (as given)",
    "nodes": "nodes (of the graph that the builder got)",
}  # fmt: skip


@click.command("inspect")
@click.argument("package")
@click.option("--trust", "trust_path", type=click.Path(path_type=Path, file_okay=False), default=None,
              help="Folder with the keys to believe (default: the site's).")  # fmt: skip
@site_option
@json_option
def command(package: str, trust_path: Path | None, site_path: Path | None, as_json: bool) -> None:
    """Show what is inside PACKAGE, after verifying it: an archive, a folder, NAME:VERSION or a digest."""
    from pellucid.app.load import verify
    from pellucid.app.site import open_site, read_trust

    site = open_site(site_path) if trust_path is None or not Path(package).exists() else None
    trust = read_trust(trust_path) if trust_path is not None else None
    found = verify(site, package, trust=trust).package
    emit(_value(found), lambda console: _render(console, found), as_json=as_json)


def _value(package: TrustedPackage) -> dict[str, Any]:
    manifest = package.manifest
    return {
        "folder": package.folder, "package": package.digest, "archive": package.archive or None,
        "name": package.name, "version": package.version, "previous": manifest.previous,
        "created": manifest.created, "backend": manifest.backend, "target": manifest.target,
        "signer": package.signer, "engine": package.engine_digest,
        "files": [
            {"path": f.path, "size": f.size, "digest": f.digest, "role": f.role} for f in manifest.files
        ],
        "recipe": package.recipe, "meaning": package.meaning, "metadata": package.metadata,
        "facts": summarise(package.facts), "label_variance": package.label_variance,
        "qualifications": [
            {"path": q.path, "key": q.key, "passed": q.passed, "label": q.label, "predicate": q.predicate}
            for q in package.qualifications
        ],
        "approvals": [
            {"kind": a.kind, "role": a.role, "reason": a.reason, "approved": a.approved,
             "expires": a.expires, "rolls_back_from": a.rolls_back_from, "key": a.key}
            for a in package.approvals
        ],
        "findings": [finding.record() for finding in package.findings],
    }  # fmt: skip


def summarise(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts with long lists replaced by their length: the whole is in ``facts.json``."""
    return {
        key: f"{len(value)} items" if isinstance(value, list) and len(value) > 8 else value
        for key, value in facts.items()
    }


def _render(console: Console, package: TrustedPackage) -> None:
    value = _value(package)
    head = ("package", "name", "version", "previous", "created", "backend", "target", "signer", "engine")
    console.print(pairs(package.folder, [(key, value[key] or "-") for key in head]))
    rows = [(f.role, f.path, f"{f.size:,}", f.digest[:19] + "...") for f in package.manifest.files]
    console.print(table("Signed files", ("role", "path", "bytes", "digest"), rows))
    for title in ("recipe", "meaning", "metadata", "facts"):
        if value[title]:
            console.print(
                pairs(title.capitalize(), [(_NAMES.get(k, k), _short(v)) for k, v in value[title].items()])
            )
    _render_attestations(console, package)


def _render_attestations(console: Console, package: TrustedPackage) -> None:
    for q in package.qualifications:
        accuracy = q.predicate["accuracy"]
        rows = [("file", q.path), ("passed", _short(q.passed)), ("variance", q.label), ("key", q.key[:16])]
        rows += [
            (key, _short(accuracy[key])) for key in ("samples", "top1", "flips", "kl_mean") if key in accuracy
        ]
        console.print(pairs("Qualification", rows))
    if not package.qualifications:
        console.print("Not qualified: no device measured it.")
    approvals = [(a.kind, a.role, a.approved, a.reason) for a in package.approvals]
    if approvals:
        console.print(table("Approvals", ("kind", "role", "approved", "reason"), approvals))
    for finding in package.findings:
        console.print(f"note: {finding.text()}", markup=False)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else text[:197] + "..."
