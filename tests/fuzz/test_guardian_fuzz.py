"""Bytes from outside raise only errors of the tree: archives, manifests, policies, approvals, golden."""

from __future__ import annotations

import contextlib
import struct
import zlib

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core import canonical
from pellucid.core.approval import parse_approval
from pellucid.core.archive import GZIP_HEADER, read_archive, tar_header
from pellucid.core.manifest import make_manifest, parse_manifest
from pellucid.core.metadata import parse_metadata
from pellucid.core.package import PackageFiles, verify_path, verify_paths
from pellucid.core.policy import DEFAULT_POLICY, parse_policy
from pellucid.core.trust import verify_package
from pellucid.core.version import parse_range, parse_version
from pellucid.errors import PellucidError
from pellucid.guardian.golden import parse_golden
from pellucid.testing.packages import CREATED, Workshop, attached, golden

SHOP = Workshop()
PACKAGE = SHOP.package()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def tolerated(parse, value: object) -> None:
    with contextlib.suppress(PellucidError):  # anything else fails the test
        parse(value)


def mutated(base: bytes):
    """Strategy: the base with a few bytes replaced, removed or inserted."""
    edit = st.tuples(st.integers(0, len(base)), st.integers(0, 3), st.binary(max_size=4))

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        data = bytearray(base)
        for position, removed, inserted in edits:
            data[position : position + removed] = inserted
        return bytes(data)

    return st.lists(edit, max_size=4).map(apply)


def pack(tar: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    body = packer.compress(tar) + packer.flush()
    return GZIP_HEADER + body + struct.pack("<II", zlib.crc32(tar), len(tar) & 0xFFFFFFFF)


TAR = tar_header("toy/a", 3) + b"abc" + bytes(509) + tar_header("toy/b", 0) + bytes(1024)
MANIFEST = make_manifest(
    folder="toy-v1.0.0-x-cpu", name="toy", version="1.0.0", previous=None, created=CREATED, backend="x",
    target="cpu", files={"engine/m": b"1"},
)  # fmt: skip


@given(st.binary(max_size=3000) | mutated(TAR).map(pack) | mutated(pack(TAR)))
def test_archives(raw: bytes):
    tolerated(read_archive, raw)


@given(st.binary(max_size=2000).map(pack))
def test_any_tar_bytes(raw: bytes):
    tolerated(read_archive, raw)


def fixed_checksum(header: bytes) -> bytes:
    header = header[:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\x00 " % sum(header) + header[156:]


@given(mutated(TAR[:512]))
def test_headers_with_an_honest_checksum(header: bytes):
    tolerated(read_archive, pack(fixed_checksum((header + bytes(512))[:512]) + TAR[512:]))


@given(mutated(MANIFEST) | JSON.map(lambda value: repr(value).encode("utf-8", "replace")))
def test_manifests(raw: bytes):
    tolerated(parse_manifest, raw)


@given(st.sampled_from(sorted(canonical.decode(MANIFEST))), JSON)
def test_manifests_with_one_value_replaced(key: str, value: object):
    document = canonical.decode(MANIFEST) | {key: value}
    tolerated(lambda doc: parse_manifest(canonical.encode(doc)), document)


@given(mutated(DEFAULT_POLICY.encode()) | st.binary(max_size=300))
def test_policies(raw: bytes):
    tolerated(parse_policy, raw)


@given(st.sampled_from(["name", "runtime", "security", "devices", "audit"]), JSON)
def test_policies_with_one_section_replaced(section: str, value: object):
    tolerated(parse_policy, yaml.safe_dump({section: value}).encode())


@given(
    st.dictionaries(st.text(max_size=10), JSON, max_size=3),
    st.sampled_from(["kind", "role", "expires", "package"]),
    JSON,
)
def test_approvals(extra: dict, key: str, value: object):
    good = {
        "kind": "rollback", "name": "toy", "version": "1", "package": "sha256:" + "0" * 64, "role": "sre",
        "reason": "r", "approved": CREATED, "expires": None, "rolls_back_from": "2",
    }  # fmt: skip
    tolerated(parse_approval, good | {key: value})
    tolerated(parse_approval, extra)


@given(mutated(PACKAGE.files["attestations/qualification.sigstore.json"]))
def test_attestations_never_stop_a_package(raw: bytes):
    assert verify_package(attached(PACKAGE, "qualification", raw), SHOP.trust).name == "toy"


@given(mutated(PACKAGE.files["model.sig"]) | st.binary(max_size=100))
def test_signatures(raw: bytes):
    tolerated(
        lambda data: verify_package(
            PackageFiles(PACKAGE.name, {**PACKAGE.files, "model.sig": data}), SHOP.trust
        ),
        raw,
    )


@given(
    st.sampled_from(["recipe.yaml", "meaning.json", "facts.json", "manifest.json"]), st.binary(max_size=200)
)
def test_signed_documents_that_are_none(path: str, raw: bytes):
    tolerated(lambda data: verify_package(SHOP.resign(PACKAGE, {path: data}), SHOP.trust), raw)


@given(st.text(max_size=300), st.lists(st.text(max_size=8), max_size=6))
def test_paths(path: str, paths: list[str]):
    tolerated(verify_path, path)
    tolerated(verify_paths, paths)


@given(st.text(max_size=40))
def test_versions_and_ranges(text: str):
    tolerated(parse_version, text)
    tolerated(parse_range, text)


@given(JSON.filter(lambda value: isinstance(value, dict)), JSON)
def test_golden(document: dict, value: object):
    tolerated(parse_golden, document)
    case = golden([1.0])["cases"][0]
    tolerated(parse_golden, {"cases": [case | {"outputs": value}]})
    tolerated(parse_golden, {"cases": [case | {"inputs": [case["inputs"][0] | {"shape": value}]}]})


@given(JSON)
def test_metadata(value: object):
    tolerated(lambda v: parse_metadata(canonical.encode(v)), value)
