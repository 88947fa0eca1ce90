#!/usr/bin/env python3
"""Check a pellucid evidence bundle, offline, believing nobody but the keys you bring.

    python3 -I verify.py bundle.zip --trust DIR [--json]

One file, Python's standard library only, no network, nothing written. You are meant to read it: it
goes from the outside in, and every rule stands where it is checked.

    1. how results are told   what holds, what does not, with its place
    2. bytes                  strict JSON, the container
    3. signatures             Ed25519 and ECDSA P-256 in plain Python, PEM, DER
    4. the log                signed notes, checkpoints, RFC 6962 trees and proofs, witnesses
    5. what is believed       the trust folder that YOU got on another way than the bundle
    6. envelopes              DSSE in Sigstore bundles, in-toto statements
    7. the bundle             manifest, checkpoint, entries, the call, its package, its load, its replays
    8. a whole period         nothing left out, every number counted
    9. the command

DIR holds  log.vkey            the log's verifier key (C2SP signed note)
           exporter.pem builder.pem qualifier.pem approver.pem replayer.pem     public keys, one or more each
           seen.checkpoint     optional: the last checkpoint of this log that you saw
           policy.txt          optional: C2SP tlog-policy, which log and which witnesses you require

Exit status: 0 it holds; 2 usage; 3 the evidence does not hold; 4 your policy refuses it.
It shows integrity: that this is what was recorded, by whom, and unchanged. It cannot show that what
was recorded is true.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import hmac
import io
import json
import re
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

HOLDS, USAGE, DOES_NOT_HOLD, POLICY_REFUSES = 0, 2, 3, 4
FORMAT = "pellucid-evidence-bundle/v1"
BUNDLE_MAX = 512 * 2**20  # limits: a hostile bundle costs bounded memory and time
MEMBERS_MAX = 65_535
ENTRY_MAX = 65_535
CHECKPOINT_MAX = 65_536
SIZE_MAX = 2**53 - 1
TRUST_FILE_MAX = 2**20
HEX64 = r"[0-9a-f]{64}"


# -- 1. how results are told ----------------------------------------------------------------------


class DoesNotHold(Exception):  # noqa: N818 - read aloud, it is what is meant
    """The evidence does not hold; ``place`` is a member (and what in it) or the container."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place, self.reason = place, reason


class PolicyRefuses(Exception):  # noqa: N818
    """The evidence may hold, but the reader's own policy.txt asks for more."""


class Usage(Exception):  # noqa: N818
    """The question was not well asked: files missing, keys unreadable."""


def fail(place: str, reason: str) -> NoReturn:
    raise DoesNotHold(place, reason)


# What hostile but well-signed documents can make plain field access raise: a wrong form, not a crash.
WRONG_FORM = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError, struct.error)


class Report:
    """What holds, what does not, what was not checked."""

    def __init__(self) -> None:
        self.holds: list[str] = []
        self.notes: list[str] = []
        self.failures: list[dict[str, str]] = []
        self.refused: list[str] = []
        self.facts: dict[str, Any] = {}

    def hold(self, text: str) -> None:
        self.holds.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def run(self, place: str, check: Any, *arguments: Any) -> Any:
        """Run one check; a failure is kept and the others still run."""
        try:
            return check(*arguments)
        except DoesNotHold as problem:
            self.failures.append({"place": problem.place, "reason": problem.reason})
        except PolicyRefuses as problem:
            self.refused.append(str(problem))
        except WRONG_FORM as problem:
            text = f"not of the expected form ({type(problem).__name__}: {problem})"
            self.failures.append({"place": place, "reason": text[:300]})
        return None

    @property
    def status(self) -> int:
        return DOES_NOT_HOLD if self.failures else POLICY_REFUSES if self.refused else HOLDS


# -- 2. bytes -------------------------------------------------------------------------------------


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key appears twice")
    return document


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"a number that is not an integer: {text[:40]}")


def parse_json(raw: bytes) -> Any:
    """JSON without duplicate keys and without floating point."""
    text = raw.decode("utf-8")
    return json.loads(text, object_pairs_hook=_no_twins, parse_float=_no_float, parse_constant=_no_float)


