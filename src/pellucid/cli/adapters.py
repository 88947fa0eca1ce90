"""``pellucid adapters``: what can be plugged in."""

from __future__ import annotations

from typing import Any

import click

from pellucid.cli.output import emit, json_option, table


@click.command("adapters")
@json_option
def command(as_json: bool) -> None:
    """List backends, keys, stores, indexes, sinks and anchors, and what each still needs."""
    from pellucid import schemes
    from pellucid.errors import MissingExtraError

    rows: list[tuple[str, str, str]] = []
    for kind, names in schemes.KINDS.items():
        for name in names:
            try:
                schemes.load(kind, name)
                state = "ready"
            except MissingExtraError as error:
                state = error.hint
            rows.append((kind, name, state))
    value: list[dict[str, Any]] = [{"kind": k, "name": n, "state": s} for k, n, s in rows]
    emit(value, lambda c: c.print(table("Adapters", ("kind", "name", "state"), rows)), as_json=as_json)
