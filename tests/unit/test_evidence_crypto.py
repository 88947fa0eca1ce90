"""verify.py's own signatures agree with ``cryptography``, and refuse every second spelling."""

from __future__ import annotations

import time

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.core.signature import key_id, verify_signature
from pellucid.errors import SignatureError
from pellucid.evidence import verify

ED = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ED_RAW = ED.public_key().public_bytes_raw()
EC = ec.derive_private_key(0x1234567890ABCDEF1234567890ABCDEF, ec.SECP256R1())
EC_RAW = EC.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
L, N, P = verify._L, verify._N, verify._P


def sign_p256(message: bytes) -> bytes:
    return EC.sign(message, ec.ECDSA(hashes.SHA256()))


EC_SIGNATURE = sign_p256(b"message")


def core_ed25519(public: bytes, message: bytes, signature: bytes) -> bool:
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def core_p256(message: bytes, signature: bytes) -> bool:
    pem = EC.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        verify_signature(pem, message, signature)
    except SignatureError:
        return False
    return True


@settings(max_examples=25)
@given(st.binary(max_size=200), st.binary(min_size=32, max_size=32))
def test_ed25519_agrees_on_good_signatures(message: bytes, seed: bytes) -> None:
    key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    public, signature = key.public_key().public_bytes_raw(), key.sign(message)
    assert verify.is_ed25519(public, message, signature)
    assert not verify.is_ed25519(public, message + b"!", signature)