def canonical(value: Any) -> bytes:
    """RFC 8785 on our profile (no floats, ASCII keys): sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse_canonical(place: str, raw: bytes) -> Any:
    """JSON that is written the one canonical way: no two files mean the same."""
    try:
        value = parse_json(raw)
        same = canonical(value) == raw
    except WRONG_FORM as problem:
        fail(place, f"expected canonical JSON, got {str(problem)[:200]}")
    if not same:
        fail(place, "expected canonical JSON, got another spelling of it")
    return value


def unbase64(text: str) -> bytes:
    """Base64 of exactly one spelling."""
    raw = base64.b64decode(text.encode("ascii"), validate=True)
    if base64.b64encode(raw).decode() != text:
        raise ValueError("base64 with stray bits")
    return raw


# The container is a zip of stored members, sorted by name, all times 1980-01-01, no extras. It is
# read front to back, written again from what was read, and must come out the same: so no byte of the
# file is free to change.
_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_LOCAL_SIZE = 30
_MEMBER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*){0,7}")


def local_header(name: bytes, data: bytes) -> bytes:
    return (
        _LOCAL
        + struct.pack("<5H3L2H", 20, 0, 0, 0, 33, zlib.crc32(data), len(data), len(data), len(name), 0)
        + name
    )


def central_header(name: bytes, data: bytes, offset: int) -> bytes:
    sizes = (zlib.crc32(data), len(data), len(data), len(name))
    return _CENTRAL + struct.pack("<6H3L5H2L", 20, 20, 0, 0, 0, 33, *sizes, 0, 0, 0, 0, 0, offset) + name


def read_container(data: bytes) -> dict[str, bytes]:
    """Members by name, in order."""
    members: dict[str, bytes] = {}
    central: list[bytes] = []
    position, last = 0, ""
    while data[position : position + 4] == _LOCAL:
        name, content = _read_member(data, position)
        where = f"container: byte {position}"
        if name <= last or len(members) == MEMBERS_MAX:
            fail(where, f"expected members in order, each once, got {name!r} after {last!r}")
        header = local_header(name.encode(), content)
        if data[position : position + len(header)] != header:
            fail(name, f"its content does not match its header in the container (at byte {position})")
        central.append(central_header(name.encode(), content, position))
        members[name], last = content, name
        position += len(header) + len(content)
    directory = b"".join(central)
    count = len(members)
    end = _END + struct.pack("<4H2LH", 0, 0, count, count, len(directory), position, 0)
    if data[position:] != directory + end:
        fail(
            f"container: byte {_first_difference(data, directory + end, position)}",
            "expected the zip directory",
        )
    return members


def _read_member(data: bytes, position: int) -> tuple[str, bytes]:
    head = data[position : position + _LOCAL_SIZE]
    if len(head) < _LOCAL_SIZE:
        fail(f"container: byte {position}", "the file ends inside a header")
    size, _, name_size = struct.unpack("<2LH", head[18:28])
    start = position + _LOCAL_SIZE + name_size
    name = data[position + _LOCAL_SIZE : start].decode("latin-1")
    if not _MEMBER_NAME.fullmatch(name) or len(name) > 250:
        fail(f"container: byte {position}", f"expected a plain member name, got {name[:60]!r}")
    if start + size > len(data):
        fail(name, f"expected {size} bytes, but the file ends earlier")
    return name, data[start : start + size]


def _first_difference(data: bytes, expected: bytes, position: int) -> int:
    for offset, byte in enumerate(expected):
        if data[position + offset : position + offset + 1] != bytes([byte]):
            return position + offset
    return position + len(expected)


# -- 3. signatures --------------------------------------------------------------------------------
# Verification only: nothing secret is handled, so nothing needs constant time.

# Ed25519 (RFC 8032). Points are extended coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, T = XY/Z.
_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_SQRT_M1 = pow(2, (_P - 1) // 4, _P)
Point = tuple[int, int, int, int]
_ZERO: Point = (0, 1, 1, 0)


def _ed_add(a: Point, b: Point) -> Point:
    x1, y1, z1, t1 = a
    x2, y2, z2, t2 = b
    m, n = (y1 - x1) * (y2 - x2) % _P, (y1 + x1) * (y2 + x2) % _P
    c, d = 2 * t1 * t2 * _D % _P, 2 * z1 * z2 % _P
    e, f, g, h = n - m, d - c, d + c, n + m
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _ed_decode(raw: bytes) -> Point:
    number = int.from_bytes(raw, "little")
    y, sign = number & (2**255 - 1), number >> 255
    if y >= _P:
        raise ValueError("Ed25519 point: y is not reduced")
    u, v = (y * y - 1) % _P, (_D * y * y + 1) % _P
    x = u * v**3 * pow(u * v**7, (_P - 5) // 8, _P) % _P
    if v * x * x % _P != u:
        x = x * _SQRT_M1 % _P
    if v * x * x % _P != u or (x == 0 and sign):
        raise ValueError("Ed25519 point: not on the curve")
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _ed_encode(point: Point) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, -1, _P)
    return (y * inverse % _P | (x * inverse % _P & 1) << 255).to_bytes(32, "little")


_ED_BASE = _ed_decode((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))


def is_ed25519(public: bytes, message: bytes, signature: bytes) -> bool:
    """True if S < L and R is the encoding of [S]B - [h]A, byte for byte (as OpenSSL does it)."""
    if len(signature) != 64 or len(public) != 32:
        return False
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    if s >= _L:
        return False  # a second spelling of the same signature
    try:
        x, y, _, t = _ed_decode(public)
    except ValueError:
        return False
    minus_a = (_P - x, y, 1, _P - t)
    h = int.from_bytes(hashlib.sha512(r + public + message).digest(), "little") % _L
    table = (_ZERO, _ED_BASE, minus_a, _ed_add(_ED_BASE, minus_a))
    point = _ZERO
    for bit in range(252, -1, -1):
        point = _ed_add(point, point)
        chosen = (s >> bit & 1) | (h >> bit & 1) << 1
        if chosen:
            point = _ed_add(point, table[chosen])
    return hmac.compare_digest(_ed_encode(point), r)


# ECDSA over NIST P-256 with SHA-256 (FIPS 186-5). Points are Jacobian: x = X/Z^2, y = Y/Z^3; Z = 0 is
# the point at infinity.
_Q = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
_GX = 0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296
_GY = 0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5
Jacobian = tuple[int, int, int]


def _p256_double(a: Jacobian) -> Jacobian:
    x, y, z = a
    if not z or not y:
        return 1, 1, 0
    yy, zz = y * y % _Q, z * z % _Q
    s, m = 4 * x * yy % _Q, 3 * (x - zz) * (x + zz) % _Q
    x3 = (m * m - 2 * s) % _Q
    return x3, (m * (s - x3) - 8 * yy * yy) % _Q, 2 * y * z % _Q


def _p256_add(a: Jacobian, b: Jacobian) -> Jacobian:
    if not a[2] or not b[2]:
        return a if a[2] else b
    (x1, y1, z1), (x2, y2, z2) = a, b
    zz1, zz2 = z1 * z1 % _Q, z2 * z2 % _Q
    u1, u2 = x1 * zz2 % _Q, x2 * zz1 % _Q
    s1, s2 = y1 * z2 * zz2 % _Q, y2 * z1 * zz1 % _Q
    h, r = (u2 - u1) % _Q, (s2 - s1) % _Q
    if not h:
        return (1, 1, 0) if r else _p256_double(a)
    hh, hhh = h * h % _Q, h * h * h % _Q
    x3 = (r * r - hhh - 2 * u1 * hh) % _Q
    return x3, (r * (u1 * hh - x3) - s1 * hhh) % _Q, z1 * z2 * h % _Q


def _p256_point(raw: bytes) -> Jacobian:
    x, y = int.from_bytes(raw[1:33], "big"), int.from_bytes(raw[33:], "big")
    if raw[0] != 4 or x >= _Q or y >= _Q or (y * y - x * x * x + 3 * x - _B) % _Q:
        raise ValueError("P-256 point: not on the curve")
    return x, y, 1


def _der_integer(raw: bytes, position: int) -> tuple[int, int]:
    size = raw[position + 1]
    body = raw[position + 2 : position + 2 + size]
    if raw[position] != 2 or not 1 <= size <= 33 or len(body) != size or body[0] & 0x80:
        raise ValueError("DER integer")
    if len(body) > 1 and body[0] == 0 and not body[1] & 0x80:
        raise ValueError("DER integer with a needless zero")
    return int.from_bytes(body, "big"), position + 2 + size


def parse_der(signature: bytes) -> tuple[int, int]:
    """r and s of a strictly encoded ECDSA signature."""
    if not 8 <= len(signature) <= 72 or signature[0] != 0x30 or signature[1] != len(signature) - 2:
        raise ValueError("DER sequence")
    r, position = _der_integer(signature, 2)
    s, position = _der_integer(signature, position)
    if position != len(signature):
        raise ValueError("bytes after the DER sequence")
    return r, s


def is_p256(public: bytes, message: bytes, signature: bytes) -> bool:
    """True for a valid signature; ``public`` is 04 || x || y. Either value of s is valid (FIPS 186-5)."""
    try:
        r, s = parse_der(signature)
        key = _p256_point(public)
    except (ValueError, IndexError):
        return False
    if not (1 <= r < _N and 1 <= s < _N):
        return False
    e = int.from_bytes(hashlib.sha256(message).digest(), "big")
    w = pow(s, -1, _N)
    u1, u2 = e * w % _N, r * w % _N
    base = (_GX, _GY, 1)
    table = ((1, 1, 0), base, key, _p256_add(base, key))
    point: Jacobian = (1, 1, 0)
    for bit in range(255, -1, -1):
        point = _p256_double(point)
        chosen = (u1 >> bit & 1) | (u2 >> bit & 1) << 1
        if chosen:
            point = _p256_add(point, table[chosen])
    x, _, z = point
    return bool(z) and x * pow(z * z, -1, _Q) % _Q % _N == r


class PublicKey(NamedTuple):
    """``kind`` is ``ed25519`` or ``p256``; ``hint`` is how Sigstore bundles name the key."""

    kind: str
    raw: bytes
    hint: str

    def verify(self, message: bytes, signature: bytes) -> bool:
        return (is_ed25519 if self.kind == "ed25519" else is_p256)(self.raw, message, signature)


_SPKI_ED25519 = bytes.fromhex("302a300506032b6570032100")
_SPKI_P256 = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200")
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----\s+([A-Za-z0-9+/=\s]+?)\s+-----END PUBLIC KEY-----")


def parse_public_keys(text: str) -> list[PublicKey]:
    """Every key of a PEM file."""
    keys = []
    for body in _PEM.findall(text):
        der = unbase64("".join(body.split()))
        encoded = base64.b64encode(der).decode()
        lines = "\n".join(encoded[i : i + 64] for i in range(0, len(encoded), 64))
        pem = f"-----BEGIN PUBLIC KEY-----\n{lines}\n-----END PUBLIC KEY-----\n"
        hint = hashlib.sha256(pem.encode()).hexdigest()
        if der.startswith(_SPKI_ED25519) and len(der) == 44:
            keys.append(PublicKey("ed25519", der[12:], hint))
        elif der.startswith(_SPKI_P256) and len(der) == 91:
            _p256_point(der[26:])
            keys.append(PublicKey("p256", der[26:], hint))
        else:
            raise ValueError("expected an Ed25519 or P-256 public key")
    if not keys:
        raise ValueError("expected a public key in PEM")
    return keys


# -- 4. the log -----------------------------------------------------------------------------------


class LogKey(NamedTuple):
    name: str
    key_id: bytes
    kind: int  # 1 Ed25519, 4 Ed25519 cosignature
    public: bytes


class Checkpoint(NamedTuple):
    origin: str
    size: int
    root: bytes
    text: bytes
    signatures: list[tuple[str, bytes, bytes]]  # name, key id, signature


def parse_log_key(text: str) -> LogKey:
    """A C2SP verifier key: name+hash+base64(type || key)."""
    name, hash_text, key_text = text.removesuffix("\n").split("+", 2)
    raw = unbase64(key_text)
    key_id = hashlib.sha256(name.encode() + b"\n" + raw).digest()[:4]
    if len(raw) != 33 or raw[0] not in (1, 4) or key_id.hex() != hash_text or not name or " " in name:
        raise ValueError("expected an Ed25519 verifier key whose hash fits")
    return LogKey(name, key_id, raw[0], raw[1:])


_CHECKPOINT = re.compile(r"([^\n]{1,255})\n(0|[1-9][0-9]{0,18})\n([A-Za-z0-9+/]{43}=)\n")
_SIGNATURE_LINE = re.compile("\u2014 ([^ +\n]{1,255}) ([A-Za-z0-9+/=]{8,16384})")


def open_checkpoint(place: str, raw: bytes, log: LogKey) -> Checkpoint:
    """A checkpoint that the log signed."""
    try:
        checkpoint = _parse_checkpoint(raw)
    except WRONG_FORM as problem:
        fail(place, f"expected a signed checkpoint, got {str(problem)[:200]}")
    if checkpoint.origin != log.name:
        fail(place, f"expected the log {log.name!r} of log.vkey, got {checkpoint.origin!r}")
    ours = [s for name, key_id, s in checkpoint.signatures if (name, key_id) == (log.name, log.key_id)]
    if len(ours) != 1 or not is_ed25519(log.public, checkpoint.text, ours[0]):
        fail(place, "expected the log's signature, got none that log.vkey verifies")
    return checkpoint


def _parse_checkpoint(raw: bytes) -> Checkpoint:
    text, separator, tail = raw[:CHECKPOINT_MAX].decode("utf-8").partition("\n\n")
    match = _CHECKPOINT.fullmatch(text + "\n")
    lines = tail.split("\n")
    if not separator or match is None or lines.pop() != "" or not 1 <= len(lines) <= 64:
        raise ValueError("another form")
    size, root = int(match[2]), unbase64(match[3])
    if size > SIZE_MAX or (size == 0 and root != root_of([])):
        raise ValueError("a size beyond 2**53, or an empty tree with the root of another")
    signatures = []
    for line in lines:
        found = _SIGNATURE_LINE.fullmatch(line)
        if found is None:
            raise ValueError("a malformed signature line")
        blob = unbase64(found[2])
        signatures.append((found[1], blob[:4], blob[4:]))
    return Checkpoint(match[1], size, root, (text + "\n").encode(), signatures)


def hash_leaf(entry: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + entry).digest()


def hash_children(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_of(leaves: list[bytes]) -> bytes:
    """RFC 6962 section 2.1, bottom up: an odd last node moves up unchanged."""
    level = leaves or [hashlib.sha256(b"").digest()]
    while len(level) > 1:
        paired = [hash_children(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = paired + level[len(level) & ~1 :]
    return level[0]


def root_of_range(start: int, stop: int, size: int, leaves: list[bytes], hashes: list[bytes]) -> bytes:
    """Root of a tree of ``size`` leaves from leaves start..stop and the hashes of all other subtrees,
    in order of the tree from left to right. With one leaf this is an inclusion proof in tree order."""
    rest = iter(hashes)

    def subtree(low: int, high: int) -> bytes:
        if high <= start or low >= stop:
            return next(rest)
        if high - low == 1:
            return leaves[low - start]
        middle = low + (1 << (high - low - 1).bit_length() - 1)
        left = subtree(low, middle)
        return hash_children(left, subtree(middle, high))

    try:
        root = subtree(0, size)
    except StopIteration:
        raise ValueError("too few hashes") from None
    if next(rest, None) is not None:
        raise ValueError("too many hashes")
    return root


def root_by_inclusion(index: int, size: int, leaf: bytes, proof: list[bytes]) -> bytes:
    """RFC 9162 section 2.1.3.2."""
    node, last, root = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise ValueError("too many hashes")
        if node & 1 or node == last:
            root = hash_children(sibling, root)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            root = hash_children(root, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise ValueError("too few hashes")
    return root


def roots_by_consistency(old: int, new: int, old_root: bytes, proof: list[bytes]) -> tuple[bytes, bytes]:
    """RFC 9162 section 2.1.4.2: the two roots that the proof leads to."""
    if old & (old - 1) == 0:
        proof = [old_root, *proof]
    node, last = old - 1, new - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    if not proof:
        raise ValueError("too few hashes")
    first = second = proof[0]
    for sibling in proof[1:]:
        if last == 0:
            raise ValueError("too many hashes")
        if node & 1 or node == last:
            first, second = hash_children(sibling, first), hash_children(sibling, second)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            second = hash_children(second, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise ValueError("too few hashes")
    return first, second


def verify_seen(trust: Trust, now: Checkpoint, consistency: bytes | None) -> None:
    """The bundle's checkpoint continues the one the reader saw."""
    place, seen = "log/checkpoint", trust.seen
    if seen is None:
        return
    if now.size < seen.size:
        fail(place, f"older than the checkpoint you saw: size {now.size}, you saw {seen.size}")
    if now.size == seen.size:
        if now.root != seen.root:
            fail(place, f"forked from the checkpoint you saw: another root at size {seen.size}")
        return
    if seen.size == 0:
        return
    place = "log/consistency.json"
    if consistency is None:
        lack = f"missing: nothing shows that size {now.size} continues size {seen.size}"
        fail(place, f"{lack}; it may be forked from the checkpoint you saw: export again with --seen FILE")
    proof = parse_canonical(place, consistency)
    if (proof["old"], proof["new"]) != (seen.size, now.size):
        fail(place, f"expected a proof from {seen.size} to {now.size}, got {proof['old']} to {proof['new']}")
    hashes = [bytes.fromhex(text) for text in proof["hashes"]]
    try:
        roots = roots_by_consistency(seen.size, now.size, seen.root, hashes)
    except ValueError as problem:
        fail(place, f"forked from the checkpoint you saw: the proof has {problem}")
    if roots != (seen.root, now.root):
        fail(place, "forked from the checkpoint you saw: the proof leads to other roots")


