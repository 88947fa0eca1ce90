"""Names of a certificate that TLS has verified. Whether it holds is not asked here."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from pellucid.core.access import IDENTITY_MAX

NAMES_MAX: Final = 32  # limit: names of one certificate that are looked at


@lru_cache(maxsize=1_024)
def certificate_names(raw: bytes) -> tuple[str, ...]:
    """``URI:``, ``DNS:`` and ``EMAIL:`` names, then ``CN:``, in that order; DER or PEM.

    A name that holds anything but printable ASCII, or is endless, is left out; what is no certificate
    has no names.
    """
    try:
        parse = x509.load_pem_x509_certificate if raw[:5] == b"-----" else x509.load_der_x509_certificate
        found = parse(raw)
        try:
            other = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            other = x509.SubjectAlternativeName([])
        common = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        names = [
            *(f"URI:{name}" for name in other.get_values_for_type(x509.UniformResourceIdentifier)),
            *(f"DNS:{name}" for name in other.get_values_for_type(x509.DNSName)),
            *(f"EMAIL:{name}" for name in other.get_values_for_type(x509.RFC822Name)),
            *(f"CN:{name.value!s}" for name in common[:1]),
        ]
    except (ValueError, TypeError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return ()
    plain = (
        name for name in names if name.isascii() and name.isprintable() and len(name) <= IDENTITY_MAX - 12
    )
    return tuple(plain)[:NAMES_MAX]
