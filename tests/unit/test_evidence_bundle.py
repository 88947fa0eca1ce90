"""The container has one spelling, two readers agree on it, and range proofs are what they say."""

from __future__ import annotations

import contextlib
import io
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.core import bundle
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.merkle.proof import inclusion_proof
from pellucid.errors import FormatError, LimitError, PellucidError, ProofError
from pellucid.evidence import verify

NAMES = st.from_regex(r"[a-z0-9_][a-z0-9._-]{0,6}(/[a-z0-9_][a-z0-9._-]{0,6}){0,2}", fullmatch=True)
MEMBERS = st.dictionaries(NAMES, st.binary(max_size=40), max_size=5)
SMALL = {"a.json": b"{}", "b/c": b"", "b/d.txt": b"hello"}


@given(MEMBERS)
def test_both_readers_read_what_was_written(members: dict[str, bytes]) -> None:
    raw = bundle.write_container(members)
    assert bundle.read_container(raw) == members == verify.read_container(raw)


def test_other_programs_read_it() -> None:
    with zipfile.ZipFile(io.BytesIO(bundle.write_container(SMALL))) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == SMALL


def test_every_flipped_byte_of_a_container_is_seen_by_both_readers() -> None:
    raw = bundle.write_container(SMALL)
    for position in range(len(raw)):
        for mask in (1, 0x80, 0xFF):
            broken = raw[:position] + bytes([raw[position] ^ mask]) + raw[position + 1 :]
            with pytest.raises(FormatError):
                bundle.read_container(broken)
            with pytest.raises(verify.DoesNotHold) as caught:
                verify.read_container(broken)
            assert caught.value.place


def test_every_truncation_and_addition_is_seen() -> None:
    raw = bundle.write_container(SMALL)
    for broken in [*(raw[:n] for n in range(len(raw))), raw + b"\0", b"\0" + raw, raw + raw]:
        with pytest.raises(FormatError):
            bundle.read_container(broken)
        with pytest.raises(verify.DoesNotHold):
            verify.read_container(broken)


@pytest.mark.parametrize(
    "name", ["../a", "/a", "a//b", "", ".hidden", "a/../b", "a\\b", "ä", "a b", "a/" * 9 + "a"]
)
def test_names_that_could_leave_a_folder_are_refused(name: str) -> None:
    with pytest.raises(FormatError):
        bundle.write_container({name: b""})


def test_members_out_of_order_or_twice_are_refused() -> None:
    a, b = bundle.write_container({"a": b"1"}), bundle.write_container({"b": b"2"})
    first, second = a[: 30 + 1 + 1], b[: 30 + 1 + 1]
    for body in (second + first, first + first):
        with pytest.raises(FormatError):
            bundle.read_container(body + a[32:])
        with pytest.raises(verify.DoesNotHold):
            verify.read_container(body + a[32:])


def test_a_deflated_zip_of_the_same_members_is_refused() -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in SMALL.items():
            archive.writestr(name, data)
    with pytest.raises(FormatError):
        bundle.read_container(raw.getvalue())
    with pytest.raises(verify.DoesNotHold):
        verify.read_container(raw.getvalue())


def test_too_large_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "BUNDLE_MAX", 4)
    with pytest.raises(LimitError):
        bundle.write_container(SMALL)
    with pytest.raises(LimitError):
        bundle.read_container(b"12345")


@given(st.binary(max_size=300))
def test_bytes_from_outside_raise_only_the_tree(raw: bytes) -> None:
    for data in (raw, b"PK\x03\x04" + raw):
        with pytest.raises(PellucidError):
            bundle.read_container(data + b"x")


def test_closed_list_of_members_is_the_same_on_both_sides() -> None:
    for path in (
        "index.html",
        "log/range.jsonl",
        "entries/000000000001.json",
        f"packages/{'a' * 64}/model.sig",
    ):
        role = bundle.role_of(path)
        assert any(
            verify.re.fullmatch(pattern, path) and role == known
            for pattern, known in verify.MEMBER_ROLES.items()
        )
    assert len(verify.MEMBER_ROLES) == len(bundle._ROLES) + 1  # the verifier names range.json(l) apart
    with pytest.raises(FormatError):
        bundle.role_of("evil.sh")


# -- range proofs


def tree(size: int) -> tuple[list[bytes], bytes]:
    leaves = [hash_leaf(b"%d" % i) for i in range(size)]
    return leaves, root_of(leaves)


def proof_of(leaves: list[bytes], start: int, stop: int) -> list[bytes]:
    def node(level: int, index: int) -> bytes:
        return root_of(leaves[index << level : (index + 1) << level])

    size = len(leaves)
    first, last = inclusion_proof(start, size, node), inclusion_proof(stop - 1, size, node)
    return bundle.range_hashes(start, stop, size, first, last)


@settings(max_examples=150)
@given(st.data())
def test_a_range_proof_leads_to_the_root_and_to_no_other(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 70))
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    leaves, root = tree(size)
    hashes = proof_of(leaves, start, stop)
    for root_of_range in (bundle.root_of_range, verify.root_of_range):
        assert root_of_range(start, stop, size, leaves[start:stop], hashes) == root
        other = [*leaves[start : stop - 1], hash_leaf(b"other")]
        assert root_of_range(start, stop, size, other, hashes) != root
        for wrong in ([*hashes, bytes(32)], hashes[:-1] if hashes else [bytes(32)]):
            with pytest.raises((ProofError, ValueError)):
                root_of_range(start, stop, size, leaves[start:stop], wrong)


def test_a_range_that_leaves_one_entry_out_does_not_fit() -> None:
    leaves, root = tree(20)
    hashes = proof_of(leaves, 4, 12)
    shorter = leaves[4:7] + leaves[8:12]
    with pytest.raises(ProofError):
        bundle.root_of_range(4, 12, 20, shorter, hashes)
    with contextlib.suppress(ProofError):  # another shape of tree may need another number of hashes
        assert bundle.root_of_range(4, 11, 20, shorter, hashes) != root
