from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.errors import DiskFullError, FormatError, LedgerHaltedError, LimitError
from pellucid.ledger import journal
from pellucid.ledger.board import lock_dead
from pellucid.ledger.journal import (
    JournalWriter,
    SegmentReader,
    decode_frames,
    decode_head,
    encode_frame,
    encode_head,
    list_segments,
    parse_segment_name,
    segment_name,
    write_segment,
)

payloads = st.lists(st.binary(max_size=200), max_size=20)


@given(payloads)
def test_frames_come_back_as_they_were(items):
    data = b"".join(map(encode_frame, items))
    frames, read = decode_frames(data)
    assert [payload for _, payload in frames] == items
    assert read == len(data)
    assert [end for end, _ in frames] == [
        sum(len(encode_frame(item)) for item in items[: i + 1]) for i in range(len(items))
    ]


@given(payloads.filter(bool), st.data())
def test_a_torn_tail_costs_only_the_frame_it_tears(items, data):
    whole = b"".join(map(encode_frame, items))
    cut = data.draw(st.integers(0, len(whole) - 1))
    frames, read = decode_frames(whole[:cut])
    assert [payload for _, payload in frames] == items[: len(frames)]
    assert read <= cut
    assert len(frames) < len(items)


@given(payloads.filter(bool), st.data())
def test_a_changed_byte_never_gives_another_record(items, data):
    whole = bytearray(b"".join(map(encode_frame, items)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    found = [payload for _, payload in decode_frames(bytes(whole))[0]]
    assert found == items[: len(found)]
    assert len(found) < len(items)


@given(st.text(alphabet="abz019.-/", min_size=1, max_size=40), st.integers(1, 10**9))
def test_heads_and_names_come_back(source, seq):
    head = decode_head(encode_head(source, seq) + b"more")
    assert (head.source, head.seq) == (source, seq)
    assert parse_segment_name(segment_name(source, seq)) == (source, seq)


@pytest.mark.parametrize("name", ["x.journal", ".n-00000001.journal.9", "n-1.journal", "n-00000001.damaged"])
def test_other_files_are_no_segments(name):
    assert parse_segment_name(name) is None


def read_all(path):
    reader = SegmentReader(path)
    found, position = [], reader.head.stop
    while frames := reader.frames(position):
        found += [payload for _, payload in frames]
        position = frames[-1][0]
    reader.close()
    return found


def test_what_is_appended_is_read_at_once_from_another_descriptor(tmp_path):
    writer = JournalWriter(tmp_path, "n/1/0")
    writer.append(b"one")
    assert read_all(writer.path) == [b"one"]
    writer.append(b"two" * 100_000)
    assert read_all(writer.path) == [b"one", b"two" * 100_000]
    writer.close()


def test_contexts_stand_again_at_the_head_of_every_segment(tmp_path):
    writer = JournalWriter(tmp_path, "n/1/0")
    writer.append_context(0, b"zero")
    writer.append(b"x")
    old = writer.swap(writer.prepare())
    os.close(old.fd)
    assert not writer.has_records
    writer.append(b"y")
    assert read_all(old.path) == [b"zero", b"x"]
    assert read_all(writer.path) == [b"zero", b"y"]
    assert list(list_segments(tmp_path).values()) == [("n/1/0", 1), ("n/1/0", 2)]
    writer.close()


def test_a_segment_is_final_only_when_its_writer_let_go(tmp_path):
    writer = JournalWriter(tmp_path, "n/1/0")
    assert lock_dead(writer.path) is None
    old = writer.swap(writer.prepare())
    assert lock_dead(old.path) is None  # still being synced
    os.close(old.fd)
    fd = lock_dead(old.path)
    assert fd is not None
    os.close(fd)
    writer.close()


def test_a_half_written_frame_is_cut_off_and_the_call_fails(tmp_path, monkeypatch):
    writer = JournalWriter(tmp_path, "n/1/0")
    writer.append(b"before")
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    with pytest.raises(DiskFullError, match="no space"):
        writer.append(b"lost" * 50)
    monkeypatch.undo()
    writer.append(b"after")
    assert read_all(writer.path) == [b"before", b"after"]
    writer.close()


def test_a_torn_frame_that_cannot_be_cut_ends_the_segment(tmp_path, monkeypatch):
    writer = JournalWriter(tmp_path, "n/1/0")

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", fail)
    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(DiskFullError):
        writer.append(b"lost")
    monkeypatch.undo()
    with pytest.raises(LedgerHaltedError, match="cannot cut"):
        writer.append(b"after")
    writer.close()


def test_other_write_errors_halt(tmp_path, monkeypatch):
    writer = JournalWriter(tmp_path, "n/1/0")

    def fail(*_):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(LedgerHaltedError):
        writer.append(b"lost")
    monkeypatch.undo()
    writer.close()


def test_frames_have_a_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "FRAME_MAX", 100)
    writer = JournalWriter(tmp_path, "n/1/0")
    with pytest.raises(LimitError):
        writer.append(b"x" * 101)
    writer.close()


def test_a_frame_larger_than_a_read_is_found(tmp_path):
    big = os.urandom(SegmentReader.CHUNK + 10)
    path = write_segment(tmp_path, "n/1/0", 1, [b"small", big, b"end"])
    assert read_all(path) == [b"small", big, b"end"]


def test_a_segment_is_written_whole_or_not_at_all(tmp_path):
    write_segment(tmp_path, "n/1/0", 1, [b"a"])
    with pytest.raises(LedgerHaltedError):
        write_segment(tmp_path, "n/1/0", 1, [b"b"])
    assert os.listdir(tmp_path) == ["n+1+0-00000001.journal"]


@pytest.mark.parametrize("data", [b"", b"PLCJRN01", b"x" * 100, encode_head("n/1/0", 1)[:-1]])
def test_other_bytes_are_no_segment(tmp_path, data):
    path = tmp_path / "n-00000001.journal"
    path.write_bytes(data)
    with pytest.raises(FormatError):
        SegmentReader(path)
