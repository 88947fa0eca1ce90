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
    from pellucid.app.listening import Door, SideDoor
    from pellucid.app.serve import Ready
    from pellucid.app.site import Site
    from pellucid.app.tls import Tls
    from pellucid.errors import MissingExtraError
    from pellucid.servers.http.crowd import Crowd


@click.command()
@site_option
@click.option("--host", default=None, help="Address to listen on (default: serving.host).")
@click.option("--port", type=click.IntRange(0, 65_535), default=None, help="Port; 0 takes a free one.")
@click.option(
    "--grpc-port",
    type=click.IntRange(-1, 65_535),
    default=None,
    help="Port for gRPC; 0 takes a free one, -1 leaves it out (default: serving.grpc_port).",
)
@click.option("--ready-fd", type=int, default=None, help="Write one JSON line to this descriptor when ready.")
@click.option("--worker-channel", type=int, default=None, hidden=True)
@click.option("--worker-control", type=int, default=None, hidden=True)
@json_option
def command(
    site_path: Path | None,
    host: str | None,
    port: int | None,
    grpc_port: int | None,
    ready_fd: int | None,
    worker_channel: int | None,
    worker_control: int | None,
    *,
    as_json: bool,
) -> None:
    """Serve admitted packages and record every call.

    Stops on SIGTERM or Ctrl+C: answers in flight leave, the epoch is closed, the ledger is written.
    Messages go to stderr; stdout belongs to the structured log.
    """
    from pellucid.app.serve import print_report, serve, serve_worker
    from pellucid.app.site import open_site
    from pellucid.app.tls import open_tls

    site = open_site(site_path)
    tls, crowd = open_tls(site, print_report), _crowd(site)
    if worker_channel is not None and worker_control is not None:
        grpc_port = -1 if grpc_port is None else grpc_port
        beside = _beside(site, host, grpc_port, handed=True, tls=tls, crowd=crowd)
        door = _door(tls, crowd)
        serve_worker(site, door, worker_channel, worker_control, beside=beside, report=print_report)
        return

    def ready(now: Ready) -> None:
        line = json.dumps(now.record())
        if ready_fd is not None:
            os.write(ready_fd, line.encode() + b"\n")
            os.close(ready_fd)
        print_report(line if as_json else _welcome(now))

    if grpc_port is None and port == 0 and site.config.serving.grpc_port > 0:
        grpc_port = 0  # who asks for any free port wants no fixed one either
    beside = _beside(site, host, grpc_port, tls=tls, crowd=crowd)
    door = _door(tls, crowd)
    from pellucid.servers.metrics.serve import MetricsListener

    serve(
        site, door, beside=beside, host=host, port=port, ready=ready, report=print_report,
        tell=MetricsListener,
    )  # fmt: skip
    sys.stdout.flush()


def _crowd(site: Site) -> Crowd:
    """Limits of connections, those of both doors together."""
    from pellucid.core.access import parse_networks
    from pellucid.servers.http.crowd import Crowd

    doors = site.config.doors
    proxies = parse_networks(doors.trusted_proxies, "doors.trusted_proxies")
    return Crowd(doors.connections_max, doors.connections_per_address_max, doors.write_timeout_s, proxies)


def _door(tls: Tls | None, crowd: Crowd) -> Door:
    """The HTTP door.

    Raises:
        MissingExtraError: Its libraries are not installed.
    """
    try:
        from pellucid.servers.http.serve import UvicornDoor
    except ModuleNotFoundError as error:
        raise _missing(error, "") from error
    return UvicornDoor(tls.context() if tls else None, crowd)


def _beside(
    site: Site,
    host: str | None,
    port: int | None,
    *,
    handed: bool = False,
    tls: Tls | None = None,
    crowd: Crowd | None = None,
) -> list[SideDoor]:
    """The gRPC door, unless it is switched off.

    Raises:
        MissingExtraError: Its libraries are not installed.
    """
    settings = site.config.serving
    port = settings.grpc_port if port is None else port
    if port < 0:
        return []
    try:
        from pellucid.servers.grpc.serve import GrpcDoor
    except ModuleNotFoundError as error:
        raise _missing(error, "; or serve without gRPC: serving.grpc_port = -1") from error
    return [GrpcDoor(host or settings.host, port, handed=handed, tls=tls, crowd=crowd)]


def _missing(error: ModuleNotFoundError, or_else: str) -> MissingExtraError:
    from pellucid.errors import MissingExtraError

    return MissingExtraError(
        f"pellucid serve needs the library {error.name!r}, which is not installed",
        hint="pip install 'pellucid[standard]'" + or_else,
    )


def _welcome(now: Ready) -> str:
    models = ", ".join(now.models)
    refused = f"; NOT served: {', '.join(now.refused)}" if now.refused else ""
    beside = "".join(f" and {name}://{now.host}:{port}" for name, port in now.beside.items())
    return f"serving {models} on {now.scheme}://{now.host}:{now.port}{beside} as {now.source}{refused}"
