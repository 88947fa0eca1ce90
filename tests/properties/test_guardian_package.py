"""No altered package opens to anything but what was signed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.core.archive import read_archive, write_archive
from pellucid.core.package import PackageFiles
from pellucid.core.trust import verify_package
from pellucid.errors import PellucidError, VerificationError
from pellucid.testing.packages import Workshop

SHOP = Workshop()
PACKAGE = SHOP.approve(SHOP.package())
ARCHIVE = write_archive(PACKAGE.name, PACKAGE.files)
SIGNED = sorted(path for path in PACKAGE.files if not path.startswith("attestations/"))
BESIDE = sorted(set(PACKAGE.files) - set(SIGNED))


@settings(max_examples=200)
@given(st.integers(0, len(ARCHIVE) - 1), st.integers(1, 255))
def test_a_flipped_byte_of_the_archive_is_refused(position: int, mask: int):
    altered = bytearray(ARCHIVE)
    altered[position] ^= mask
    try:
        package = read_archive(bytes(altered))
    except VerificationError:
        return
    # deflate has padding bits that mean nothing; whatever still opens must be the very same files
    assert (package.name, dict(package.files)) == (PACKAGE.name, dict(PACKAGE.files))


@settings(max_examples=60)
@given(st.integers(0, len(ARCHIVE) - 1))
def test_a_cut_off_archive_is_refused(length: int):
    with pytest.raises(VerificationError):
        read_archive(ARCHIVE[:length])


@settings(max_examples=200)
@given(st.sampled_from(SIGNED), st.integers(min_value=0), st.integers(1, 255))
def test_a_flipped_byte_of_any_signed_file_is_refused(path: str, position: int, mask: int):
    altered = bytearray(PACKAGE.files[path])
    altered[position % len(altered)] ^= mask
    with pytest.raises(VerificationError):
        verify_package(PackageFiles(PACKAGE.name, {**PACKAGE.files, path: bytes(altered)}), SHOP.trust)


@settings(max_examples=120)
@given(st.sampled_from(BESIDE), st.integers(min_value=0), st.integers(1, 255))
def test_a_flipped_byte_of_an_attestation_silences_it(path: str, position: int, mask: int):
    altered = bytearray(PACKAGE.files[path])
    altered[position % len(altered)] ^= mask
    trusted = verify_package(PackageFiles(PACKAGE.name, {**PACKAGE.files, path: bytes(altered)}), SHOP.trust)
    assert len(trusted.qualifications) + len(trusted.approvals) == 1
    assert [finding.rule for finding in trusted.findings] == [f"attestation {path}"]


@settings(max_examples=60)
@given(st.sampled_from(SIGNED))
def test_a_file_less_is_refused(path: str):
    files = {p: data for p, data in PACKAGE.files.items() if p != path}
    with pytest.raises(VerificationError):
        verify_package(PackageFiles(PACKAGE.name, files), SHOP.trust)


@settings(max_examples=60)
@given(st.text(min_size=1, max_size=30), st.binary(max_size=8))
def test_a_file_more_is_refused(path: str, data: bytes):
    files = {path: data, **PACKAGE.files}
    if len(files) > len(PACKAGE.files):
        with pytest.raises(VerificationError):
            verify_package(PackageFiles(PACKAGE.name, files), SHOP.trust)


SEGMENT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.lists(SEGMENT, min_size=1, max_size=4).map("/".join), st.binary(max_size=700), max_size=5
    )
)
def test_what_the_writer_takes_the_reader_gives_back(files: dict[str, bytes]):
    try:
        raw = write_archive("toy", files)
    except PellucidError:
        return
    if files:
        assert dict(read_archive(raw).files) == files
