"""Bytes from outside raise only errors of the tree: one target a parser of core.

Each target gets raw bytes, and valid input with a few bytes changed. ``make fuzz`` runs many more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core import canonical, dsse, entry, note, record, statement
from pellucid.core.checkpoint import Checkpoint, parse_checkpoint, sign_checkpoint, verify_checkpoint
from pellucid.core.decision import decide
from pellucid.core.digest import parse_digest, sha256, verify_digest
from pellucid.core.expand import expand as form
from pellucid.core.merkle.proof import verify_consistency, verify_inclusion
from pellucid.core.merkle.tile import decode_bundle, decode_tile, encode_bundle, parse_path
from pellucid.core.signature import load_public_key, raw_ed25519, verify_signature
from pellucid.core.tensor import (
    DATATYPES,
    Tensor,
    join_bytes_elements,
    pack_json,
    split_bytes_elements,
    unpack_elements,
    verify_tensor,
)
from pellucid.core.times import parse_time
from pellucid.errors import PellucidError
from pellucid.keys.file import FileKey

KEY = FileKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)))
VKEY = note.format_vkey("fuzz.example/log", 1, raw_ed25519(KEY.public_pem()))
STATEMENT = statement.make_statement([("x", "sha256:" + "0" * 64)], statement.REPLAY, {"a": [1, None]})
CONTEXT = record.Context(1, {"model": "m", "version": "1", "package": "p", "engine": "e"})
CALL = record.Call(
    1, 1, "answered", None, 5, 6, (1, 2, 3, 6), 0, 8, (record.Row(b"i" * 32, b"o" * 32, "yes", "0.5"),),
    ((1, 2),), (8, 8), b"s" * 32, {"address": "192.0.2.1"},
)  # fmt: skip
EVENT = record.Event(1, "load", 5, {"model": "m", "findings": [{"rule": "x"}]}, b"seed", {"subject": "anna"})


def expand(raw: bytes) -> None:
    form(
        record.decode_record(raw),
        writer=entry.Writer("n/1/0"),
        contexts={1: CONTEXT},
        subject_keys=lambda _: bytes(32),
    )


def text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda raw: parse(raw.decode("utf-8", "surrogateescape"))


def formed(item: record.Record) -> bytes:
    return form(item, writer=entry.Writer("n/1/0"), contexts={1: CONTEXT}, subject_keys=lambda _: bytes(32))[
        0
    ].entry


HEAD = sign_checkpoint(Checkpoint("fuzz.example/log", 7, bytes(32)), KEY)
BYTES_ELEMENTS = join_bytes_elements([b"ab", b"", b"cdef"])
TARGETS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "canonical": (canonical.decode, b'{"a":[1,-2,null,true,"\\u0000x"],"b":{}}'),
    "foreign_json": (canonical.decode_foreign, b'{"a": [1.5, -2e3, null, "\\ud83d\\ude00"], "b": {}}'),
    "digest": (text(parse_digest), b"sha256:" + b"0" * 64),
    "digest_compare": (text(lambda t: verify_digest("x", b"", t)), sha256(b"").encode()),
    "time": (text(parse_time), b"2026-11-30T16:40:14.000000001Z"),
    "record": (expand, record.encode_record(record.Batch(1, 1, 8, 5, 6, (CALL, CALL)))),
    "record_event": (expand, record.encode_record(EVENT)),
    "record_context": (expand, record.encode_record(CONTEXT)),
    "entry": (entry.parse_entry, formed(CALL)),
    "entry_event": (entry.parse_entry, formed(EVENT)),
    "commitment": (text(lambda t: entry.is_opening(t, b"k", b"d")), b"hmac-sha256:" + b"0" * 64),
    "kept_outputs": (entry.decode_outputs, entry.encode_outputs([Tensor("y", "FP32", (1, 1), bytes(4))])),
    "note": (lambda raw: note.open_note(raw, [note.parse_vkey(VKEY)]), HEAD),
    "vkey": (text(note.parse_vkey), VKEY.encode()),
    "checkpoint": (lambda raw: verify_checkpoint(raw, VKEY), HEAD),
    "checkpoint_text": (text(parse_checkpoint), HEAD.rpartition(b"\n\n")[0] + b"\n"),
    "bundle": (dsse.parse_bundle, dsse.sign_bundle(statement.PAYLOAD_TYPE, STATEMENT, KEY)),
    "statement": (statement.parse_statement, STATEMENT),
    "public_key": (load_public_key, KEY.public_pem()),
    "private_key": (FileKey.from_pem, b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n"),
    "signature": (lambda raw: verify_signature(KEY.public_pem(), b"m", raw), KEY.sign(b"m")),
    "tile_path": (text(parse_path), b"tile/0/x001/067.p/12"),
    "entry_bundle": (lambda raw: decode_bundle(raw, 3), encode_bundle([b"a", b"bc", b""])),
    "tile": (lambda raw: decode_tile(raw, 2), bytes(64)),
    "inclusion": (lambda raw: verify_inclusion(raw[:32], 1, 3, [raw[32:64], raw[64:]], bytes(32)), bytes(96)),
    "consistency": (lambda raw: verify_consistency(2, 3, raw[:32], raw[32:64], [raw[64:]]), bytes(96)),
    "bytes_elements": (lambda raw: split_bytes_elements(raw, 3, subject="x"), BYTES_ELEMENTS),
}


def mutate(raw: bytes, changes: list[tuple[int, int, int]]) -> bytes:
    """Replace, drop or insert a byte at a few places."""
    changed = bytearray(raw)
    for at, way, byte in changes:
        where = at % (len(changed) + 1)
        if way == 0:
            changed[where : where + 1] = bytes([byte])
        elif way == 1:
            del changed[where : where + 1]
        else:
            changed[where:where] = bytes([byte])
    return bytes(changed)


NEVER_VALID = {"private_key", "inclusion", "consistency"}  # near enough to valid for a fuzzer
CHANGES = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 2), st.integers(0, 255)), max_size=5)


@pytest.mark.parametrize("target", TARGETS)
@given(raw=st.binary(max_size=200), changes=CHANGES)
def test_only_errors_of_the_tree(target, raw, changes):
    parse, valid = TARGETS[target]
    for data in (raw, mutate(valid, changes)):
        with suppress(PellucidError):
            parse(data)


@pytest.mark.parametrize("target", sorted(set(TARGETS) - NEVER_VALID))
def test_the_valid_input_is_valid(target):
    parse, valid = TARGETS[target]
    parse(valid)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_json_in_any_parser_of_json(value):
    raw = json.dumps(value).encode()
    for parse in (canonical.decode, canonical.decode_foreign, entry.parse_entry, dsse.parse_bundle):
        with suppress(PellucidError):
            parse(raw)
    with suppress(PellucidError):
        canonical.encode(value)


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("specversion", "type", "data", "id", "time", "source"), JSON)
    )
)
def test_any_json_in_the_places_of_an_entry(value):
    base = canonical.decode(formed(EVENT))
    with suppress(PellucidError):
        entry.parse_entry(canonical.encode(base | value))


@given(JSON, JSON, JSON, JSON)
def test_any_json_in_the_places_of_a_bundle_and_a_statement(one, two, three, four):
    envelope = {"payload": "eA==", "payloadType": "x", "signatures": [{"sig": "eA=="}]}
    changes = ({"payload": one}, {"payloadType": two}, {"signatures": three}, {"signatures": [{"sig": four}]})
    for value in (one, *(envelope | change for change in changes), envelope | {"signatures": [one]}):
        with suppress(PellucidError):
            dsse.parse_bundle(json.dumps({"mediaType": dsse.MEDIA_TYPE, "dsseEnvelope": value}).encode())
    made = {"_type": statement.STATEMENT_TYPE, "predicateType": "x", "predicate": {}, "subject": one}
    for value in (
        {},
        {"subject": [two]},
        {"subject": [{"name": three, "digest": four}]},
        {"predicate": four},
    ):
        with suppress(PellucidError):
            statement.parse_statement(json.dumps(made | value).encode())


@given(
    JSON,
    st.sampled_from([*DATATYPES, "FP8"]),
    st.lists(st.integers(-1, 4) | JSON, max_size=4) | st.just([2**60, 2**60]),
)
def test_any_json_as_tensor(data, datatype, shape):
    with suppress(PellucidError):
        unpack_elements(verify_tensor(pack_json("x", datatype, shape, data)))


@given(st.binary(max_size=40), st.sampled_from(sorted(DATATYPES)), st.lists(st.integers(-1, 4), max_size=3))
def test_any_bytes_as_tensor(data, datatype, shape):
    with suppress(PellucidError):
        unpack_elements(verify_tensor(Tensor("x", datatype, tuple(shape), data)))


@given(
    JSON,
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("kind", "output", "labels", "column", "threshold"), JSON)
    ),
)
def test_any_json_as_meaning(value, members):
    row = [Tensor("y", "FP32", (1, 2), bytes(8))]
    base = {"kind": "threshold", "output": "y", "column": 0, "threshold": "0.5", "labels": ["a", "b"]}
    for decision in (members, base | members, *([value] if isinstance(value, dict) else [])):
        with suppress(PellucidError):
            decide(decision, row)


def test_deep_nesting_is_refused_not_followed():
    deep = b"[" * 200_000 + b"]" * 200_000
    packed = b"\x91" * 100_000 + b"\xc0"
    for parse in (canonical.decode, canonical.decode_foreign):
        with pytest.raises(PellucidError):
            parse(deep)
    head = msgspec.msgpack.encode(["e", 1, "load", 5])
    for raw in (packed, b"\x95" + head[1:] + b"\x81\xa1x" + packed):
        with pytest.raises(PellucidError):
            record.decode_record(raw)
