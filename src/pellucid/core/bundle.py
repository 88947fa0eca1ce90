"""Evidence bundles as bytes: the canonical container, its manifest, and the proofs inside.

A zip of stored members, sorted by name, fixed times, no extra fields, no comment: there is exactly
one container for a set of members, so that no byte of it is free. ``evidence/verify.py`` has its own
reader on purpose: two readers, one answer. Source: spec/evidence-bundle.md, sections 1 to 3.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.core.dsse import sign_bundle
from pellucid.core.merkle.hashing import hash_children
from pellucid.core.signature import ECDSA_P256, SigningKey
from pellucid.errors import FormatError, LimitError, ProofError

FORMAT: Final = "pellucid-evidence-bundle/v1"
MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.sigstore.json"
PAYLOAD_TYPE: Final = "application/vnd.pellucid.evidence-bundle+json"
MEMBERS_MAX: Final = 65_535  # limit of the zip directory without its 64-bit extension
BUNDLE_MAX: Final = 512 * 2**20  # limit: verifiers hold a bundle in memory
NAME_MAX: Final = 250
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*){0,7}", re.ASCII)
_DATE: Final = 0x21  # 1980-01-01, the first day a zip can say
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
_END: Final = struct.Struct("<4s4H2LH")
_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

_ROLES: Final = (
    (r"index\.html", "page"),
    (r"verify\.py", "verifier"),
    (r"case\.json", "case"),
    (r"log/checkpoint", "checkpoint"),
    (r"log/consistency\.json", "consistency"),
    (r"log/range\.jsonl?", "range"),
    (r"entries/\d{12}\.json", "entry"),
    (r"entries/\d{12}\.tlog-proof", "proof"),
    (r"openings/\d{12}\.json", "openings"),
    (r"inputs/\d{12}\.json", "input"),
    (r"packages/[0-9a-f]{64}/.+", "package"),
    (r"policies/[0-9a-f]{64}", "policy"),
    (r"replays/[0-9a-f]{64}\.sigstore\.json", "replay"),
)


def role_of(path: str) -> str:
    """What a member is for, by where it stands.

    Raises:
        FormatError: No member of a bundle stands there.
    """
    for pattern, role in _ROLES:
        if re.fullmatch(pattern, path, re.ASCII):
            return role
    raise FormatError(f"evidence bundle: expected a member it may hold, got {path!r:.120}")


# -- container ------------------------------------------------------------------------------------


def write_container(members: Mapping[str, bytes]) -> bytes:
    """The one container of these members.

    Raises:
        FormatError: A name outside the rules.
        LimitError: Too many members, or too large.
    """
    if len(members) > MEMBERS_MAX or sum(map(len, members.values())) > BUNDLE_MAX:
        raise LimitError(
            f"evidence bundle: expected at most {MEMBERS_MAX:,} members and {BUNDLE_MAX:,} bytes, got more",
            hint="export a shorter period",
        )
    body, directory, offset = [], [], 0
    for name in sorted(members):
        _check_name(name)
        raw, data = name.encode(), members[name]
        head = _local(raw, data)
        body += [head, data]
        directory.append(_central(raw, data, offset))
        offset += len(head) + len(data)
    tail = b"".join(directory)
    count = len(members)
    end = _END.pack(b"PK\x05\x06", 0, 0, count, count, len(tail), offset, 0)
    return b"".join([*body, tail, end])


def read_container(data: bytes) -> dict[str, bytes]:
    """Members of a container that ``write_container`` would have written, byte for byte.

    Raises:
        FormatError: Anything else; names the member or the byte.
        LimitError: Larger than the limits.
    """
    if len(data) > BUNDLE_MAX:
        raise LimitError(f"evidence bundle: expected at most {BUNDLE_MAX:,} bytes, got {len(data):,}")
    members: dict[str, bytes] = {}
    position = 0
    while data[position : position + 4] == b"PK\x03\x04":
        name, content, position = _read_member(data, position)
        if name in members:
            raise FormatError(f"evidence bundle: expected each member once, got {name!r} again")
        members[name] = content
    again = write_container(members)
    if again != data:
        raise FormatError(
            f"evidence bundle: {_place(data, again, members)}: expected the canonical container"
        )
    return members


def _check_name(name: str) -> None:
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise FormatError(f"evidence bundle: expected a plain member name, got {name!r:.120}")


def _local(name: bytes, data: bytes) -> bytes:
    size = len(data)
    return _LOCAL.pack(b"PK\x03\x04", 20, 0, 0, 0, _DATE, zlib.crc32(data), size, size, len(name), 0) + name


def _central(name: bytes, data: bytes, offset: int) -> bytes:
    size = len(data)
    numbers = (20, 20, 0, 0, 0, _DATE, zlib.crc32(data), size, size, len(name), 0, 0, 0, 0, 0, offset)
    return _CENTRAL.pack(b"PK\x01\x02", *numbers) + name


def _read_member(data: bytes, position: int) -> tuple[str, bytes, int]:
    if len(data) - position < _LOCAL.size:
        raise FormatError(f"evidence bundle: byte {position:,}: expected a whole header, got the end")
    fields = _LOCAL.unpack_from(data, position)
    size, name_size = fields[7], fields[9]
    start = position + _LOCAL.size + name_size
    name = data[position + _LOCAL.size : start].decode("latin-1")
    _check_name(name)
    if start + size > len(data):
        raise FormatError(f"{name}: expected {size:,} bytes, got the end of the bundle")
    return name, data[start : start + size], start + size


def _place(data: bytes, again: bytes, members: Mapping[str, bytes]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(data, again, strict=False)) if a != b), len(again))
    position = 0
    for name in sorted(members):
        position += _LOCAL.size + len(name) + len(members[name])
        if at < position:
            return f"{name} (byte {at:,})"
    return f"directory (byte {at:,})"


# -- manifest -------------------------------------------------------------------------------------


class _LowS:
    """Signs with the lower of the two values of s, so that a manifest has one signature form."""

    def __init__(self, signer: SigningKey) -> None:
        self._signer = signer

    @property
    def algorithm(self) -> str:
        return self._signer.algorithm

    def public_pem(self) -> bytes:
        return self._signer.public_pem()

    def sign(self, message: bytes) -> bytes:
        signature = self._signer.sign(message)
        if self.algorithm != ECDSA_P256:
            return signature
        r, s = decode_dss_signature(signature)
        return encode_dss_signature(r, min(s, _P256_ORDER - s))


def seal(members: Mapping[str, bytes], *, created: str, signer: SigningKey) -> bytes:
    """Evidence bundle of these members: the manifest that lists them, its signature, the container.

    Raises:
        FormatError, LimitError: A member that no bundle may hold, or too much of it.
    """
    listed = [
        {"digest": sha256(data), "path": path, "role": role_of(path), "size": len(data)}
        for path, data in sorted(members.items())
    ]
    manifest = canonical.encode({"created": created, "format": FORMAT, "members": listed})
    signed = sign_bundle(PAYLOAD_TYPE, manifest, _LowS(signer))
    return write_container({**members, MANIFEST: manifest, SIGNATURE: signed})


# -- proofs as members ----------------------------------------------------------------------------


def format_proof(index: int, hashes: Sequence[bytes], checkpoint: bytes) -> bytes:
    """C2SP tlog-proof: index, hashes from the leaf's sibling upwards, checkpoint verbatim."""
    lines = ["c2sp.org/tlog-proof@v1", f"index {index}"]
    lines += [base64.b64encode(item).decode() for item in hashes]
    return "\n".join(lines).encode() + b"\n\n" + checkpoint


