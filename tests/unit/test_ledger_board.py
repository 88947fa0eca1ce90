from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.errors import FormatError, LedgerHaltedError, TooManyError
from pellucid.ledger.board import BLOCK, PAGE, Board, lock_dead, parse_board, read_boot_id


@pytest.fixture
def board(tmp_path):
    board = Board(tmp_path / "1-0.board", "node1/1/0", slots=4, now_ns=77, boot_id=b"b" * 16)
    yield board
    board.close()


def image(board):
    return parse_board(board.path.read_bytes())


def test_a_number_is_on_the_board_when_reserve_returns(board):
    assert board.reserve(1000, 3) == 1
    assert board.reserve(1001) == 2
    found = image(board)
    assert (found.source, found.boot_id, found.started_ns) == ("node1/1/0", b"b" * 16, 77)
    assert found.next == 3
    assert found.open == {1: (1000, 3), 2: (1001, 0)}


def test_a_released_number_leaves_its_slot_and_is_never_given_again(board):
    numbers = [board.reserve(n) for n in range(4)]
    board.release(numbers[1])
    assert board.reserve(9) == 5
    assert set(image(board).open) == {1, 3, 4, 5}


def test_no_free_slot_is_too_many_with_a_hint(board):
    for n in range(4):
        board.reserve(n)
    with pytest.raises(TooManyError, match="in_flight_max is 4") as caught:
        board.reserve(5)
    assert "retry" in caught.value.hint
    assert board.next == 5


def test_no_number_at_or_beyond_the_durable_mark_is_given_out(board, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fdatasync", lambda fd: synced.append(image(board).reserved_until))
    board._next = BLOCK  # as if a block had been used
    assert not synced
    assert board.reserve(1) == BLOCK
    assert board.reserve(1) == BLOCK + 1
    assert synced == [1 + 2 * BLOCK]
    assert image(board).reserved_until == 1 + 2 * BLOCK


def test_extension_is_wanted_half_a_block_ahead(board):
    assert not board.wants_extension
    board._next = BLOCK // 2 + 10
    assert board.wants_extension
    board.extend()
    assert not board.wants_extension


def test_a_second_owner_is_refused(board):
    with pytest.raises(LedgerHaltedError, match="second owner"):
        Board(board.path, "node1/1/0", slots=4, now_ns=1)
    assert os.listdir(board.path.parent) == [board.path.name]  # no draft is left


def test_the_lock_tells_a_dead_owner_from_a_living_one(tmp_path):
    board = Board(tmp_path / "1-0.board", "n/1/0", slots=1, now_ns=1)
    assert lock_dead(board.path) is None
    board.close()
    fd = lock_dead(board.path)
    assert fd is not None
    os.close(fd)


def test_flushed_moves(board):
    board.mark_flushed(123)
    assert image(board).flushed_ns == 123


def test_the_boot_id_has_16_bytes_and_stays():
    assert len(read_boot_id()) == 16
    assert read_boot_id() == read_boot_id()


@given(st.lists(st.integers(0, 5), max_size=60))
def test_what_is_on_disk_is_what_is_open(tmp_path_factory, steps):
    """Any order of reserve and release: the file always names exactly the open numbers."""
    board = Board(tmp_path_factory.mktemp("b") / "1-0.board", "n/1/0", slots=3, now_ns=1)
    opened, given_out = [], 0
    for step in steps:
        if step >= 3 and len(opened) < 3:
            given_out += 1
            assert board.reserve(step) == given_out
            opened.append(given_out)
        elif opened:
            board.release(opened.pop(step % len(opened)))
        found = image(board)
        assert set(found.open) == set(opened)
        assert found.next == given_out + 1
    board.close()


@given(st.integers(0, PAGE * 2), st.integers(1, 255))
def test_a_changed_fixed_part_is_refused_never_misread(tmp_path_factory, at, flip):
    path = tmp_path_factory.mktemp("b") / "1-0.board"
    Board(path, "n/1/0", slots=128, now_ns=1).close()
    data = bytearray(path.read_bytes())
    at %= 560  # magic, boot id, slots, start, source and their checksum
    data[at] ^= flip
    with pytest.raises(FormatError):
        parse_board(bytes(data))


@pytest.mark.parametrize("size", [0, 8, PAGE - 1, PAGE, PAGE + 31])
def test_short_boards_are_refused(board, size):
    with pytest.raises(FormatError):
        parse_board(board.path.read_bytes()[:size])


def test_slots_in_the_file_are_four_words(board):
    board.reserve(11, 22)
    assert struct.unpack_from("<4Q", board.path.read_bytes(), PAGE) == (1, 11, 22, 0)
