"""The package zoo, as unpacked folders: read once, by descriptors, refused with the reason."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pellucid.core.archive import write_archive
from pellucid.core.package import Limits, PackageFiles
from pellucid.core.trust import verify_package
from pellucid.errors import DigestMismatchError, NotFoundError, PackageError
from pellucid.guardian import open as opening
from pellucid.guardian.open import open_package, read_folder
from pellucid.testing.packages import Workshop


@pytest.fixture(scope="module")
def shop() -> Workshop:
    return Workshop()


@pytest.fixture(scope="module")
def package(shop: Workshop) -> PackageFiles:
    return shop.package()


@pytest.fixture
def folder(package: PackageFiles, tmp_path: Path) -> Path:
    for path, data in package.files.items():
        file = tmp_path / package.name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return tmp_path / package.name


def test_folder_and_archive_give_the_same_files(folder: Path, package: PackageFiles, tmp_path: Path):
    archive = tmp_path / "toy.tar.gz"
    archive.write_bytes(write_archive(package.name, package.files))
    assert dict(open_package(folder).files) == dict(open_package(archive).files) == dict(package.files)
    assert open_package(folder).name == package.name
    assert (open_package(folder).digest, open_package(archive).digest[:7]) == ("", "sha256:")


def test_modes_that_volume_mounts_change_are_not_judged(folder: Path, shop: Workshop):
    (folder / "meaning.json").chmod(0o666)
    (folder / "engine").chmod(0o2777)
    assert verify_package(read_folder(folder), shop.trust).name == "toy"


def test_a_link_to_the_folder_is_fine_because_its_real_name_counts(folder: Path, tmp_path: Path):
    link = tmp_path / "current"
    link.symlink_to(folder)
    assert read_folder(link).name == folder.name


def _symlink(target: str):
    return lambda folder: (folder / "link").symlink_to(target)


def _hard_link(folder: Path) -> None:
    os.link(folder / "recipe.yaml", folder.parent / "other-name")


def _case_twin(folder: Path) -> None:
    (folder / "RECIPE.yaml").write_bytes(b"x")


def _socket(folder: Path) -> None:
    here = os.getcwd()
    os.chdir(folder)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("s")
    finally:
        os.chdir(here)


ZOO = {
    "symlink in": (_symlink("recipe.yaml"), "a symbolic link"),
    "symlink out": (_symlink("/etc/passwd"), "a symbolic link"),
    "symlink to a folder": (_symlink("/etc"), "a symbolic link"),
    "hard link": (_hard_link, "a hard link"),
    "fifo": (lambda f: os.mkfifo(f / "pipe"), "a named pipe"),
    "socket": (_socket, "a socket"),
    "set-uid": (lambda f: (f / "recipe.yaml").chmod(0o4644), "set-id bits"),
    "set-gid": (lambda f: (f / "recipe.yaml").chmod(0o2644), "set-id bits"),
    "executable": (lambda f: (f / "recipe.yaml").chmod(0o755), "execute bits"),
    "case twin": (_case_twin, "twin"),
    ".git": (lambda f: (f / ".git").mkdir(), ".git"),
    ".gitattributes": (lambda f: (f / ".gitattributes").write_bytes(b""), ".git"),
    "empty folder": (lambda f: (f / "empty").mkdir(), "an empty folder"),
    "not UTF-8": (lambda f: (f / os.fsdecode(b"\xff")).write_bytes(b""), "lone surrogate"),
    "backslash": (lambda f: (f / "a\\b").write_bytes(b""), "a backslash"),
    "too deep": (lambda f: (f / "/".join("abcdefghi")).mkdir(parents=True), "at most 8 levels"),
}


@pytest.mark.parametrize("animal", ZOO)
def test_the_zoo_is_refused_with_its_reason(folder: Path, animal: str):
    spoil, reason = ZOO[animal]
    spoil(folder)
    with pytest.raises(PackageError, match=reason):
        read_folder(folder)


def test_a_device_is_refused_and_never_opened(folder: Path, monkeypatch: pytest.MonkeyPatch):
    # making a device needs root; what counts is that its kind is judged before it is opened
    import stat

    real = os.stat

    def fake(name, **options):
        facts = real(name, **options)
        if name == "recipe.yaml":
            values = list(facts)
            values[0] = stat.S_IFCHR | 0o644
            return os.stat_result(values)
        return facts

    monkeypatch.setattr(opening.os, "stat", fake)
    with pytest.raises(PackageError, match="a character device"):
        read_folder(folder)


def test_oversize_is_refused(folder: Path):
    for limits in (Limits(file_max=20), Limits(total_max=500), Limits(count_max=3)):
        with pytest.raises(PackageError, match="at most"):
            read_folder(folder, limits)


def test_missing_extra_and_renamed_are_refused(folder: Path, shop: Workshop, tmp_path: Path):
    def refused(reason: str, kind: type[Exception] = PackageError) -> None:
        with pytest.raises(kind, match=reason):
            verify_package(read_folder(folder), shop.trust)

    (folder / "extra.bin").write_bytes(b"x")
    refused("only signed files, got 'extra.bin'")
    (folder / "extra.bin").unlink()
    (folder / "attestations" / "note.txt").write_bytes(b"x")
    refused("attestations/NAME")
    (folder / "attestations" / "note.txt").unlink()
    kept = (folder / "meaning.json").read_bytes()
    (folder / "meaning.json").unlink()
    refused("expected 'meaning.json', got a package without this file")
    (folder / "meaning.json").write_bytes(kept + b" ")
    refused("meaning.json: expected sha256", DigestMismatchError)
    (folder / "meaning.json").write_bytes(kept)
    assert verify_package(read_folder(folder), shop.trust)
    folder = folder.rename(tmp_path / "toy-v2.0.0-fake1.2-cpu")
    refused("package folder: expected 'toy-v1.0.0-fake1.2-cpu' as signed")


def test_a_file_swapped_while_the_folder_is_read_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.open

    def swap(path, flags, *args, **options):
        if path == "recipe.yaml":
            (folder / "recipe.yaml").rename(folder.parent / "old")
            (folder / "recipe.yaml").write_bytes(b"other")
        return real(path, flags, *args, **options)

    monkeypatch.setattr(opening.os, "open", swap)
    with pytest.raises(PackageError, match="another in its place"):
        read_folder(folder)


def test_a_link_swapped_in_while_the_folder_is_read_is_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    real = os.open

    def swap(path, flags, *args, **options):
        if path == "recipe.yaml":
            (folder / "recipe.yaml").unlink()
            (folder / "recipe.yaml").symlink_to("/etc/passwd")
        return real(path, flags, *args, **options)

    monkeypatch.setattr(opening.os, "open", swap)
    with pytest.raises(PackageError, match="expected to open it"):
        read_folder(folder)


@pytest.mark.parametrize("change", [b"more", b""])
def test_a_file_that_changes_size_while_it_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: bytes
):
    real = os.read
    kept = (folder / "recipe.yaml").read_bytes()

    def late(descriptor, size):
        if size == len(kept):  # after its size was taken, before it is read
            (folder / "recipe.yaml").write_bytes(kept + change if change else kept[:10])
        return real(descriptor, size)

    monkeypatch.setattr(opening.os, "read", late)
    with pytest.raises(PackageError, match="another size while it was read"):
        read_folder(folder)


def test_nothing_there_is_not_found(tmp_path: Path):
    with pytest.raises(NotFoundError):
        open_package(tmp_path / "nothing.tar.gz")
    with pytest.raises(NotFoundError):
        read_folder(tmp_path / "nothing")


def test_a_pipe_instead_of_an_archive_does_not_hang(tmp_path: Path):
    os.mkfifo(tmp_path / "toy.tar.gz")
    with pytest.raises(PackageError, match="a file or folder, got something else"):
        open_package(tmp_path / "toy.tar.gz")


def test_a_folder_that_is_no_package_is_refused_before_anything_in_it_is_read(tmp_path: Path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "program").write_bytes(b"x")
    (tmp_path / "home" / "program").chmod(0o755)
    with pytest.raises(
        PackageError, match=r"package 'home': expected manifest\.json, got a folder without it"
    ):
        read_folder(tmp_path / "home")
