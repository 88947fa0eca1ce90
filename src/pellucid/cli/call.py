"""``pellucid call``: one request with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import click

from pellucid.cli.output import emit, json_option
from pellucid.core.access import is_loopback
from pellucid.errors import (
    FormatError,
    NotFoundError,
    PellucidError,
    PolicyDeniedError,
    UnauthenticatedError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("model")
@click.option(
    "--input", "path", type=click.Path(path_type=Path, dir_okay=False), help="Request as a JSON file."
)
@click.option("--data", default=None, help="Request, or flat values of the one input, as JSON text.")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Server.")
@click.option("--id", "request_id", default=None, help="Request id, returned by the server.")
@click.option("--subject", default=None, help="Whom the call is about; makes it erasable as a person's.")
@click.option(
    "--ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="PEM file of authorities for an https server.",
)
@click.option("--timeout", default=30.0, show_default=True, help="Seconds.")
@json_option
def command(
    model: str,
    path: Path | None,
    data: str | None,
    url: str,
    request_id: str | None,
    subject: str | None,
    ca: Path | None,
    timeout: float,
    *,
    as_json: bool,
) -> None:
    """Call MODEL (or MODEL:VERSION) and show outputs and the call's key.

    The request is the protocol's JSON ({"inputs": [...]}), or just the values of the one input:

      pellucid call credit --data '[0.1, 0.2, ...]'

    A token is taken from PELLUCID_TOKEN, and sent to an https server or to this machine only.
    """
    client = Client(url, timeout, os.environ.get("PELLUCID_TOKEN", ""), ca)
    name, _, version = model.partition(":")
    base = f"/v2/models/{quote(name, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")
    request = _request(client, base, _read(path, data))
    if request_id is not None:
        request["id"] = request_id
    if subject is not None:
        request["parameters"] = request.get("parameters", {}) | {"subject": subject}
    answer, headers = client.ask("POST", f"{base}/infer", request)
    value = {
        "call": headers.get("pellucid-call", ""),
        "trace": headers.get("pellucid-trace", ""),
        "model": answer["model_name"],
        "version": answer.get("model_version", ""),
        "outputs": answer["outputs"],
    }
    emit(value, lambda console: _show(console, value), as_json=as_json)


def _read(path: Path | None, data: str | None) -> Any:
    if (path is None) == (data is None):
        raise UsageError(
            "call: expected one of --input and --data, got " + ("none" if path is None else "both")
        )
    if path is not None:
        try:
            data = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise NotFoundError(f"input: expected a readable file at {path}, got {error!s:.120}") from error
    assert data is not None
    try:
        return json.loads(data)
    except ValueError as error:
        raise FormatError(f"input: expected JSON, got {error}") from error


def _request(client: Client, base: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        raise FormatError(f"input: expected an object or an array, got {type(value).__name__}")
    inputs = client.ask("GET", base)[0]["inputs"]
    if len(inputs) != 1:
        raise UsageError(
            f"input: expected a whole request for a model with {len(inputs)} inputs, got an array"
        )
    spec = inputs[0]
    rest = list(spec["shape"][1:])
    if -1 in rest:
        raise UsageError("input: expected a whole request for a model with variable dimensions, got an array")
    return {
        "inputs": [
            {
                "name": spec["name"],
                "datatype": spec["datatype"],
                "shape": [_rows(value, rest), *rest],
                "data": value,
            }
        ]
    }


def _rows(value: list[Any], rest: list[int]) -> int:
    if value and isinstance(value[0], list):
        return len(value)
    per = 1
    for dimension in rest:
        per *= dimension
    return max(1, len(value) // per)


class Client:
    """One server; a token goes nowhere in the clear."""

    def __init__(self, url: str, timeout: float, token: str = "", ca: Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"url: expected http://HOST:PORT or https://HOST:PORT, got {url!r:.120}")
        self._host, self._timeout, self._tls = parts.hostname, timeout, parts.scheme == "https"
        self._port, self._ca = parts.port or (443 if self._tls else 80), ca
        self._headers = {}
        if token:
            if not self._tls and not is_loopback(self._host):
                raise UsageError(
                    f"PELLUCID_TOKEN: expected an https server or this machine, got {url!r:.120}",
                    hint="a token that was sent in the clear is everybody's: revoke it",
                )
            self._headers["authorization"] = f"Bearer {token}"

    def _connect(self) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        import ssl

        context = ssl.create_default_context(cafile=self._ca)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[dict[str, Any], dict[str, str]]:
        """Answer and headers.

        Raises:
            PellucidError: What the server said, as the error it stands for.
        """
        connection = self._connect()
        try:
            sent = None if body is None else json.dumps(body).encode()
            kind = {"content-type": "application/json"} if sent else {}
            connection.request(method, path, sent, self._headers | kind)
            reply = connection.getresponse()
            raw, headers = reply.read(), {name.lower(): value for name, value in reply.getheaders()}
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"server: expected an answer from {self._host}:{self._port}, got {error!s:.120}",
                hint="is it running? start it with: pellucid serve",
            ) from error
        finally:
            connection.close()
        return _value(reply.status, raw, headers), headers


def _value(status: int, raw: bytes, headers: dict[str, str]) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise FormatError(f"server: expected a JSON object, got HTTP {status} with {len(raw):,} bytes")
    if status == 200:
        return value
    kinds = {
        401: UnauthenticatedError,
        403: PolicyDeniedError,
        404: NotFoundError,
        429: UnavailableError,
        503: UnavailableError,
    }
    kind = kinds.get(status, UsageError if status < 500 else PellucidError)
    key = headers.get("pellucid-call")
    hint = str(value.get("hint", "")) or (f"recorded as {key}" if key else "")
    raise kind(str(value.get("error", f"HTTP {status}")), hint=hint)


def _show(console: Console, value: dict[str, Any]) -> None:
    from pellucid.cli.output import pairs, table

    console.print(pairs("", [(name, value[name]) for name in ("model", "version", "call", "trace")]))
    rows = [
        (item["name"], item["datatype"], item["shape"], _short(item.get("data", [])))
        for item in value["outputs"]
    ]
    console.print(table("Outputs", ("name", "datatype", "shape", "data"), rows))
    console.print(f"What stands behind it: pellucid answer {value['call']}")


def _short(data: list[Any]) -> str:
    shown = ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in data[:20])
    return shown + (f", ... ({len(data):,} values)" if len(data) > 20 else "")
