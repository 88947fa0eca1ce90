"""Private keys in files: PKCS#8 PEM, not encrypted, readable by their owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from pellucid.core.signature import ECDSA_P256, ED25519
from pellucid.errors import KeyRefusedError, NotFoundError, UsageError

KEY_FILE_MAX: Final = 16 * 2**10  # limit: a key file is far smaller
PrivateKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey


class FileKey:
    """A ``ports.Signer`` whose key lies in a file; the key is read once, at construction."""

    EXAMPLE_URI: Final = "file:keys/builder.key"

    def __init__(self, key: PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls, path: Path, algorithm: str) -> FileKey:
        """Make a new key (``ed25519`` or ``ecdsa-p256``) in a new file of mode 0600.

        Raises:
            KeyRefusedError: The file exists, or the algorithm is neither.
        """
        key = _make(algorithm)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise KeyRefusedError(f"key {path}: expected no such file yet, got one") from None
        except OSError as error:
            raise UsageError(f"key {path}: expected a place to write, got {error.strerror}") from error
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        return cls(key)

    @classmethod
    def from_uri(cls, uri: str) -> FileKey:
        """Open the key at ``file:PATH``.

        Raises:
            NotFoundError: No such file.
            KeyRefusedError: Group or others may read it, or it is not an Ed25519 or P-256 key.
        """
        scheme, _, path = uri.partition(":")
        if scheme != "file" or not path:
            raise UsageError(f"key: expected file:PATH, got {uri!r:.200}")
        return cls.from_pem(_read_private(Path(path)), subject=f"key {path}")

    @classmethod
    def from_pem(cls, pem: bytes, *, subject: str = "key") -> FileKey:
        """Key of PKCS#8 PEM text."""
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise KeyRefusedError(
                f"{subject}: expected PKCS#8 PEM without password, got something else"
            ) from None
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return cls(key)
        if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
            return cls(key)
        raise KeyRefusedError(f"{subject}: expected Ed25519 or P-256, got {type(key).__name__}")

    @property
    def algorithm(self) -> str:
        return ED25519 if isinstance(self._key, ed25519.Ed25519PrivateKey) else ECDSA_P256

    def public_pem(self) -> bytes:
        """SubjectPublicKeyInfo, PEM."""
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, message: bytes) -> bytes:
        """Ed25519: 64 bytes; P-256: DER over SHA-256."""
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(message)
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))

    def __repr__(self) -> str:
        return f"FileKey({self.algorithm})"


def _make(algorithm: str) -> PrivateKey:
    if algorithm == ED25519:
        return ed25519.Ed25519PrivateKey.generate()
    if algorithm == ECDSA_P256:
        return ec.generate_private_key(ec.SECP256R1())
    raise KeyRefusedError(f"key algorithm: expected {ED25519} or {ECDSA_P256}, got {algorithm!r:.40}")


def _read_private(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of what was opened, not of what the name says later
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise KeyRefusedError(
                    f"key {path}: expected a file that only its owner can read, got mode {mode & 0o777:o}",
                    hint=f"chmod 600 {path}",
                )
            return file.read(KEY_FILE_MAX)
    except FileNotFoundError:
        raise NotFoundError(f"key {path}: expected a key file, got none") from None
    except OSError as error:
        raise KeyRefusedError(f"key {path}: expected a readable file, got {error.strerror}") from error
