"""Key files: private to their owner, of two kinds, and never overwritten."""

from __future__ import annotations

import os

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from pellucid import schemes
from pellucid.core.signature import algorithm_of, verify_signature
from pellucid.errors import KeyRefusedError, NotFoundError, UsageError
from pellucid.keys.file import FileKey

ALGORITHMS = ["ed25519", "ecdsa-p256"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_generated_opens_and_signs(tmp_path, algorithm):
    path = tmp_path / "x.key"
    made = FileKey.generate(path, algorithm)
    assert path.stat().st_mode & 0o777 == 0o600
    opened = schemes.from_uri("key", f"file:{path}")
    assert opened.public_pem() == made.public_pem()
    assert opened.algorithm == algorithm == algorithm_of(opened.public_pem())
    verify_signature(made.public_pem(), b"message", opened.sign(b"message"))


def test_the_mode_does_not_depend_on_the_umask(tmp_path):
    before = os.umask(0)
    try:
        FileKey.generate(tmp_path / "x.key", "ed25519")
    finally:
        os.umask(before)
    assert (tmp_path / "x.key").stat().st_mode & 0o777 == 0o600


def test_a_key_is_never_overwritten(tmp_path):
    path = tmp_path / "x.key"
    FileKey.generate(path, "ed25519")
    before = path.read_bytes()
    with pytest.raises(KeyRefusedError, match="no such file yet"):
        FileKey.generate(path, "ed25519")
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_that_others_can_reach_is_refused(tmp_path, mode):
    path = tmp_path / "x.key"
    FileKey.generate(path, "ed25519")
    path.chmod(mode)
    with pytest.raises(KeyRefusedError, match="only its owner") as caught:
        FileKey.from_uri(f"file:{path}")
    assert caught.value.hint == f"chmod 600 {path}"


def test_absent_folder_and_other_schemes(tmp_path):
    with pytest.raises(NotFoundError):
        FileKey.from_uri(f"file:{tmp_path}/none.key")
    with pytest.raises(KeyRefusedError):
        FileKey.from_uri(f"file:{tmp_path}")
    for uri in ("pkcs11:x", "file:", "file"):
        with pytest.raises(UsageError):
            FileKey.from_uri(uri)
    with pytest.raises(KeyRefusedError, match="algorithm"):
        FileKey.generate(tmp_path / "y.key", "rsa")
    with pytest.raises(UsageError, match="place to write"):
        FileKey.generate(tmp_path / "none" / "y.key", "ed25519")


def pem(key, encryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def test_other_keys_are_refused_without_showing_them():
    encrypted = pem(ec.generate_private_key(ec.SECP256R1()), BestAvailableEncryption(b"secret"))
    p384 = pem(ec.generate_private_key(ec.SECP384R1()), NoEncryption())
    big = pem(rsa.generate_private_key(65537, 2048), NoEncryption())
    for raw in (encrypted, p384, big, b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        with pytest.raises(KeyRefusedError) as caught:
            FileKey.from_pem(raw)
        assert "BEGIN" not in str(caught.value)


def test_a_key_does_not_print_itself(tmp_path):
    key = FileKey.generate(tmp_path / "x.key", "ed25519")
    assert repr(key) == "FileKey(ed25519)"
