"""Authorities and certificates for tests: real ones, made anew each time, worth nothing elsewhere."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; ``file`` is its own, for who should believe it."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder, self._key, self._name = folder, ec.generate_private_key(ec.SECP256R1()), _name(name)
        own = self._begin(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def _begin(self, subject: x509.Name, key: Key, *, days: int = 1) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + days * _DAY) - _DAY)
            .not_valid_after(now + days * _DAY)
        )

    def sign(self, name: str, *others: x509.GeneralName, client: bool = False, days: int = 1) -> Files:
        """A certificate for a server on loopback, or for a client; of yesterday when ``days`` is negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        use = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        names = list(others)
        if not client:
            names += [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        built = self._begin(_name(name), key, days=days).add_extension(
            x509.ExtendedKeyUsage([use]), critical=False
        )
        if names:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        files = Files(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.certificate.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        files.key.touch(0o600)
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