def verify_policy(text: str, checkpoint: Checkpoint, log: LogKey) -> str:
    """C2SP tlog-policy: the log is listed and the quorum of witnesses has signed. Says which."""
    logs: set[str] = set()
    signed: dict[str, bool] = {"none": True}
    quorum = ""
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if words[0] == "log" and len(words) in (2, 3):
            logs.add(words[1])
        elif words[0] == "witness" and len(words) in (3, 4) and words[1] not in signed:
            signed[words[1]] = _is_cosigned(checkpoint, parse_log_key(words[2]))
        elif words[0] == "group" and len(words) > 3 and words[1] not in signed:
            have = sum(signed[name] for name in words[3:])
            need = {"any": 1, "all": len(words) - 3}.get(words[2]) or int(words[2])
            signed[words[1]] = have >= need
        elif words[0] == "quorum" and len(words) == 2 and not quorum:
            quorum = words[1]
        else:
            raise Usage(f"policy.txt: expected a tlog-policy line, got {line[:80]!r}")
    if not quorum or quorum not in signed:
        raise Usage("policy.txt: expected one quorum line that names a witness, a group or none")
    if not any(parse_log_key(vkey)[:2] == log[:2] for vkey in logs):
        raise PolicyRefuses(f"policy.txt: the log {log.name!r} is not listed")
    if not signed[quorum]:
        raise PolicyRefuses(f"policy.txt: the checkpoint lacks the witnesses that quorum {quorum!r} asks for")
    return "no witness is required" if quorum == "none" else f"quorum {quorum!r} of witnesses has signed"


