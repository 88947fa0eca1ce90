"""Every store meets its port."""

from __future__ import annotations

import os
import threading

import pytest

from pellucid.errors import DiskFullError, LedgerHaltedError, NotFoundError, UsageError
from pellucid.stores.file import FileStore
from pellucid.stores.memory import MemoryStore


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    uri = f"file:{tmp_path / 'store'}" if request.param == "file" else "memory:"
    return (FileStore if request.param == "file" else MemoryStore).from_uri(uri)


def test_what_was_created_is_read(store):
    store.create("a/b/c", b"one")
    store.create_many({"a/b/d": b"two", "e": b""})
    assert [store.get(path) for path in ("a/b/c", "a/b/d", "e")] == [b"one", b"two", b""]
    assert list(store.paths("a")) == ["a/b/c", "a/b/d"]
    assert list(store.paths("")) == ["a/b/c", "a/b/d", "e"]
    assert list(store.paths("nothing")) == []


def test_the_same_again_is_fine_and_other_bytes_halt(store):
    store.create("a", b"one")
    store.create("a", b"one")
    with pytest.raises(LedgerHaltedError, match="a: expected the bytes written before"):
        store.create("a", b"two")
    assert store.get("a") == b"one"


def test_replace_replaces(store):
    store.replace("deep/checkpoint", b"1")
    store.replace("deep/checkpoint", b"2")
    assert store.get("deep/checkpoint") == b"2"


def test_absent_is_not_found(store):
    for path in ("a", "a/b"):
        with pytest.raises(NotFoundError):
            store.get(path)
    store.create("a/b", b"x")
    with pytest.raises(NotFoundError):
        store.get("a")
    with pytest.raises(NotFoundError):
        store.get("a/b/c")


def test_delete_is_done_once_and_harmless_again(store):
    store.create("a/b", b"x")
    store.delete("a/b")
    store.delete("a/b")
    assert list(store.paths("")) == []
    store.create("a/b", b"y")
    assert store.get("a/b") == b"y"


@pytest.mark.parametrize(
    "path", ["", "/", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".hidden", "a/.b", "a\\b", "a b", "a\0",
             "ä", "a" * 200, "/".join("a" * 20)],
)  # fmt: skip
def test_other_paths_are_refused(store, path):
    attempts = (store.get, store.delete, lambda p: store.create(p, b""), lambda p: store.replace(p, b""))
    for attempt in attempts:
        with pytest.raises(UsageError, match="store path"):
            attempt(path)


def test_many_at_once_give_one_winner(store):
    halted, begin = [], threading.Barrier(8)

    def create(number):
        begin.wait(10)
        try:
            store.create("shared/name", b"%d" % (number % 2))
        except LedgerHaltedError:
            halted.append(number % 2)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = int(store.get("shared/name"))
    assert halted == [1 - winner] * 4


def test_files_are_synced_before_they_have_a_name_and_folders_after(tmp_path, monkeypatch):
    store, log = FileStore(tmp_path / "store"), []
    fsync, link = os.fsync, os.link

    def note_sync(fd):
        log.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", lambda a, b: (log.append(f"link {b.name}"), link(a, b)))
    store.create_many({"a/x": b"1", "a/y": b"2"})
    assert log[:4] == ["sync .x.new", "link x", "sync .y.new", "link y"]
    assert log[4:] == ["sync a", "sync store", "sync " + tmp_path.name]


def test_a_draft_of_a_killed_writer_is_no_object_and_in_nobodys_way(tmp_path):
    store = FileStore(tmp_path)
    (tmp_path / ".a.new").write_bytes(b"half")
    assert list(store.paths("")) == []
    store.create("a", b"whole")
    assert store.get("a") == b"whole"
    assert sorted(os.listdir(tmp_path)) == ["a"]


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    store = FileStore(tmp_path)

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFullError, match="No space"):
        store.create("a", b"x")
    monkeypatch.undo()
    assert list(store.paths("")) == []
    store.create("a", b"x")
