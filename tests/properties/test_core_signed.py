"""Signatures, notes, checkpoints, envelopes, statements: what was altered never verifies."""

from __future__ import annotations

import base64
import json
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core import canonical, dsse, statement
from pellucid.core.checkpoint import (
    Checkpoint,
    format_checkpoint,
    parse_checkpoint,
    sign_checkpoint,
    verify_checkpoint,
)
from pellucid.core.merkle.hashing import EMPTY_ROOT
from pellucid.core.note import format_vkey, open_note, parse_vkey, sign_note
from pellucid.core.signature import (
    algorithm_of,
    key_id,
    load_public_key,
    pem_ed25519,
    raw_ed25519,
    verify_signature,
)
from pellucid.errors import FormatError, PellucidError, SignatureError
from pellucid.keys.file import FileKey

LOG = FileKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
OTHER = FileKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))
BUILDER = FileKey(ec.derive_private_key(2**200 + 7, ec.SECP256R1()))
KEYS = [LOG, BUILDER]
ORIGIN = "test.example/log"
VKEY = format_vkey(ORIGIN, 1, raw_ed25519(LOG.public_pem()))
LINES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
TEXTS = st.lists(LINES, min_size=1, max_size=4).map(lambda lines: "\n".join(lines) + "\n")
HEADS = st.builds(Checkpoint, st.just(ORIGIN), st.integers(1, 2**53 - 1), st.binary(min_size=32, max_size=32))


def flipped(raw: bytes, data: st.DataObject) -> bytes:
    """One bit changed, or one byte dropped or doubled."""
    at = data.draw(st.integers(0, 2**16)) % len(raw)  # ECDSA lengths vary, what is drawn must not
    way = data.draw(st.integers(0, 9))
    if way < 8:
        return raw[:at] + bytes([raw[at] ^ 1 << way]) + raw[at + 1 :]
    return raw[:at] + raw[at + 1 :] if way == 8 else raw[:at] + raw[at : at + 1] + raw[at:]


@pytest.mark.parametrize("signer", KEYS, ids=lambda k: k.algorithm)
@given(message=st.binary(max_size=50), data=st.data())
def test_a_changed_message_or_signature_does_not_verify(signer, message, data):
    signature = signer.sign(message)
    verify_signature(signer.public_pem(), message, signature)
    with pytest.raises(SignatureError):
        verify_signature(signer.public_pem(), message, flipped(signature, data))
    with pytest.raises(SignatureError):
        verify_signature(signer.public_pem(), message + b"x", signature)
    with pytest.raises(SignatureError):
        verify_signature(OTHER.public_pem(), message, signature)