def _is_cosigned(checkpoint: Checkpoint, witness: LogKey) -> bool:
    for name, key_id, blob in checkpoint.signatures:
        if (name, key_id) == witness[:2] and witness.kind == 4 and len(blob) == 72:
            head = f"cosignature/v1\ntime {int.from_bytes(blob[:8], 'big')}\n".encode()
            return is_ed25519(witness.public, head + checkpoint.text, blob[8:])
    return False


# -- 5. what is believed --------------------------------------------------------------------------

ROLES = ("exporter", "builder", "qualifier", "approver", "replayer")


class Trust:
    """Keys and memory of the reader; nothing in it comes from a bundle."""

    def __init__(self, log: LogKey, keys: dict[str, list[PublicKey]], policy: str | None = None,
                 seen: Checkpoint | None = None) -> None:  # fmt: skip
        self.log, self.keys, self.policy, self.seen = log, keys, policy, seen

    def of(self, role: str) -> list[PublicKey]:
        if role not in self.keys:
            raise Usage(f"trust: this bundle needs {role}.pem, which your trust folder lacks")
        return self.keys[role]


def open_trust(folder: Path) -> Trust:
    files: dict[str, str] = {}
    for name in ("log.vkey", "policy.txt", "seen.checkpoint", *(f"{role}.pem" for role in ROLES)):
        path = folder / name
        if path.is_file():
            files[name] = path.read_bytes()[:TRUST_FILE_MAX].decode("utf-8")
    if "log.vkey" not in files or "exporter.pem" not in files:
        raise Usage(f"{folder}: expected log.vkey and exporter.pem")
    try:
        log = parse_log_key(files["log.vkey"])
        keys = {r: parse_public_keys(files[f"{r}.pem"]) for r in ROLES if f"{r}.pem" in files}
    except (ValueError, binascii.Error) as problem:
        raise Usage(f"{folder}: {problem}") from None
    seen = None
    if "seen.checkpoint" in files:
        try:
            seen = open_checkpoint("seen.checkpoint", files["seen.checkpoint"].encode(), log)
        except DoesNotHold as problem:
            raise Usage(f"{folder}: {problem}") from None
    return Trust(log, keys, files.get("policy.txt"), seen)


# -- 6. envelopes ---------------------------------------------------------------------------------

IN_TOTO = "application/vnd.in-toto+json"
MANIFEST_TYPE = "application/vnd.pellucid.evidence-bundle+json"
MODEL_SIGNING = "https://model_signing/signature/v1.0"
REPLAY = "urn:pellucid:replay:v1"
SIGNERS = {  # who may state what about a package
    "urn:pellucid:qualification:v1": "qualifier",
    "urn:pellucid:approval:v1": "approver",
    "https://slsa.dev/provenance/v1": "builder",
}


def open_envelope(
    place: str, raw: bytes, payload_type: str, keys: list[PublicKey]
) -> tuple[bytes, PublicKey]:
    """Payload of a Sigstore bundle, once one of the keys verifies it, and that key."""
    try:
        envelope = parse_json(raw)["dsseEnvelope"]
        (signature,) = envelope["signatures"]
        kind, payload, blob = (
            envelope["payloadType"],
            unbase64(envelope["payload"]),
            unbase64(signature["sig"]),
        )
        signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode("ascii"), len(payload), payload)
    except WRONG_FORM as problem:
        fail(place, f"expected a signed envelope, got another form ({str(problem)[:100]})")
    if kind != payload_type:
        fail(place, f"expected a payload of {payload_type}, got {kind[:80]!r}")
    for key in keys:
        if key.verify(signed, blob):
            _check_one_spelling(place, raw, envelope, key)
            return payload, key
    fail(place, "expected a signature by a key of your trust folder, got none that verifies")


def _check_one_spelling(place: str, raw: bytes, envelope: dict[str, Any], key: PublicKey) -> None:
    """Nothing unsigned is believed, and none of it is free to change either."""
    signature = {"sig": envelope["signatures"][0]["sig"], "keyid": ""}
    expected = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": key.hint}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": envelope["payload"],
            "payloadType": envelope["payloadType"],
            "signatures": [signature],
        },
    }
    if canonical(expected) != raw:
        fail(place, "expected the canonical spelling of the envelope")


def open_statement(place: str, raw: bytes, keys: list[PublicKey]) -> dict[str, Any]:
    """An in-toto statement, its signature checked."""
    payload, _ = open_envelope(place, raw, IN_TOTO, keys)
    return _parse_statement(place, payload)


def _parse_statement(place: str, payload: bytes) -> dict[str, Any]:
    statement = parse_json(payload)
    if statement["_type"] != "https://in-toto.io/Statement/v1":
        fail(place, "expected an in-toto statement v1")
    return dict(statement)


def subjects(statement: dict[str, Any]) -> set[str]:
    return {"sha256:" + subject["digest"]["sha256"] for subject in statement["subject"]}


# -- 7. the bundle --------------------------------------------------------------------------------

MEMBER_ROLES = {  # the closed list of what a bundle may hold
    "index.html": "page",
    "verify.py": "verifier",
    "case.json": "case",
    "log/checkpoint": "checkpoint",
    "log/consistency.json": "consistency",
    "log/range.json": "range",
    "log/range.jsonl": "range",
    r"entries/\d{12}\.json": "entry",
    r"entries/\d{12}\.tlog-proof": "proof",
    r"openings/\d{12}\.json": "openings",
    r"inputs/\d{12}\.json": "input",
    rf"packages/{HEX64}/.+": "package",
    rf"policies/{HEX64}": "policy",
    rf"replays/{HEX64}\.sigstore\.json": "replay",
}


@dataclass(frozen=True)
class Entry:
    """A leaf of the log, with its place in it."""

    index: int
    raw: bytes
    id: str
    type: str
    time: str
    data: dict[str, Any]
    place: str

    @property
    def digest(self) -> str:
        return sha256(self.raw)


def parse_entry(place: str, index: int, raw: bytes) -> Entry:
    if len(raw) > ENTRY_MAX:
        fail(place, f"expected at most {ENTRY_MAX} bytes, got {len(raw)}")
    event = parse_canonical(place, raw)
    if event["specversion"] != "1.0" or not isinstance(event["data"], dict):
        fail(place, "expected a CloudEvents 1.0 entry")
    return Entry(index, raw, str(event["id"]), str(event["type"]), str(event["time"]), event["data"], place)


class Bundle:
    """The members, and what has been established about them so far."""

    def __init__(self, members: dict[str, bytes], trust: Trust, report: Report) -> None:
        self.members, self.trust, self.report = members, trust, report
        self.manifest: dict[str, Any] = {}
        self.case: dict[str, Any] = {}
        self.checkpoint: Checkpoint
        self.entries: dict[int, Entry] = {}

    def member(self, name: str) -> bytes:
        if name not in self.members:
            fail(name, "missing")
        return self.members[name]

    def named(self, pattern: str) -> list[str]:
        return [name for name in self.members if re.fullmatch(pattern, name)]


