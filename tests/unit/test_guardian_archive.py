"""The package zoo, as archives: each animal refused with its reason, before anything is opened."""

from __future__ import annotations

import gzip
import io
import os
import re
import struct
import tarfile
import tracemalloc
import zlib

import pytest

from pellucid.core.archive import GZIP_HEADER, read_archive, tar_header, write_archive
from pellucid.core.package import Limits
from pellucid.core.trust import verify_package
from pellucid.errors import PackageError
from pellucid.testing.packages import Workshop

TOP = "toy-v1.0.0-fake1.2-cpu"
FILES = {"a.txt": b"alpha", "engine/model.onnx": bytes(range(256)) * 9, "z/deep/er.json": b"{}"}


def pack(tar: bytes) -> bytes:
    """gzip in our own form around hostile tar bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = packer.compress(tar) + packer.flush()
    return GZIP_HEADER + body + struct.pack("<II", zlib.crc32(tar), len(tar) & 0xFFFFFFFF)


def header(
    path: bytes | str, size: int = 0, kind: bytes = b"0", mode: bytes = b"0000644", link: bytes = b""
) -> bytes:
    raw = path.encode() if isinstance(path, str) else path
    head = struct.pack(
        "<100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12s",
        raw, mode, b"0000000", b"0000000", b"%011o" % size, b"00000000000", b" " * 8, kind, link, b"ustar",
        b"00", b"", b"", b"0000000", b"0000000", b"", b"",
    )  # fmt: skip
    return head[:148] + b"%06o\x00 " % sum(head) + head[156:]


def member(path: bytes | str, data: bytes = b"x", **options: bytes) -> bytes:
    return header(path, len(data), **options) + data + bytes(-len(data) % 512)


def archive(*members: bytes, end: bytes = bytes(1024)) -> bytes:
    return pack(b"".join(members) + end)


GOOD = member(f"{TOP}/a.txt")


def test_what_is_written_is_read_back_and_twice_the_same():
    raw = write_archive(TOP, FILES)
    assert raw == write_archive(TOP, dict(reversed(FILES.items())))
    package = read_archive(raw)
    assert (package.name, dict(package.files)) == (TOP, FILES)
    assert package.digest.startswith("sha256:")


def test_the_hand_made_form_is_the_writers_form():
    assert tar_header(f"{TOP}/a.txt", 1) == GOOD[:512]
    assert dict(read_archive(archive(GOOD)).files) == {"a.txt": b"x"}


def test_stock_tar_and_gzip_read_our_archive():
    raw = write_archive(TOP, FILES)
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        members = tar.getmembers()
        read = {m.name.removeprefix(TOP + "/"): tar.extractfile(m).read() for m in members}
    assert read == FILES
    assert {(m.mode, m.uid, m.gid, m.mtime, m.uname) for m in members} == {(0o644, 0, 0, 0, "")}
    assert gzip.decompress(raw).endswith(bytes(1024))


LONG = "n" * 101
ZOO = {
    "parent": (archive(member(f"{TOP}/../x")), "way out of the folder"),
    "parent of the top": (archive(member("../x")), "way out of the folder"),
    "parent deep": (archive(member(f"{TOP}/a/../../x")), "way out of the folder"),
    "absolute": (archive(member("/etc/passwd")), "an absolute path"),
    "absolute below": (archive(member(f"{TOP}//etc/passwd")), "an absolute path"),
    "dot": (archive(member(f"{TOP}/./x")), "segment '.'"),
    "symlink in": (archive(member(f"{TOP}/a", b"", kind=b"2", link=b"b")), "a symbolic link to 'b'"),
    "symlink out": (archive(member(f"{TOP}/a", b"", kind=b"2", link=b"../../etc")), "link to '../../etc'"),
    "hard link": (archive(GOOD, member(f"{TOP}/b", b"", kind=b"1", link=b"a.txt")), "a hard link"),
    "character device": (archive(member(f"{TOP}/a", b"", kind=b"3")), "a character device"),
    "block device": (archive(member(f"{TOP}/a", b"", kind=b"4")), "a block device"),
    "fifo": (archive(member(f"{TOP}/a", b"", kind=b"6")), "a named pipe"),
    "folder entry": (archive(member(f"{TOP}/empty/", b"", kind=b"5")), "a folder entry"),
    "sparse file": (archive(member(f"{TOP}/a", b"", kind=b"S")), "a sparse file"),
    "old-style file": (archive(member(f"{TOP}/a", kind=b"\x00")), "an old-style file"),
    "pax path": (archive(member(f"{TOP}/a", b"25 path=../../etc/passwd\n", kind=b"x"), GOOD), "a pax record"),
    "pax size": (archive(member(f"{TOP}/a", b"13 size=99999\n", kind=b"x"), GOOD), "a pax record"),
    "pax global": (archive(member(f"{TOP}/a", b"11 path=xx\n", kind=b"g"), GOOD), "a global pax record"),
    "GNU long name": (archive(member("././@LongLink", b"evil", kind=b"L"), GOOD), "a GNU long name"),
    "set-uid": (archive(member(f"{TOP}/a", mode=b"0004755")), "set-uid"),
    "set-gid": (archive(member(f"{TOP}/a", mode=b"0002644")), "set-gid"),
    "sticky": (archive(member(f"{TOP}/a", mode=b"0001644")), "sticky"),
    "executable": (archive(member(f"{TOP}/a", mode=b"0000755")), "mode 0644"),
    "twice": (archive(GOOD, GOOD), "two entries of that name"),
    "case twins": (archive(member(f"{TOP}/A.TXT"), GOOD), "twin"),
    "case twins, unsorted": (archive(GOOD, member(f"{TOP}/A.TXT")), "twin"),
    "folder case twins": (archive(member(f"{TOP}/A/x"), member(f"{TOP}/a/y")), "twin"),
    "sharp s twins": (archive(member(f"{TOP}/strasse"), member(f"{TOP}/straße")), "twin"),
    "width twins": (archive(member(f"{TOP}/a"), member(f"{TOP}/ａ")), "twin"),
    "decomposed": (archive(member(f"{TOP}/e\u0301")), "normal form C"),
    "file and folder": (archive(member(f"{TOP}/a"), member(f"{TOP}/a/b")), "a file or a folder"),
    ".git": (archive(member(f"{TOP}/.git/x")), ".git"),
    ".GIT": (archive(member(f"{TOP}/sub/.GIT/x")), ".git"),
    ".gitignore": (archive(member(f"{TOP}/.gitignore")), ".git"),
    "backslash": (archive(member(f"{TOP}/..\\x")), "a backslash"),
    "drive": (archive(member(f"{TOP}/C:x")), "a colon"),
    "not UTF-8": (archive(member(TOP.encode() + b"/\xff")), "UTF-8"),
    "NUL": (archive(member(TOP.encode() + b"/a\x00b")), "NUL"),
    "newline": (archive(member(f"{TOP}/a\nb")), "control"),
    "bidi": (archive(member(f"{TOP}/a\u202eb")), "control"),
    "trailing space": (archive(member(f"{TOP}/a ")), "space or dot"),
    "trailing dot": (archive(member(f"{TOP}/a.")), "space or dot"),
    "no folder": (archive(member("a.txt")), "below the package's folder"),
    "two folders": (archive(GOOD, member("other/b")), "one top folder"),
    "too deep": (archive(member(f"{TOP}/" + "/".join("abcdefghi"))), "at most 8 levels"),
    "unsorted": (archive(member(f"{TOP}/b"), GOOD), "sorted"),
    "owner": (archive(header(f"{TOP}/a").replace(b"0000000", b"0001750", 1)), "another"),
    "base-256 size": (archive(GOOD[:124] + b"\x80" + bytes(11) + GOOD[136:512]), "another"),
    "negative size": (archive(GOOD[:124] + b"-0000000001\x00" + GOOD[136:512]), "another"),
    "checksum": (archive(GOOD[:148] + b"000000\x00 " + GOOD[156:]), "checksum"),
    "dirty padding": (archive(GOOD[:-1] + b"!"), "zeros after the file"),
    "size beyond the end": (archive(header(f"{TOP}/a", 10**9)), "cut-off"),
    "no end": (archive(GOOD, end=b""), "cut-off"),
    "half an end": (archive(GOOD, end=bytes(512)), "cut-off"),
    "more zeros": (archive(GOOD, end=bytes(10240)), "two zero blocks"),
    "after the end": (archive(GOOD, bytes(1024), member(f"{TOP}/hidden")), "two zero blocks"),
    "no files": (archive(), "expected files, got none"),
    "trailing garbage": (archive(GOOD) + b"garbage", "7 bytes after the end"),
    "second gzip member": (archive(GOOD) * 2, "bytes after the end"),
    "cut off": (archive(GOOD)[:-20], "cut-off"),
    "cut trailer": (archive(GOOD)[:-3], "cut-off trailer"),
    "checksum of gzip": (archive(GOOD)[:-8] + bytes(8), "gzip checksum"),
    "gzip with a name": (gzip.compress(b""), "gzip header"),
    "not gzip": (b"PK\x03\x04" + bytes(40), "gzip header"),
    "empty": (b"", "gzip header"),
}  # fmt: skip


@pytest.mark.parametrize("animal", ZOO)
def test_the_zoo_is_refused_with_its_reason(animal: str):
    raw, reason = ZOO[animal]
    with pytest.raises(PackageError, match=re.escape(reason)):
        read_archive(raw)


def test_oversize_is_refused_before_memory_is_used():
    raw = write_archive(TOP, FILES)
    with pytest.raises(PackageError, match="at most 100 bytes, got"):
        read_archive(raw, Limits(archive_max=100))
    for limits in (Limits(file_max=100), Limits(total_max=1000), Limits(count_max=2)):
        with pytest.raises(PackageError, match="at most"):
            read_archive(raw, limits)


def test_a_bomb_stops_at_the_limit():
    zeros = pack(bytes(64 * 2**20))
    claimed = pack(header(f"{TOP}/a", 64 * 2**20) + bytes(64 * 2**20) + bytes(1024))
    assert len(zeros) + len(claimed) < 2**20
    for bomb, limits in ((zeros, Limits()), (claimed, Limits(total_max=2**20))):
        tracemalloc.start()
        with pytest.raises(PackageError, match=r"(two zero blocks|at most)"):
            read_archive(bomb, limits)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 24 * 2**20


def test_a_repacked_archive_is_refused_and_says_what_to_do():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(f"{TOP}/a.txt")
        tar.addfile(info)
    with pytest.raises(PackageError) as caught:
        read_archive(buffer.getvalue())
    assert "as it was signed" in caught.value.hint


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", ".git/x", "a\\b", "", "e\u0301", LONG, "a\ud800"])
def test_the_writer_writes_nothing_the_reader_would_refuse(path: str):
    with pytest.raises(PackageError):
        write_archive(TOP, {path: b""})


def test_long_paths_fit_as_long_as_ustar_holds_them():
    files = {f"{'d' * 60}/{'e' * 60}/{'f' * 70}": b"x"}
    assert dict(read_archive(write_archive(TOP, files)).files) == files


def test_incompressible_files_are_stored_and_the_rest_shrinks():
    noise, text = os.urandom(2**20), b"the same line\n" * 2**16
    raw = write_archive(TOP, {"engine/noise": noise, "build.log.jsonl": text})
    assert len(noise) < len(raw) < len(noise) + 2**15
    assert dict(read_archive(raw).files) == {"engine/noise": noise, "build.log.jsonl": text}


def test_a_renamed_archive_folder_is_refused():
    shop = Workshop()
    package = shop.package()
    renamed = read_archive(write_archive("toy-v1.0.0-renamed", package.files))
    with pytest.raises(PackageError, match="package folder: expected 'toy-v1"):
        verify_package(renamed, shop.trust)