def loose_der(signature: bytes) -> bytes:
    """The same two numbers, with a needless zero before the first."""
    r, s = ((n.bit_length() // 8 + 1, n) for n in decode_dss_signature(signature))
    parts = b"".join(
        b"\x02" + bytes([size + pad]) + n.to_bytes(size + pad) for (size, n), pad in ((r, 1), (s, 0))
    )
    return b"\x30" + bytes([len(parts)]) + parts


def test_ecdsa_signatures_have_one_form():
    signature = BUILDER.sign(b"m")
    long_form = b"\x30\x81" + signature[1:]
    for other in (loose_der(signature), long_form, signature + b"\x00", b"", b"\x30\x00", bytes(64)):
        with pytest.raises(SignatureError):
            verify_signature(BUILDER.public_pem(), b"m", other)


def test_only_two_kinds_of_key():
    p384 = ec.generate_private_key(ec.SECP384R1()).public_key()
    big = rsa.generate_private_key(65537, 2048).public_key()
    for key in (p384, big):
        with pytest.raises(FormatError):
            load_public_key(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for pem in (b"", b"x", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", bytes(5000)):
        with pytest.raises(FormatError):
            load_public_key(pem)


def test_a_key_has_one_id_however_its_pem_is_wrapped():
    pem = BUILDER.public_pem()
    assert key_id(pem) == key_id(pem + b"\n") == key_id(b"\n" + pem)
    assert [algorithm_of(k.public_pem()) for k in KEYS] == [k.algorithm for k in KEYS]
    assert pem_ed25519(raw_ed25519(LOG.public_pem())) == LOG.public_pem()
    with pytest.raises(FormatError):
        raw_ed25519(pem)
    with pytest.raises(FormatError):
        pem_ed25519(b"short")


@given(TEXTS)
def test_a_note_opens_to_its_text(text):
    opened = open_note(sign_note(text, ORIGIN, LOG), [parse_vkey(VKEY)])
    assert (opened.text, opened.verified_names) == (text, (ORIGIN,))


@given(TEXTS, st.data())
def test_no_altered_note_opens_to_another_text(text, data):
    changed = flipped(sign_note(text, ORIGIN, LOG), data)
    with suppress(PellucidError):
        # the only bytes that may change are none: text, name, id and signature all count
        assert open_note(changed, [parse_vkey(VKEY)]).text == text
        pytest.fail(f"an altered note opened: {changed!r}")


@pytest.mark.parametrize("text", ["", "no newline", "tab\t\n", "nul\x00\n", "\ud800\n", "cr\r\n"])
def test_text_that_is_no_note_is_not_signed(text):
    with pytest.raises(FormatError):
        sign_note(text, ORIGIN, LOG)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\u2003b", "a\nb", "x" * 257])
def test_key_names_have_no_white_space_and_no_plus(name):
    with pytest.raises(FormatError):
        format_vkey(name, 1, bytes(32))
    with pytest.raises(FormatError):
        sign_note("text\n", name, LOG)


def test_a_note_needs_an_ed25519_key():
    with pytest.raises(FormatError):
        sign_note("text\n", ORIGIN, BUILDER)


@given(st.data())
def test_no_altered_verifier_key_is_the_same_key(data):
    changed = flipped(VKEY.encode(), data).decode("utf-8", "replace")
    if changed != VKEY + "\n":  # a file may end in a newline
        with pytest.raises(FormatError):
            parse_vkey(changed)


@given(HEADS)
def test_checkpoints_go_both_ways(head):
    assert parse_checkpoint(format_checkpoint(head)) == head
    assert verify_checkpoint(sign_checkpoint(head, LOG), VKEY) == head


@given(HEADS, st.data())
def test_no_altered_checkpoint_verifies(head, data):
    with pytest.raises(PellucidError):
        verify_checkpoint(flipped(sign_checkpoint(head, LOG), data), VKEY)


def test_checkpoints_are_only_of_trees_and_only_of_this_log():
    for head in (
        Checkpoint(ORIGIN, 0, bytes(32)),
        Checkpoint(ORIGIN, -1, bytes(32)),
        Checkpoint(ORIGIN, 2**53, bytes(32)),
        Checkpoint(ORIGIN, 1, bytes(31)),
        Checkpoint("", 1, bytes(32)),
        Checkpoint("a\nb", 1, bytes(32)),
    ):
        with pytest.raises(FormatError):
            sign_checkpoint(head, LOG)
    empty = Checkpoint(ORIGIN, 0, EMPTY_ROOT)
    assert verify_checkpoint(sign_checkpoint(empty, LOG), VKEY) == empty
    strange = sign_note(format_checkpoint(Checkpoint("other.example/log", 1, bytes(32))), ORIGIN, LOG)
    with pytest.raises(SignatureError, match="origin"):
        verify_checkpoint(strange, VKEY)
    with pytest.raises(SignatureError):
        verify_checkpoint(sign_checkpoint(empty, OTHER), VKEY)


KINDS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=30)


@pytest.mark.parametrize("signer", KEYS, ids=lambda k: k.algorithm)
@given(kind=KINDS, payload=st.binary(max_size=60))
def test_a_bundle_gives_its_payload(signer, kind, payload):
    raw = dsse.sign_bundle(kind, payload, signer)
    assert dsse.verify_bundle(raw, signer.public_pem(), kind) == payload
    assert dsse.parse_bundle(raw).payload_type == kind
    assert canonical.decode(raw)["verificationMaterial"]["publicKey"]["hint"] == key_id(signer.public_pem())
    with pytest.raises(SignatureError):
        dsse.verify_bundle(raw, OTHER.public_pem())
    with pytest.raises(FormatError):
        dsse.verify_bundle(raw, signer.public_pem(), kind + "x")


@pytest.mark.parametrize("signer", KEYS, ids=lambda k: k.algorithm)
@given(data=st.data())
def test_no_altered_bundle_gives_another_payload(signer, data):
    raw = dsse.sign_bundle("text/plain", b"the payload", signer)
    with suppress(PellucidError):
        # what is outside the envelope (hint, key id) is not believed, so it may change
        assert dsse.verify_bundle(flipped(raw, data), signer.public_pem(), "text/plain") == b"the payload"


@given(st.text(max_size=9), st.binary(max_size=9), st.text(max_size=9), st.binary(max_size=9))
def test_the_signed_bytes_say_type_and_payload_without_doubt(kind, payload, other_kind, other_payload):
    with suppress(UnicodeEncodeError):
        same = (kind, payload) == (other_kind, other_payload)
        assert (dsse.pae(kind, payload) == dsse.pae(other_kind, other_payload)) is same


@pytest.mark.parametrize("count", [0, 2])
def test_one_signature_a_bundle(count):
    value = json.loads(dsse.sign_bundle("text/plain", b"x", LOG))
    value["dsseEnvelope"]["signatures"] *= count
    with pytest.raises(FormatError, match="one signature"):
        dsse.parse_bundle(json.dumps(value).encode())


def test_a_stock_signers_spelling_is_read_too():
    value = json.loads(dsse.sign_bundle("text/plain", b"x", BUILDER))
    value["dsseEnvelope"]["signatures"][0] = {"sig": value["dsseEnvelope"]["signatures"][0]["sig"]}
    raw = json.dumps(dict(reversed(value.items())), indent=2).encode()
    assert dsse.verify_bundle(raw, BUILDER.public_pem()) == b"x"


SUBJECT = ("toy-v1", "sha256:" + "ab" * 32)


@given(st.dictionaries(st.from_regex("[a-zA-Z]{1,5}", fullmatch=True), st.integers(0, 9), max_size=3), LINES)
def test_statements_go_both_ways(predicate, name):
    subjects = [(name, "sha256:" + "cd" * 32), SUBJECT]
    parsed = statement.parse_statement(statement.make_statement(subjects, statement.REPLAY, predicate))
    assert parsed == statement.Statement(tuple(subjects), statement.REPLAY, predicate)


def test_statements_of_nothing_or_about_no_digest_are_refused():
    with pytest.raises(FormatError):
        statement.make_statement([], statement.REPLAY, {})
    with pytest.raises(FormatError):
        statement.make_statement([("x", "md5:00")], statement.REPLAY, {})
    with pytest.raises(FormatError):
        statement.make_statement([SUBJECT], statement.REPLAY, {"share": 0.5})


@pytest.mark.parametrize("change", [
    {"_type": "https://in-toto.io/Statement/v0.1"}, {"subject": []}, {"subject": None}, {"subject": [5]},
    {"subject": [{"name": 5, "digest": {"sha256": "0" * 64}}]},
    {"subject": [{"name": "x", "digest": {"sha1": "0"}}]},
    {"subject": [{"name": "x", "digest": {"sha256": "XY"}}]}, {"predicate": None}, {"predicateType": 5},
])  # fmt: skip
def test_other_payloads_are_no_statements(change):
    good = json.loads(statement.make_statement([SUBJECT], statement.REPLAY, {}))
    statement.parse_statement(json.dumps(good, indent=1).encode())
    with pytest.raises(FormatError):
        statement.parse_statement(json.dumps(good | change).encode())


def test_base64_has_one_spelling():
    raw = dsse.sign_bundle("text/plain", b"xy", LOG)
    encoded = base64.b64encode(b"xy")
    assert encoded in raw
    for other in (b"eHl=", b"eHk", b"eHk=\\n", b"eH k=", b"eHk=="):
        with pytest.raises(FormatError):
            dsse.parse_bundle(raw.replace(b'"' + encoded + b'"', b'"' + other + b'"'))
