"""Which doors a serving process opens, and what is said when a library for one is missing."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from pellucid.app.site import create_site
from pellucid.cli.serve import _beside
from pellucid.config import parse_config
from pellucid.errors import ConfigError, MissingExtraError, UnavailableError
from pellucid.servers.grpc.serve import GrpcDoor
from pellucid.servers.http.serve import bind


def test_grpc_is_beside_http_unless_it_is_left_out(tmp_path: Path):
    site = create_site(tmp_path / "site", node="test1")
    (door,) = _beside(site, None, None)
    assert (door.name, door.port) == ("grpc", 8001)
    assert _beside(site, None, -1) == []
    assert [door.port for door in _beside(site, "127.0.0.1", 5)] == [5]


def test_a_missing_library_names_the_extra_and_the_way_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    site = create_site(tmp_path / "site", node="test1")
    for name in [name for name in sys.modules if name.startswith("pellucid.servers.grpc.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hpack", None)
    with pytest.raises(MissingExtraError, match="'hpack'") as caught:
        _beside(site, None, None)
    assert "pellucid[standard]" in caught.value.hint
    assert "serving.grpc_port = -1" in caught.value.hint


def test_a_port_is_held_for_workers_and_a_taken_one_is_said():
    door = GrpcDoor("127.0.0.1", 0)
    with door.hold() as listener:
        assert listener.getsockname() == ("127.0.0.1", door.port)
        assert door.words == ["--grpc-port", str(door.port)]
        assert door.port > 0
        listener.listen()
        with pytest.raises(UnavailableError, match="for gRPC"), GrpcDoor("127.0.0.1", door.port).hold():
            pass


@pytest.mark.parametrize(
    "line",
    [
        'model_control = "maybe"',
        "grpc_port = 70000",
        "shared_memory = 1",
    ],
)
def test_settings_that_are_none(line: str):
    with pytest.raises(ConfigError):
        parse_config(f"[serving]\n{line}\n".encode())


def test_any_free_port_is_nobody_elses_before_it_is_listened_on():
    with bind("127.0.0.1", 0) as listener, GrpcDoor("127.0.0.1", 0).hold() as held:
        for taken in (listener, held):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="in use"):
                    other.bind(taken.getsockname())