def verify_bundle(data: bytes, trust: Trust) -> Report:
    """Check everything there is to check; the report says what."""
    report = Report()
    members = report.run("container", read_container, data)
    return report if members is None else verify_members(members, trust, report)


def verify_members(members: dict[str, bytes], trust: Trust, report: Report) -> Report:
    bundle = Bundle(members, trust, report)
    report.run("manifest.json", check_manifest, bundle)
    if report.failures:
        return report  # whatever follows would be about members that nobody vouches for
    report.run("log/checkpoint", check_log, bundle)
    if report.failures:
        return report
    if trust.policy is not None:
        report.run("policy.txt", check_policy, bundle, trust.policy)
    for name in bundle.named(r"entries/\d{12}\.json"):
        report.run(name, check_entry, bundle, name)
    for name in bundle.named(r"entries/\d{12}\.tlog-proof"):
        if name.replace(".tlog-proof", ".json") not in members:
            report.run(name, fail, name, "a proof without its entry")
    if bundle.entries:
        report.hold(f"{len(bundle.entries)} entries are in the log, each by its inclusion proof")
    report.run("case.json", check_kind, bundle)
    return report


def check_kind(bundle: Bundle) -> None:
    """What the bundle is about; a member that this kind does not check has no business in it."""
    check, roles = KINDS[bundle.case["kind"]]
    for member in bundle.manifest["members"]:
        if member["role"] not in roles:
            bundle.report.run(
                member["path"], fail, member["path"], "does not belong into this kind of bundle"
            )
    check(bundle)


def check_manifest(bundle: Bundle) -> None:
    """The exporter signed the list of members; every byte of the bundle hangs on that signature."""
    raw, envelope = bundle.member("manifest.json"), bundle.member("manifest.sigstore.json")
    place = "manifest.sigstore.json"
    payload, key = open_envelope(place, envelope, MANIFEST_TYPE, bundle.trust.of("exporter"))
    if payload != raw:
        fail("manifest.json", "differs from what the exporter signed in manifest.sigstore.json")
    signature = unbase64(parse_json(envelope)["dsseEnvelope"]["signatures"][0]["sig"])
    if key.kind == "p256" and parse_der(signature)[1] > _N // 2:
        fail(place, "expected the lower of the two values of s, so that the signature has one form")
    manifest = parse_canonical("manifest.json", raw)
    if manifest["format"] != FORMAT:
        fail("manifest.json", f"expected the format {FORMAT}")
    listed = {member["path"]: member for member in manifest["members"]}
    if len(listed) != len(manifest["members"]):
        fail("manifest.json", "lists a member twice")
    for name in sorted(listed.keys() | bundle.members.keys() - {"manifest.json", place}):
        if name not in listed:
            fail(name, "not listed in manifest.json")
        if name not in bundle.members:
            fail(name, "listed in manifest.json, but missing")
        _check_member(name, bundle.members[name], listed[name])
    bundle.manifest = manifest
    bundle.case = parse_canonical("case.json", bundle.member("case.json"))
    bundle.report.facts["exporter_key"] = key.hint
    bundle.report.hold(f"manifest.json: {len(listed)} members, signed by the exporter (key {key.hint[:16]})")


def _check_member(name: str, content: bytes, listed: dict[str, Any]) -> None:
    role = next((role for pattern, role in MEMBER_ROLES.items() if re.fullmatch(pattern, name)), None)
    if role is None or listed["role"] != role:
        fail(name, f"expected a member this verifier knows ({role}), got the role {listed['role']!r}")
    if listed["size"] != len(content) or listed["digest"] != sha256(content):
        fail(
            name,
            f"expected {listed['digest'][:19]}..., got {sha256(content)[:19]}... over {len(content)} bytes",
        )


def check_log(bundle: Bundle) -> None:
    """The log signed this state, and it continues the state the reader saw."""
    checkpoint = open_checkpoint("log/checkpoint", bundle.member("log/checkpoint"), bundle.trust.log)
    bundle.checkpoint = checkpoint
    bundle.report.facts |= {
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root.hex(),
    }
    bundle.report.hold(f"log/checkpoint: {checkpoint.origin} signed {checkpoint.size} entries")
    consistency = bundle.members.get("log/consistency.json")
    verify_seen(bundle.trust, checkpoint, consistency)
    if bundle.trust.seen is None:
        bundle.report.note(
            "no seen.checkpoint in your trust folder: a log that was rolled back cannot be told from a "
            "young one. Keep log/checkpoint of this bundle as seen.checkpoint for the next time."
        )
        if consistency is not None:
            bundle.report.note("log/consistency.json: not checked, it is for a reader with a seen.checkpoint")
    else:
        bundle.report.hold(
            f"log/checkpoint: continues the checkpoint you saw (size {bundle.trust.seen.size})"
        )


def check_policy(bundle: Bundle, text: str) -> None:
    try:
        quorum = verify_policy(text, bundle.checkpoint, bundle.trust.log)
    except ValueError as problem:
        raise Usage(f"policy.txt: {problem}") from None
    bundle.report.hold(f"policy.txt: the log is listed, {quorum}")


def check_entry(bundle: Bundle, name: str) -> None:
    """The leaf is in the tree that the checkpoint signs (C2SP tlog-proof)."""
    index, raw = int(name[8:20]), bundle.members[name]
    place = name.replace(".json", ".tlog-proof")
    head, separator, checkpoint = bundle.member(place).partition(b"\n\n")
    version, index_line, *lines = head.decode("ascii").split("\n")
    if version != "c2sp.org/tlog-proof@v1" or index_line != f"index {index}" or not separator:
        fail(place, f"expected a tlog-proof of index {index}")
    if checkpoint != bundle.members["log/checkpoint"]:
        fail(place, "expected the same checkpoint as log/checkpoint")
    hashes = [unbase64(line) for line in lines]
    if index >= bundle.checkpoint.size or any(len(h) != 32 for h in hashes):
        fail(place, "expected hashes of 32 bytes and an index inside the log")
    try:
        root = root_by_inclusion(index, bundle.checkpoint.size, hash_leaf(raw), hashes)
    except ValueError as problem:
        fail(place, f"expected a proof of this index and size, got {problem}")
    if root != bundle.checkpoint.root:
        fail(name, f"is not entry {index} of the log: its proof leads to another root")
    bundle.entries[index] = parse_entry(name, index, raw)


# The case: one call, and everything that stands behind it.


def check_case(bundle: Bundle) -> None:
    report, case = bundle.report, bundle.case
    found = [e for e in bundle.entries.values() if e.type == "call" and e.id == case["call"]]
    if len(found) != 1:
        fail("case.json", f"expected one proven entry of the call {case['call']!r}, got {len(found)}")
    call = found[0]
    report.facts |= {"call": call.id, "index": call.index, "outcome": call.data["outcome"], "time": call.time}
    for other in bundle.named(r"(openings|inputs)/.*"):
        if other.split("/")[1] != f"{call.index:012d}.json":
            report.run(other, fail, other, "belongs to another entry than the call of this case")
    report.run(call.place, check_shape, call)
    report.run(f"openings/{call.index:012d}.json", check_openings, bundle, call)
    report.run("entries", check_erasures, bundle, call)
    report.run(call.place, check_batch, bundle, call)
    report.run(call.place, check_package, bundle, call)
    report.run(call.place, check_load, bundle, call)
    report.run("policies", check_policies, bundle, call)
    for name in bundle.named(r"replays/.*"):
        report.run(name, check_replay, bundle, call, name)
    check_self(bundle)