@settings(max_examples=40)
@given(st.integers(0, 511))
def test_ed25519_agrees_on_every_kind_of_flip(bit: int) -> None:
    signature = bytearray(ED.sign(b"message"))
    signature[bit // 8] ^= 1 << bit % 8
    ours = verify.is_ed25519(ED_RAW, b"message", bytes(signature))
    assert ours is core_ed25519(ED_RAW, b"message", bytes(signature)) is False


def test_ed25519_rfc8032_vector() -> None:
    public = bytes.fromhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")
    signature = bytes.fromhex(
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    assert verify.is_ed25519(public, bytes.fromhex("af82"), signature)


def test_ed25519_refuses_s_that_is_not_reduced() -> None:
    signature = ED.sign(b"m")
    s = int.from_bytes(signature[32:], "little") + L
    malleable = signature[:32] + s.to_bytes(32, "little")
    assert not verify.is_ed25519(ED_RAW, b"m", malleable)
    assert not core_ed25519(ED_RAW, b"m", malleable)


@pytest.mark.parametrize("size", [0, 63, 65])
def test_ed25519_refuses_other_sizes(size: int) -> None:
    assert not verify.is_ed25519(ED_RAW, b"m", bytes(size))


@pytest.mark.parametrize(
    "public",
    [
        P.to_bytes(32, "little"),  # y = p: zero, not reduced
        (P + 1).to_bytes(32, "little"),  # y = 1, not reduced
        (1 | 1 << 255).to_bytes(32, "little"),  # x = 0 with a sign
        (2).to_bytes(32, "little"),  # no point has this y
    ],
)
def test_ed25519_refuses_points_without_their_one_encoding(public: bytes) -> None:
    with pytest.raises(ValueError, match="Ed25519 point"):
        verify._ed_decode(public)
    assert not verify.is_ed25519(public, b"m", ED.sign(b"m"))


def test_ed25519_small_order_key_signs_as_it_does_elsewhere() -> None:
    """A key of small order is never one of a reader's own; the equation alone decides, as in OpenSSL."""
    identity = (1).to_bytes(32, "little")
    forged = identity + bytes(32)  # R = identity, S = 0 satisfies the equation for the identity key
    assert verify.is_ed25519(identity, b"any", forged) == core_ed25519(identity, b"any", forged)


@settings(max_examples=25)
@given(st.binary(max_size=200), st.integers(1, 2**200))
def test_p256_agrees_on_good_signatures(message: bytes, secret: int) -> None:
    key = ec.derive_private_key(secret, ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    signature = key.sign(message, ec.ECDSA(hashes.SHA256()))
    assert verify.is_p256(public, message, signature)
    assert not verify.is_p256(public, message + b"!", signature)


@settings(max_examples=60)
@given(st.data())
def test_p256_agrees_on_every_kind_of_flip(data: st.DataObject) -> None:
    signature = bytearray(EC_SIGNATURE)
    position = data.draw(st.integers(0, len(signature) - 1))
    signature[position] ^= data.draw(st.integers(1, 255))
    ours = verify.is_p256(EC_RAW, b"message", bytes(signature))
    assert ours is core_p256(b"message", bytes(signature)) is False


def test_p256_takes_either_s_and_the_manifest_only_one() -> None:
    r, s = decode_dss_signature(sign_p256(b"m"))
    for value in (s, N - s):
        signature = encode_dss_signature(r, value)
        assert verify.is_p256(EC_RAW, b"m", signature)
        assert core_p256(b"m", signature)
    assert verify.parse_der(encode_dss_signature(r, s)) == (r, s)


@pytest.mark.parametrize(
    ("r", "s"), [(0, 1), (1, 0), (0, 0), (N, 1), (1, N), (N + 1, 1), (1, N + 1), (1, 1), (N - 1, N - 1)]
)
def test_p256_refuses_r_and_s_out_of_range_or_made_up(r: int, s: int) -> None:
    signature = encode_dss_signature(r, s)
    assert not verify.is_p256(EC_RAW, b"m", signature)
    assert not core_p256(b"m", signature)


def test_p256_refuses_r_and_s_that_are_only_equal_after_reduction() -> None:
    r, s = decode_dss_signature(sign_p256(b"m"))
    assert not verify.is_p256(EC_RAW, b"m", encode_dss_signature(r + N, s))
    assert not verify.is_p256(EC_RAW, b"m", encode_dss_signature(r, s + N))


def _der(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([0x30, len(body)]) + body


@pytest.mark.parametrize(
    "case", ["leading zero", "long length", "trailing", "negative", "empty", "other tag"]
)
def test_p256_refuses_every_second_der_spelling(case: str) -> None:
    r, s = decode_dss_signature(sign_p256(b"m"))
    plain = encode_dss_signature(r, s)
    first, second = plain[2 : 4 + plain[3]], plain[4 + plain[3] :]
    spelling = {
        "leading zero": _der(bytes([2, first[1] + 1, 0]) + first[2:], second),
        "long length": bytes([0x30, 0x81, len(plain) - 2]) + plain[2:],
        "trailing": plain + b"\0",
        "negative": _der(b"\x02\x01\x80", second),
        "empty": _der(b"\x02\x00", second),
        "other tag": b"\x31" + plain[1:],
    }[case]
    assert verify.is_p256(EC_RAW, b"m", plain)
    assert not verify.is_p256(EC_RAW, b"m", spelling)
    assert not core_p256(b"m", spelling)


@pytest.mark.parametrize("size", range(8))
def test_p256_refuses_short_signatures(size: int) -> None:
    assert not verify.is_p256(EC_RAW, b"m", sign_p256(b"m")[:size])


@pytest.mark.parametrize("point", ["off curve", "compressed", "infinity", "x too large"])
def test_p256_refuses_what_is_no_point(point: str) -> None:
    x, y = EC_RAW[1:33], EC_RAW[33:]
    raw = {
        "off curve": b"\x04" + x + bytes([y[0] ^ 1]) + y[1:],
        "compressed": b"\x02" + x + y,
        "infinity": bytes(65),
        "x too large": b"\x04" + verify._Q.to_bytes(32, "big") + y,
    }[point]
    with pytest.raises(ValueError, match="P-256 point"):
        verify._p256_point(raw)
    assert not verify.is_p256(raw, b"m", sign_p256(b"m"))


def test_p256_point_arithmetic_at_its_edges() -> None:
    base = (verify._GX, verify._GY, 1)
    zero = (1, 1, 0)
    negative = (verify._GX, verify._Q - verify._GY, 1)
    assert verify._p256_add(base, zero) == base == verify._p256_add(zero, base)
    assert verify._p256_add(base, negative)[2] == 0
    doubled, added = verify._p256_double(base), verify._p256_add(base, base)
    assert doubled == added
    assert verify._p256_double(zero)[2] == 0


@pytest.mark.parametrize("secret", [1, 2, N - 1])
def test_p256_verifies_keys_whose_sum_with_the_base_is_special(secret: int) -> None:
    """G + G is a doubling and G - G is the point at infinity: the addition formula alone loses both."""
    key = ec.derive_private_key(secret, ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    assert verify.is_p256(public, b"m", key.sign(b"m", ec.ECDSA(hashes.SHA256())))


def test_keys_are_named_as_sigstore_bundles_name_them() -> None:
    pem = EC.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (key,) = verify.parse_public_keys(pem.decode())
    assert key == verify.PublicKey("p256", EC_RAW, key_id(pem))
    both = (
        pem.decode() + ED.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    )
    assert [k.kind for k in verify.parse_public_keys(both)] == ["p256", "ed25519"]


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP256K1()])
def test_keys_of_other_curves_are_refused(curve: ec.EllipticCurve) -> None:
    key = ec.generate_private_key(curve).public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    with pytest.raises(ValueError, match="expected an Ed25519 or P-256"):
        verify.parse_public_keys(pem)


def test_a_signature_takes_well_under_a_second() -> None:
    signature, der = ED.sign(b"m"), sign_p256(b"m")
    start = time.process_time()
    assert verify.is_ed25519(ED_RAW, b"m", signature)
    assert verify.is_p256(EC_RAW, b"m", der)
    assert time.process_time() - start < 0.5
