"""TLS and client certificates over real sockets, on both doors; and what the files must be."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from pellucid.app.tls import Tls
from pellucid.core.certificate import certificate_names
from pellucid.errors import ConfigError
from pellucid.servers.grpc.messages import SERVICE
from pellucid.servers.grpc.serve import GrpcDoor
from pellucid.serving.doors import Doors
from pellucid.testing.certificates import Authority, Files
from pellucid.testing.plane import RealClock, echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder

pytestmark = pytest.mark.e2e

URL = "/v2/models/echo/infer"
GOOD = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
).encode()
SPIFFE = x509.UniformResourceIdentifier("spiffe://bank/credit")


class Nobody:
    generation = 0

    def find(self, text: str, now_ns: int) -> Any:
        raise AssertionError("no token was sent")


class House:
    def __init__(
        self, folder: Path, authority: Authority, tls: Tls, port: int, rpc: int, said: list[str]
    ) -> None:
        self.folder, self.authority, self.tls, self.port, self.rpc, self.said = (
            folder, authority, tls, port, rpc, said,
        )  # fmt: skip

    def context(self, client: Files | None = None, believe: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=believe or self.authority.file)
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context

    def ask(
        self, method: str, path: str, body: bytes | None = None, client: Files | None = None, **more: Any
    ) -> tuple[int, bytes, bytes]:
        """Status, body, and the server's certificate."""
        with closing(
            http.client.HTTPSConnection(
                "localhost", self.port, timeout=20, context=self.context(client, **more)
            )
        ) as connection:
            connection.request(method, path, body)
            shown = connection.sock.getpeercert(True)
            reply = connection.getresponse()
            return reply.status, reply.read(), shown

    def rpc_ask(self, rpc: str, client: Files | None = None) -> Any:
        pair = (client.key.read_bytes(), client.certificate.read_bytes()) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(self.authority.file.read_bytes(), *pair)
        with grpc.secure_channel(f"localhost:{self.rpc}", credentials) as channel:
            return channel.unary_unary(f"/{SERVICE}/{rpc}")(b"", timeout=20)


@contextmanager
def opened(folder: Path, *, mutual: bool = False, recorder: MemoryRecorder | None = None) -> Iterator[House]:
    authority, said = Authority(folder), list[str]()
    server = authority.sign("server")
    tls = Tls(server.certificate, server.key, authority.file if mutual else None, said.append)
    clock = RealClock()
    doors = Doors(
        now_ns=clock.now_ns, monotonic_ns=clock.monotonic_ns, bearers=Nobody(),
        certificates={"URI:spiffe://bank/credit": frozenset({"client"}), "CN:ops": frozenset({"sre"})},
    )  # fmt: skip
    plane = make_plane([echo_model()], recorder, doors=doors if mutual else None)
    door = GrpcDoor("localhost", 0, tls=tls)
    with running(plane, [door], tls=tls.context()) as port:
        yield House(folder, authority, tls, port, door.port, said)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with opened(tmp_path_factory.mktemp("tls")) as house:
        yield house


def test_both_doors_speak_tls(plain: House):
    assert plain.ask("GET", "/v2/health/live")[0] == 200
    status, body, _ = plain.ask("POST", URL, GOOD)
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [1, 2, 3])
    assert plain.rpc_ask("ServerLive") == b"\x08\x01"