def check_shape(call: Entry) -> None:
    data = call.data
    if data["call"] != call.id or data["outcome"] not in ("answered", "failed", "refused", "unresolved"):
        fail(call.place, "expected a call with its own key and a known outcome")
    if "rows" in data and len(data["rows"]) != data["row_count"]:
        fail(call.place, f"expected {data['row_count']} rows, got {len(data['rows'])}")


def hmac_text(key: bytes, digest: bytes) -> str:
    return "hmac-sha256:" + hmac.digest(key, digest, "sha256").hex()


def opens(commitment: str | None, key: bytes, digest: bytes) -> bool:
    """True if the key and the digest open the commitment; a plain one is the digest itself."""
    if commitment is None:
        return False
    expected = "sha256:" + digest.hex() if commitment.startswith("sha256:") else hmac_text(key, digest)
    return hmac.compare_digest(expected, commitment)


def output_digest(row_digest: bytes, label: str | None, confidence: str | None) -> bytes:
    parts = [
        b"\x00" if t is None else b"\x01" + struct.pack(">I", len(t.encode())) + t.encode()
        for t in (label, confidence)
    ]
    return hashlib.sha256(b"pellucid/output-row/v1\n" + row_digest + b"".join(parts)).digest()


def row_digest(tensors: list[dict[str, Any]]) -> bytes:
    """Digest of one row: name, datatype, shape and bits of each tensor, each part after its length."""
    parts = [b"pellucid/row/v1\n", struct.pack(">I", len(tensors))]
    for tensor in tensors:
        name, kind, shape = tensor["name"].encode(), tensor["datatype"].encode(), tensor["shape"]
        data = unbase64(tensor["data"])
        parts += [struct.pack(">H", len(name)), name, struct.pack(">B", len(kind)), kind]
        parts += [struct.pack(f">B{len(shape)}Q", len(shape), *shape), struct.pack(">Q", len(data)), data]
    return hashlib.sha256(b"".join(parts)).digest()


def committed_rows(bundle: Bundle, call: Entry) -> list[dict[str, str | None]]:
    """The rows' commitments: in the entry while they are few, else below the root that stands there."""
    if "rows" in call.data:
        return list(call.data["rows"])
    place = f"openings/{call.index:012d}.json"
    rows = parse_canonical(place, bundle.member(place))["rows"]
    tree = call.data["rows_tree"]
    if (
        len(rows) != tree["size"]
        or root_of([hash_leaf(canonical(row)) for row in rows]).hex() != tree["root"]
    ):
        fail(place, "its rows are not the rows whose root stands in the entry")
    return list(rows)


def check_openings(bundle: Bundle, call: Entry) -> None:
    """Every value given opens the commitment that stands in the entry."""
    place = f"openings/{call.index:012d}.json"
    if place not in bundle.members:
        return bundle.report.note("no openings in this bundle: the commitments of this call stay closed")
    document = parse_canonical(place, bundle.members[place])
    if document["entry"] != call.id:
        fail(place, f"expected the openings of {call.id!r}")
    rows = committed_rows(bundle, call)
    inputs: dict[int, bytes] = {}
    name = f"inputs/{call.index:012d}.json"
    if name in bundle.members:
        given = parse_canonical(name, bundle.members[name])["rows"]
        inputs = {row["row"]: row_digest(row["tensors"]) for row in given}
        if len(inputs) != len(given):
            fail(name, "gives a row twice")
    opened: list[str] = []
    for number, opening in enumerate(document["openings"]):
        where = f"{place}: openings[{number}] ({opening['kind']}, row {opening['row']})"
        text = check_opening(where, name, call, rows, inputs, opening)
        if text:
            opened.append(text)
    if inputs:
        fail(name, f"rows {sorted(inputs)} have no key that would open them")
    for text in opened:
        bundle.report.hold(f"{place}: {text}")
    return None


def check_opening(place: str, input_place: str, call: Entry, rows: list[dict[str, str | None]],
                  inputs: dict[int, bytes], opening: dict[str, Any]) -> str:  # fmt: skip
    kind, row, key = opening["kind"], opening["row"], bytes.fromhex(opening["key"])
    if kind in ("input", "output") and not 0 <= row < len(rows):
        fail(place, f"expected a row of this call, got {row}")
    if kind == "input":
        digest = inputs.pop(row, None)
        if digest is None:
            return f"row {row}: the key of its input is here; who has the input can compare it"
        if not opens(rows[row]["input"], key, digest):
            fail(f"{input_place}: row {row}", "is not the input that the call committed to")
        return f"row {row}: the input given is the input of this call"
    if kind == "output":
        digest = bytes.fromhex(opening["digest"])
        if "outputs" in opening and row_digest(opening["outputs"]) != digest:
            fail(place, "its outputs are not the outputs of its digest")
        if not opens(
            rows[row]["output"], key, output_digest(digest, opening["label"], opening["confidence"])
        ):
            fail(place, "does not open the commitment in the entry: output, label or confidence differ")
        return f"row {row}: answered {opening['label']!r} with confidence {opening['confidence']}"
    value = base64.b64decode(opening["value"], validate=True)
    digest = hashlib.sha256(b"pellucid/text/v1\n" + value).digest()
    if row != -1 or not opens(call.data["personal"].get(kind), key, digest):
        fail(place, "does not open the commitment in the entry")
    return f"{kind} is {value.decode('utf-8', 'replace')!r}"


def check_erasures(bundle: Bundle, call: Entry) -> None:
    """What was erased on purpose is said so by an entry; its proofs hold without its values."""
    for erasure in (e for e in bundle.entries.values() if e.type == "erasure"):
        rule, rows = erasure.data.get("rule"), erasure.data.get("rows")
        told = f"erased on {erasure.time} under {rule or 'a rule that the entry does not name'}"
        if erasure.data.get("call") == call.id:
            which = f"rows {rows}" if rows else "all values"
            bundle.report.hold(f"{erasure.place}: {which} of this call were {told}")
        elif "call" not in erasure.data:
            bundle.report.note(
                f"{erasure.place}: all values of a subject were {told}; whose, it does not show"
            )


def check_batch(bundle: Bundle, call: Entry) -> None:
    """The batch entry that the call names by digest holds the call's rows at its slots."""
    digest = call.data["batch"]
    if digest is None:
        return
    batches = [e for e in bundle.entries.values() if e.type == "batch" and e.digest == digest]
    if not batches:
        fail(call.place, f"names the batch {digest[:19]}..., which is not in the bundle")
    batch, slot = batches[0], call.data["slot"]
    if any(
        batch.data[name] != call.data[name] for name in ("bucket", "engine", "model", "package", "version")
    ):
        fail(batch.place, "ran another engine or bucket than the call says")
    if "rows" not in batch.data:
        bundle.report.note(f"{batch.place}: only the root of its rows stands there; it was not opened")
        return
    count = call.data["row_count"]
    ours = [{"input": r["input"], "output": r["output"]} for r in batch.data["rows"]
            if slot <= r["slot"] < slot + count]  # fmt: skip
    if ours != _entry_rows(call, ours):
        fail(batch.place, f"does not hold the rows of the call at slots {slot} to {slot + count - 1}")
    bundle.report.hold(
        f"{batch.place}: the batch holds the call's rows at slot {slot} of bucket {batch.data['bucket']}"
    )


