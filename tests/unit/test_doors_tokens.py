"""API tokens: the book, its file, the command, and what is never in any of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pellucid.app.doors import SiteBearers
from pellucid.app.ledger import open_ledger
from pellucid.app.site import create_site
from pellucid.app.tokens import add_token, read_book, revoke_token
from pellucid.cli.main import cli
from pellucid.core.entry import parse_entry
from pellucid.core.token import Book, decode_book, encode_book, find_caller
from pellucid.errors import (
    ConfigError,
    FormatError,
    NotFoundError,
    PellucidError,
    UnauthenticatedError,
    UnavailableError,
    UsageError,
)

RANDOM = bytes(range(52))


def test_a_token_finds_its_caller_and_the_book_does_not_hold_it():
    book, token = Book().add("ci", ("client",), RANDOM, now_ns=5, expires_ns=100)
    assert re.fullmatch(r"pellucid_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", token)
    caller = find_caller(book.by_id(), token, 99)
    assert (caller.identity, caller.roles, caller.until_ns) == ("token:ci", frozenset({"client"}), 100)
    raw = encode_book(book)
    assert decode_book(raw) == book
    assert token.rpartition("_")[2].encode() not in raw
    assert RANDOM[:32].hex().encode() not in raw


def test_what_is_no_token_of_the_book():
    book, token = Book().add("ci", ("client",), RANDOM, now_ns=5, expires_ns=100)
    rows = book.by_id()
    head, number, secret = token.split("_", 2)
    other = ("A" if secret[0] != "A" else "B") + secret[1:]
    for wrong in (
        f"{head}_{number}_{other}", f"{head}_00000000_{secret}", token + "A", token[:-1], token.upper(), "",
        f"{head}_{number}_", token + "\n", " " + token, f"{head}_{number}_{'é' * 43}",
    ):  # fmt: skip
        with pytest.raises(UnauthenticatedError):
            find_caller(rows, wrong, 6)
    with pytest.raises(UnauthenticatedError):
        find_caller(rows, token, 100)  # not any more
    with pytest.raises(UnauthenticatedError):
        find_caller(book.revoke("ci").by_id(), token, 6)


def test_names_and_roles():
    book, _ = Book().add("ci", ("client",), RANDOM, now_ns=5)
    for name in ("", "a b", "-", "x" * 65, "é"):
        with pytest.raises(UsageError, match="token name"):
            book.add(name, ("client",), RANDOM[::-1], now_ns=5)
    with pytest.raises(UsageError, match="in use"):
        book.add("ci", ("client",), RANDOM[::-1], now_ns=5)
    with pytest.raises(UsageError, match="fresh"):
        book.add("other", ("client",), RANDOM, now_ns=5)
    for roles in ((), ("root",)):
        with pytest.raises(ConfigError, match="expected roles"):
            book.add("other", roles, RANDOM[::-1], now_ns=5)
    with pytest.raises(NotFoundError):
        book.revoke("other")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_book_or_refused(raw: bytes):
    with contextlib.suppress(PellucidError):
        decode_book(raw)


@pytest.mark.parametrize("change", [{"roles": ["root"]}, {"salt": "00"}, {"hash": "zz"}, {"more": 1}])
def test_books_that_are_none(change: dict[str, object]):
    book, _ = Book().add("ci", ("client",), RANDOM, now_ns=5)
    value = json.loads(encode_book(book))
    value["tokens"][0] |= change
    with pytest.raises(FormatError):
        decode_book(json.dumps(value).encode())


# -- the file -------------------------------------------------------------------------------------


class Clock:
    ns = 0

    def __call__(self) -> int:
        return self.ns


def test_a_server_hears_of_new_and_revoked_tokens_and_of_a_file_that_is_open(tmp_path: Path):
    path, clock, said = tmp_path / "tokens.json", Clock(), list[str]()
    bearers = SiteBearers(path, clock, said.append)
    first = bearers.generation
    token = add_token(path, "ci", ("client",), now_ns=1)
    assert path.stat().st_mode & 0o777 == 0o600
    assert bearers.generation == first  # within the second it is not looked at
    clock.ns += 1_000_000_000
    assert bearers.generation != first
    assert bearers.find(token, 2).identity == "token:ci"
    path.chmod(0o644)
    clock.ns += 1_000_000_000
    assert bearers.generation
    with pytest.raises(UnauthenticatedError):
        bearers.find(token, 2)
    assert "chmod" not in said[0]
    assert "mode 644" in said[0]
    path.chmod(0o600)
    clock.ns += 1_000_000_000
    assert bearers.generation
    assert bearers.find(token, 2).identity == "token:ci"
    revoke_token(path, "ci")
    clock.ns += 1_000_000_000
    assert bearers.generation
    with pytest.raises(UnauthenticatedError):
        bearers.find(token, 2)


def test_a_file_that_others_can_read_stops_the_start(tmp_path: Path):
    path = tmp_path / "tokens.json"
    add_token(path, "ci", ("client",), now_ns=1)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="mode 640"):
        read_book(path)


def test_the_command_shows_a_token_once(tmp_path: Path):
    site = create_site(tmp_path / "site", node="test1")
    at = ["--site", str(site.root)]
    run = CliRunner()
    made = run.invoke(cli, ["tokens", "add", "ci", "--role", "client", "--role", "sre", *at, "--json"])
    token = json.loads(made.output)["token"]
    assert run.invoke(cli, ["tokens", "add", "plain", "--role", "client", *at]).output.startswith("pellucid_")
    listed = run.invoke(cli, ["tokens", "list", *at, "--json"])
    assert [row["name"] for row in json.loads(listed.output)] == ["ci", "plain"]
    assert token not in listed.output
    assert token not in (site.root / "tokens.json").read_text()
    assert run.invoke(cli, ["tokens", "revoke", "ci", *at]).exit_code == 0
    assert [row.name for row in read_book(site.root / "tokens.json").tokens] == ["plain"]
    assert isinstance(run.invoke(cli, ["tokens", "add", "x", "--role", "root", *at]).exception, ConfigError)
    assert isinstance(
        run.invoke(cli, ["tokens", "add", "x", "--role", "sre", "--expires", "1y", *at]).exception, UsageError
    )
    assert os.stat(site.root / "tokens.json").st_mode & 0o077 == 0
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    told = [entry.data for entry in entries if entry.type == "config"]
    assert [(data["change"], data.get("roles")) for data in told] == [
        ("token_added", ["client", "sre"]), ("token_added", ["client"]), ("token_revoked", None),
    ]  # fmt: skip
    assert "caller" in told[0]["personal"]
    assert b"token:ci" not in b"".join(entry.raw for entry in entries)
    assert token.encode() not in b"".join(p.read_bytes() for p in site.root.rglob("*") if p.is_file())


def test_what_cannot_be_recorded_is_not_given(tmp_path: Path):
    def full() -> None:
        raise UnavailableError("ledger: expected room, got none")

    path = tmp_path / "tokens.json"
    with pytest.raises(UnavailableError):
        add_token(path, "ci", ("client",), now_ns=1, record=full)
    assert read_book(path) == Book()
