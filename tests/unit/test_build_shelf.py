"""Bytes of a build that lie in files: taken without a copy, linked where they can be, gone at the end."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pellucid.build.shelf import Shelf, early
from pellucid.core.digest import sha256

MANY = bytes(range(256)) * 1000


@pytest.fixture
def left(tmp_path: Path) -> Path:
    path = tmp_path / "left"
    path.write_bytes(MANY)
    return path


def test_what_was_taken_stays_readable_when_its_file_and_the_shelf_are_gone(left: Path) -> None:
    shelf = Shelf()
    data = shelf.take(left)
    left.unlink()
    shelf.close()
    assert data == MANY
    assert sha256(data) == sha256(MANY)


def test_an_empty_file_is_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert Shelf().take(tmp_path / "empty") == b""


def test_a_link_is_not_followed(left: Path) -> None:
    link = left.with_name("link")
    link.symlink_to(left)
    with pytest.raises(OSError, match="symbolic"):
        Shelf().take(link)


def test_bytes_are_put_into_one_file_once_and_a_folder_only_its_owner_reads() -> None:
    shelf = Shelf()
    path = shelf.put(MANY)
    assert shelf.put(MANY) == path
    assert path.read_bytes() == MANY
    assert path.parent.stat().st_mode & 0o077 == 0
    assert shelf.put(bytes(3)) != path
    shelf.close()
    assert not path.parent.exists()


def test_what_was_taken_needs_no_other_file(left: Path) -> None:
    shelf = Shelf()
    assert shelf.put(shelf.take(left)) == left


def test_other_bytes_at_the_place_of_freed_ones_are_other_bytes() -> None:
    """Python gives an id out again; what the shelf knows it holds."""
    shelf = Shelf()
    paths = set()
    for number in range(50):
        paths.add(shelf.put(bytes([number]) * 4096))
        gc.collect()
    assert len(paths) == 50
    assert {path.read_bytes()[0] for path in paths} == set(range(50))
    shelf.close()


def test_a_package_gets_the_very_file(left: Path, tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.write(tmp_path / "package", shelf.take(left))
    assert (tmp_path / "package").samefile(left)


def test_a_file_with_a_second_name_is_copied(left: Path, tmp_path: Path) -> None:
    """One in a package would be refused, and could be written to by its other name."""
    shelf = Shelf()
    data = shelf.take(left)
    for name in ("one", "two"):
        shelf.write(tmp_path / name, data)
    assert not (tmp_path / "two").samefile(left)
    assert (tmp_path / "two").read_bytes() == MANY


def test_bytes_whose_file_was_removed_are_written(left: Path, tmp_path: Path) -> None:
    shelf = Shelf()
    data = shelf.take(left)
    left.unlink()
    shelf.write(tmp_path / "package", data)
    assert (tmp_path / "package").read_bytes() == MANY


def test_what_was_given_early_holds_until_it_changes(left: Path) -> None:
    given = early(left)
    assert given.digest == sha256(MANY)
    assert given.holds(left)
    left.write_bytes(MANY[1:])
    assert not given.holds(left)


def test_another_file_of_the_same_bytes_is_not_the_one_that_was_given(left: Path) -> None:
    given = early(left)
    other = left.with_name("other")
    other.write_bytes(MANY)
    other.replace(left)
    assert not given.holds(left)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_plain_file_is_neither_waited_for_nor_taken(left: Path, kind: str) -> None:
    path = left.with_name(kind)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(left)
    for taken in (early, Shelf().take):
        with pytest.raises(OSError, match=r"plain file|symbolic"):
            taken(path)


@pytest.mark.parametrize("reason", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_where_no_link_can_be_the_bytes_are_written(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(reason, os.strerror(reason))

    shelf = Shelf()
    data = shelf.take(left)
    monkeypatch.setattr(os, "link", refuse)
    shelf.write(tmp_path / "package", data)
    assert (tmp_path / "package").read_bytes() == MANY
    assert not (tmp_path / "package").samefile(left)


def test_a_full_disk_is_not_taken_for_a_place_without_links(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shelf = Shelf()
    data = shelf.take(left)
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        shelf.write(tmp_path / "package", data)


def test_small_documents_are_written(tmp_path: Path) -> None:
    Shelf().write(tmp_path / "facts.json", b"{}")
    assert (tmp_path / "facts.json").read_bytes() == b"{}"


def test_folders_that_children_left_go_with_the_shelf() -> None:
    shelf = Shelf()
    folder = tempfile.TemporaryDirectory()
    shelf.adopt(folder)
    assert Path(folder.name).exists()
    shelf.close()
    assert not Path(folder.name).exists()