def test_a_large_answer_and_a_refusal_before_the_body_come_through(plain: House):
    status, _, _ = plain.ask("POST", URL, b'{"inputs": "' + b"x" * 3_000_000 + b'"}')
    assert status == 400
    raw = socket.create_connection(("localhost", plain.port), timeout=20)
    with closing(plain.context().wrap_socket(raw, server_hostname="localhost")) as connection:
        connection.sendall(f"POST {URL} HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999999\r\n\r\n".encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")


def test_who_does_not_know_the_authority_does_not_believe_the_server(plain: House, tmp_path: Path):
    stranger = Authority(tmp_path, "another authority")
    with pytest.raises(ssl.SSLCertVerificationError):
        plain.ask("GET", "/v2/health/live", believe=stranger.file)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize(
    ("highest", "ciphers", "works"),
    [
        (ssl.TLSVersion.TLSv1_3, None, True),
        (ssl.TLSVersion.TLSv1_2, None, True),
        (ssl.TLSVersion.TLSv1_2, "AES128-SHA", False),  # no forward secrecy
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA", False),  # CBC
        (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0", False),
    ],
)
def test_versions_and_ciphers(plain: House, highest: ssl.TLSVersion, ciphers: str | None, works: bool):
    context = plain.context()
    if highest < ssl.TLSVersion.TLSv1_2:
        context.minimum_version = highest
    context.maximum_version = highest
    if ciphers:
        context.set_ciphers(ciphers)
    raw = socket.create_connection(("localhost", plain.port), timeout=20)
    with closing(raw):
        if works:
            with closing(context.wrap_socket(raw, server_hostname="localhost")) as connection:
                assert connection.version() in ("TLSv1.2", "TLSv1.3")
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(raw, server_hostname="localhost")


def test_plain_words_to_a_door_that_speaks_tls_are_not_answered(plain: House):
    with closing(socket.create_connection(("localhost", plain.port), timeout=20)) as raw:
        raw.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert not raw.recv(65_536).startswith(b"HTTP/")
    assert plain.ask("GET", "/v2/health/live")[0] == 200


def test_a_handshake_that_does_not_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.serve.HANDSHAKE_S", 0.2)
    with opened(tmp_path) as house:
        with closing(socket.create_connection(("localhost", house.port), timeout=20)) as raw:
            raw.sendall(b"\x16\x03\x01")
            with contextlib.suppress(ConnectionError):
                assert raw.recv(65_536) == b""
        assert house.ask("GET", "/v2/health/live")[0] == 200


# -- certificates of clients ----------------------------------------------------------------------


def test_clients_are_who_their_certificate_says(tmp_path: Path):
    recorder = MemoryRecorder()
    with opened(tmp_path, mutual=True, recorder=recorder) as house:
        client = house.authority.sign("client", SPIFFE, client=True)
        ops = house.authority.sign("ops", client=True)
        other = house.authority.sign("other", x509.DNSName("ops"), client=True)
        assert house.ask("POST", URL, GOOD, client)[0] == 200
        assert house.ask("POST", URL, GOOD, ops)[0] == 403
        assert house.ask("GET", "/v2", client=other)[0] == 403
        assert house.rpc_ask("ServerMetadata", client)
        assert house.rpc_ask("ModelStatistics", ops)
        for files, rpc in ((client, "ModelStatistics"), (other, "ServerMetadata")):
            with pytest.raises(grpc.RpcError) as caught:
                house.rpc_ask(rpc, files)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    named = [(call.outcome, call.personal["caller"]) for call in recorder.calls()]
    assert named == [
        ("answered", "certificate:URI:spiffe://bank/credit"), ("refused", "certificate:CN:ops"),
    ]  # fmt: skip


def test_certificates_that_do_not_hold_end_at_the_handshake(tmp_path: Path):
    with opened(tmp_path, mutual=True) as house:
        (tmp_path / "b").mkdir()
        wrong = [
            None,
            Authority(tmp_path / "b").sign("client", SPIFFE, client=True),  # same names, another authority
            house.authority.sign("old", SPIFFE, client=True, days=-1),
            house.authority.sign("misused", SPIFFE),  # for servers only
        ]
        for files in wrong:
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                house.ask("GET", "/v2", client=files)
            with pytest.raises(grpc.RpcError) as caught:
                house.rpc_ask("ServerLive", files)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


# -- files ----------------------------------------------------------------------------------------


def test_new_files_are_taken_up_and_broken_ones_are_not(tmp_path: Path):
    with opened(tmp_path) as house:
        first = house.ask("GET", "/v2/health/live")[2]
        files = house.authority.sign("next")
        for new, old in ((files.certificate, "server.pem"), (files.key, "server.key")):
            os.replace(new, tmp_path / old)
        second = house.ask("GET", "/v2/health/live")[2]
        assert certificate_names(first)[-1] == "CN:server"
        assert certificate_names(second)[-1] == "CN:next"
        assert house.rpc_ask("ServerLive") == b"\x08\x01"
        (tmp_path / "server.pem").write_text("nothing")
        assert house.ask("GET", "/v2/health/live")[2] == second
        assert house.rpc_ask("ServerLive") == b"\x08\x01"
        assert len(house.said) == 1
        assert "the certificate in use stays" in house.said[0]


def test_files_that_will_not_do(tmp_path: Path):
    authority = Authority(tmp_path)
    one, two = authority.sign("one"), authority.sign("two")
    shutil.copy(one.key, tmp_path / "open.key")
    (tmp_path / "open.key").chmod(0o640)
    nothing = tmp_path / "nothing"
    for certificate, key, client_ca, said in (
        (one.certificate, tmp_path / "open.key", None, "mode 640"),
        (one.certificate, two.key, None, "fit together"),
        (nothing, one.key, None, "No such file"),
        (one.certificate, nothing, None, "No such file"),
        (one.key, one.key, None, "fit together"),
        (one.certificate, one.key, one.key, "fit together"),
    ):
        with pytest.raises(ConfigError, match=said):
            Tls(certificate, key, client_ca, print)


def test_names_of_what_is_no_certificate():
    for raw in (b"", b"-----BEGIN CERTIFICATE-----\n-----END", os.urandom(100)):
        assert certificate_names(raw) == ()