def _entry_rows(call: Entry, candidate: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if "rows" in call.data:
        return list(call.data["rows"])
    root = root_of([hash_leaf(canonical(row)) for row in candidate]).hex()
    return candidate if root == call.data["rows_tree"]["root"] else []


def check_package(bundle: Bundle, call: Entry) -> None:
    """The package that answered: signed by the builder, and the very one that the call names."""
    package = call.data.get("package")
    folders = {name.split("/")[1] for name in bundle.named(rf"packages/{HEX64}/.+")}
    if package is None and not folders:
        return bundle.report.note("the call never reached a package")
    if folders != {str(package)[7:]}:
        fail(call.place, f"names the package {package}, the bundle holds {sorted(folders)}")
    prefix = f"packages/{str(package)[7:]}/"
    files = {name[len(prefix) :]: data for name, data in bundle.members.items() if name.startswith(prefix)}
    manifest = check_model_signature(bundle, prefix, files, str(package))
    engines = [f["digest"] for f in manifest["files"] if f["role"] == "engine"]
    digests = [f["digest"] for f in manifest["files"]]
    if call.data["engine"] not in engines:
        fail(call.place, "names an engine that is not the package's")
    if (call.data["model"], call.data["version"]) != (manifest["name"], manifest["version"]):
        fail(call.place, "names another model or version than its package")
    bundle.report.hold(f"{call.place}: answered by the engine {call.data['engine'][:19]}... of that package")
    for name in sorted(files):
        if name.startswith("attestations/"):
            bundle.report.run(prefix + name, check_attestation, bundle, prefix + name, str(package), digests)
    return None


def check_model_signature(
    bundle: Bundle, prefix: str, files: dict[str, bytes], package: str
) -> dict[str, Any]:
    """OpenSSF Model Signing: the builder's statement lists every file; its root names the package."""
    place = prefix + "model.sig"
    if "model.sig" not in files or "manifest.json" not in files:
        fail(place, "expected model.sig and manifest.json of the package")
    statement = open_statement(place, files["model.sig"], bundle.trust.of("builder"))
    if statement["predicateType"] != MODEL_SIGNING:
        fail(place, f"expected the predicate {MODEL_SIGNING}")
    predicate = statement["predicate"]
    if predicate["serialization"] != {"method": "files", "hash_type": "sha256", "allow_symlinks": False,
                                      "ignore_paths": ["attestations"]}:  # fmt: skip
        fail(place, "expected every file to be signed but attestations")
    signed = {resource["name"]: resource["digest"] for resource in predicate["resources"]}
    raw = b"".join(bytes.fromhex(resource["digest"]) for resource in predicate["resources"])
    if (
        len(signed) != len(predicate["resources"])
        or subjects(statement) != {sha256(raw)}
        or sha256(raw) != package
    ):
        fail(place, f"expected the package {package}, signed is {sha256(raw)}")
    for name, data in files.items():
        if (
            name != "model.sig"
            and not name.startswith("attestations/")
            and sha256(data)[7:] != signed.get(name)
        ):
            fail(prefix + name, "is not the file that the builder signed")
    manifest = parse_json(files["manifest.json"])
    listed = {f["path"]: f["digest"][7:] for f in manifest["files"]}
    if {**listed, "manifest.json": signed["manifest.json"]} != signed:
        fail(prefix + "manifest.json", "lists other files than the builder signed")
    bundle.report.facts["package"] = package
    title = f"{manifest['name']} {manifest['version']}"
    bundle.report.hold(
        f"{place}: {title}, {len(signed)} files signed by the builder; {len(files)} of them are here"
    )
    return dict(manifest)


def check_attestation(bundle: Bundle, place: str, package: str, digests: list[str]) -> None:
    raw = bundle.members[place]
    unsigned = parse_json(unbase64(parse_json(raw)["dsseEnvelope"]["payload"]))
    role = SIGNERS.get(str(unsigned["predicateType"]))
    if role is None:
        return bundle.report.note(
            f"{place}: present, not checked here: {str(unsigned['predicateType'])[:80]}"
        )
    statement = open_statement(place, raw, bundle.trust.of(role))
    # provenance names files of the package, the others name the package itself
    about = {package, *digests} if role == "builder" else {package}
    if not subjects(statement) or not subjects(statement) <= about:
        fail(place, "is about another package")
    return bundle.report.hold(f"{place}: about this package, signed by the {role}")


def check_load(bundle: Bundle, call: Entry) -> None:
    """Before the call, this engine was judged and admitted."""
    if call.data.get("package") is None:
        return
    same = ("model", "version", "package", "engine")
    loads = [
        e
        for e in bundle.entries.values()
        if e.type == "load" and all(e.data[n] == call.data[n] for n in same)
    ]
    if not loads:
        fail(call.place, "no load entry in the bundle admits the engine that answered")
    before = [e for e in loads if e.index < call.index and e.time <= call.data["accepted"]]
    if not before:
        fail(loads[0].place, "the engine was loaded after the call that it is said to have answered")
    load = max(before, key=lambda entry: entry.index)
    for name in ("environment", "policy"):
        if name in call.data and name in load.data and load.data[name] != call.data[name]:
            fail(load.place, f"was loaded under another {name} than the call says")
    if load.data["verdict"] != "allowed":
        fail(load.place, f"was not allowed to load: {load.data['verdict']!r}")
    facts = load.data.get("environment_facts")
    if facts is not None and load.data["environment"] != sha256(canonical(facts)):
        fail(load.place, "its environment is not the one of its digest")
    bundle.report.hold(f"{load.place}: the engine was admitted on {load.time}, before the call")


def check_policies(bundle: Bundle, call: Entry) -> None:
    for name in bundle.named(rf"policies/{HEX64}"):
        if sha256(bundle.members[name])[7:] != name[9:]:
            fail(name, "is not the policy of its name")
        used = (
            "the policy the call ran under" if call.data.get("policy") == f"sha256:{name[9:]}" else "a policy"
        )
        bundle.report.hold(f"{name}: {used}, by its digest")


def check_replay(bundle: Bundle, call: Entry, name: str) -> None:
    """A signed report about this very entry, which the log holds as well."""
    raw = bundle.members[name]
    statement = open_statement(name, raw, bundle.trust.of("replayer"))
    if statement["predicateType"] != REPLAY or not {call.digest, call.data["package"]} <= subjects(statement):
        fail(name, "is not a replay report about this call")
    if sha256(raw)[7:] != name[8:72]:
        fail(name, "is not the report of its name")
    verdict, digest = statement["predicate"]["verdict"], sha256(raw)
    logged = [e for e in bundle.entries.values() if e.type == "replay" and e.data["report"] == digest]
    if not logged:
        fail(name, "no replay entry in the bundle names this report")
    if (logged[0].data["call"], logged[0].data["verdict"]) != (call.id, verdict):
        fail(logged[0].place, "names another call or verdict than the report")
    bundle.report.facts.setdefault("replays", []).append(verdict)
    bundle.report.hold(f"{name}: replayed on {logged[0].time}, signed by the replayer: {verdict}")


def check_self(bundle: Bundle) -> None:
    same = "verify.py" in bundle.members and bundle.members["verify.py"] == Path(__file__).read_bytes()
    if not same:
        bundle.report.note(
            "the verify.py inside the bundle is not the program that runs here; yours was used"
        )
    bundle.report.note("index.html is what the exporter says in words; believe what is listed here")


# -- 8. a whole period ----------------------------------------------------------------------------


def check_period(bundle: Bundle) -> None:
    """Every entry between two indices, none left out, and the numbers that they close."""
    place, case = "log/range.json", bundle.case
    proof = parse_canonical(place, bundle.member(place))
    start, stop = proof["start"], proof["stop"]
    lines = bundle.member("log/range.jsonl").split(b"\n")
    if lines.pop() != b"" or len(lines) != stop - start or not 0 <= start < stop <= bundle.checkpoint.size:
        fail("log/range.jsonl", f"expected the entries {start} to {stop - 1}, got {len(lines)} lines")
    hashes = [bytes.fromhex(text) for text in proof["hashes"]]
    try:
        root = root_of_range(start, stop, bundle.checkpoint.size, [hash_leaf(line) for line in lines], hashes)
    except ValueError as problem:
        fail(place, f"expected a proof of this range, got {problem}")
    if root != bundle.checkpoint.root:
        fail("log/range.jsonl", "is not this range of the log: the proof leads to another root")
    if (case["start"], case["stop"]) != (start, stop):
        fail("case.json", f"claims the entries {case['start']} to {case['stop'] - 1}")
    bundle.report.hold(
        f"log/range.jsonl: entries {start} to {stop - 1} of {bundle.checkpoint.size}, none left out"
    )
    entries = [parse_entry(f"log/range.jsonl: line {i + 1}", start + i, line) for i, line in enumerate(lines)]
    bundle.report.facts |= {"start": start, "stop": stop}
    bundle.report.run("log/range.jsonl", check_numbers, bundle, entries)
    check_self(bundle)


def check_numbers(bundle: Bundle, entries: list[Entry]) -> None:
    """A worker of an epoch gives out the numbers 1 to ``last`` and closes each exactly once. Where its
    opening and its closing entry are both in the range, every number has to be there."""
    closed: dict[str, set[int]] = {}
    opened: set[str] = set()
    last: dict[str, int] = {}
    unrecorded: set[str] = set()
    workers: dict[str, int] = {}
    for entry in entries:
        if entry.type == "call":
            writer, _, number = entry.id.rpartition("/")
            if not re.fullmatch(r"[1-9][0-9]{0,15}", number):
                fail(entry.place, f"expected a call number from 1 on, got {entry.id[:120]!r}")
            if int(number) in closed.setdefault(writer, set()):
                fail(entry.place, f"the call number {entry.id} was closed twice")
            closed[writer].add(int(number))
        elif entry.type in ("epoch", "gap") and "worker" in entry.data:
            writer = f"{entry.id.partition('/')[0]}/{entry.data['epoch']}/{entry.data['worker']}"
            if entry.type == "gap":
                if entry.data.get("reason") == "unsafe_record_nothing":
                    unrecorded.add(writer)
                bundle.report.note(f"{entry.place}: a gap is declared: {str(entry.data.get('reason'))[:200]}")
            elif entry.data["phase"] == "open":
                opened.add(writer)
                workers[writer.rpartition("/")[0]] = entry.data["workers"]
            else:
                (last[writer],) = entry.data["last"]
    place = "log/range.jsonl"
    bundle.report.run(place, check_epochs, bundle, closed.keys() | opened | last.keys(), workers,
                      len(entries) == bundle.checkpoint.size)  # fmt: skip
    for writer in sorted(closed.keys() | (opened & last.keys())):
        where = f"log/range.jsonl: {writer}"
        bundle.report.run(where, check_writer, bundle, where, closed.get(writer, set()),
                          last.get(writer), writer in opened, writer in unrecorded)  # fmt: skip


def check_epochs(bundle: Bundle, writers: set[str], workers: dict[str, int], everything: bool) -> None:
    """Every start of a server takes the next epoch, and each of its workers has entries in it. That is
    certain where the range is the whole log; elsewhere one may lie outside, which is said."""
    epochs: dict[str, set[int]] = {}
    for writer in writers:
        node, epoch, _ = writer.split("/")
        epochs.setdefault(node, set()).add(int(epoch))
    lacking = []
    for node, present in sorted(epochs.items()):
        first = 1 if everything else min(present)
        hole = next((n for n, epoch in enumerate(sorted(present), first) if n != epoch), None)
        if hole is not None:
            lacking.append(f"{node}/{hole}: no entry of this epoch, though there are later ones")
    for epoch, count in sorted(workers.items()):
        absent = next((n for n in range(count) if f"{epoch}/{n}" not in writers), None)
        if absent is not None:
            lacking.append(f"{epoch}/{absent}: no entry of this worker, though its epoch had {count}")
    for text in lacking:
        if everything:
            bundle.report.run(text, fail, "log/range.jsonl", text)
        else:
            bundle.report.note(f"log/range.jsonl: {text}; it may lie outside this range")


def check_writer(
    bundle: Bundle, place: str, closed: set[int], last: int | None, whole: bool, gap: bool
) -> None:
    if last is not None and max(closed, default=0) > last:
        fail(place, f"a call has a number beyond the last one given out, {last}")
    if last is not None and whole:
        if len(closed) != last and not gap:
            missing = next(number for number in range(1, last + 1) if number not in closed)
            fail(place, f"{last - len(closed)} of the calls 1 to {last} are missing, the first is {missing}")
        bundle.report.hold(f"{place}: calls 1 to {last}, {len(closed)} recorded, each closed exactly once")
        return
    edge = "opening" if last is not None else "closing"
    text = f"{len(closed)} calls, numbers {min(closed)} to {max(closed)}, none twice"
    bundle.report.note(
        f"{place}: {text}; its {edge} entry lies outside this range, so they cannot be counted"
    )


COMMON = {"page", "verifier", "case", "checkpoint", "consistency", "entry", "proof"}
KINDS = {
    "case": (check_case, COMMON | {"openings", "input", "package", "policy", "replay"}),
    "period": (check_period, COMMON | {"range"}),
}


# -- 9. the command -------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check a pellucid evidence bundle.", allow_abbrev=False)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--trust", type=Path, required=True, help="folder with log.vkey and <role>.pem")
    parser.add_argument("--json", action="store_true", help="machine-readable result")
    options = parser.parse_args(arguments)
    try:
        with options.bundle.open("rb") as file:
            data = file.read(BUNDLE_MAX + 1)
        if len(data) > BUNDLE_MAX:
            raise Usage(f"{options.bundle}: expected at most {BUNDLE_MAX} bytes")
        report = verify_bundle(data, open_trust(options.trust))
    except (Usage, OSError, UnicodeDecodeError) as problem:
        print(f"usage: {problem}", file=sys.stderr)
        return USAGE
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot write it all
    print(format_json(report) if options.json else format_text(report))
    return report.status


def format_json(report: Report) -> str:
    words = {HOLDS: "holds", DOES_NOT_HOLD: "does not hold", POLICY_REFUSES: "refused by policy"}
    result: dict[str, Any] = {"result": words[report.status], "exit": report.status}
    result |= {"holds": report.holds, "notes": report.notes, "failures": report.failures}
    return json.dumps(result | {"refused": report.refused, "facts": report.facts}, indent=2)


def _plain(text: str) -> str:
    """Text from a bundle cannot move the cursor of the reader's terminal; names of digests are cut short."""
    text = re.sub(r"/([0-9a-f]{12})[0-9a-f]{52}", r"/\1...", text)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def format_text(report: Report) -> str:
    lines = [f"  holds   {_plain(text)}" for text in report.holds]
    lines += [f"  note    {_plain(text)}" for text in report.notes]
    lines += [f"  REFUSED {_plain(text)}" for text in report.refused]
    lines += [f"  FAILS   {_plain(f['place'])}: {_plain(f['reason'])}" for f in report.failures]
    last = {
        HOLDS: "HOLDS: this is what was recorded, unchanged. Integrity is shown, truth is not.",
        DOES_NOT_HOLD: "DOES NOT HOLD.",
        POLICY_REFUSES: "Holds, but your policy.txt refuses it.",
    }
    return "\n".join([*lines, last[report.status]])


if __name__ == "__main__":
    sys.exit(main())