def range_hashes(
    start: int, stop: int, size: int, first: Sequence[bytes], last: Sequence[bytes]
) -> list[bytes]:
    """Hashes of all subtrees outside ``start..stop``, from left to right.

    Args:
        first: Inclusion proof of ``start``; gives what lies to the left.
        last: Inclusion proof of ``stop - 1``; gives what lies to the right.
    """
    left = [item for item, is_left in zip(first, _sides(start, size), strict=True) if is_left]
    right = [item for item, is_left in zip(last, _sides(stop - 1, size), strict=True) if not is_left]
    return [*reversed(left), *right]


def _sides(index: int, size: int) -> list[bool]:
    """For each hash of an inclusion proof, from the leaf upwards: does it lie to the left?"""
    sides, low, high = [], 0, size
    while high - low > 1:
        middle = low + (1 << (high - low - 1).bit_length() - 1)
        sides.append(index >= middle)
        low, high = (middle, high) if index >= middle else (low, middle)
    return sides[::-1]


def root_of_range(
    start: int, stop: int, size: int, leaves: Sequence[bytes], hashes: Sequence[bytes]
) -> bytes:
    """Root of a tree from the leaf hashes of a range and ``range_hashes``.

    Raises:
        ProofError: Too few or too many hashes, or not a range of that tree.
    """
    if not 0 <= start < stop <= size or len(leaves) != stop - start:
        raise ProofError(f"range proof: expected {start:,} to {stop:,} within {size:,}, got another range")
    rest = list(reversed(hashes))

    def subtree(low: int, high: int) -> bytes:
        if high <= start or low >= stop:
            if not rest:
                raise ProofError("range proof: expected more hashes")
            return rest.pop()
        if high - low == 1:
            return leaves[low - start]
        middle = low + (1 << (high - low - 1).bit_length() - 1)
        left = subtree(low, middle)
        return hash_children(left, subtree(middle, high))

    root = subtree(0, size)
    if rest:
        raise ProofError("range proof: expected fewer hashes")
    return root


def format_consistency(old: int, new: int, hashes: Sequence[bytes]) -> bytes:
    """Member that shows the log of size ``new`` to continue the one of size ``old``."""
    document: dict[str, Any] = {"hashes": [item.hex() for item in hashes], "new": new, "old": old}
    return canonical.encode(document)
