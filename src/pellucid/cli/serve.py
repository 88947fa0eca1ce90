"""``pellucid serve``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pellucid.cli.output import json_option, site_option

if TYPE_CHECKING:
    from pellucid.app.serve import Door, Ready


@click.command()
@site_option
@click.option("--host", default=None, help="Address to listen on (default: serving.host).")
@click.option("--port", type=click.IntRange(0, 65_535), default=None, help="Port; 0 takes a free one.")
@click.option("--ready-fd", type=int, default=None, help="Write one JSON line to this descriptor when ready.")
@click.option("--worker-channel", type=int, default=None, hidden=True)
@json_option
def command(
    site_path: Path | None,
    host: str | None,
    port: int | None,
    ready_fd: int | None,
    worker_channel: int | None,
    *,
    as_json: bool,
) -> None:
    """Serve admitted packages and record every call.

    Stops on SIGTERM or Ctrl+C: answers in flight leave, the epoch is closed, the ledger is written.
    Messages go to stderr; stdout belongs to the structured log.
    """
    from pellucid.app.serve import print_report, serve, serve_worker
    from pellucid.app.site import open_site

    if worker_channel is not None:
        serve_worker(open_site(site_path), _door(), worker_channel, report=print_report)
        return

    def ready(now: Ready) -> None:
        line = json.dumps(now.record())
        if ready_fd is not None:
            os.write(ready_fd, line.encode() + b"\n")
            os.close(ready_fd)
        print_report(line if as_json else _welcome(now))

    serve(open_site(site_path), _door(), host=host, port=port, ready=ready, report=print_report)
    sys.stdout.flush()


def _door() -> Door:
    """The HTTP door.

    Raises:
        MissingExtraError: Its libraries are not installed.
    """
    from pellucid.errors import MissingExtraError

    try:
        from pellucid.servers.http.serve import UvicornDoor
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"pellucid serve needs the library {error.name!r}, which is not installed",
            hint="pip install 'pellucid[standard]'",
        ) from error
    return UvicornDoor()


def _welcome(now: Ready) -> str:
    models = ", ".join(now.models)
    refused = f"; NOT served: {', '.join(now.refused)}" if now.refused else ""
    return f"serving {models} on http://{now.host}:{now.port} as {now.source}{refused}"
