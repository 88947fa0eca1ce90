"""Epoch numbers: one a start of a server, without gaps.

The board is made before the counter moves: killed in between, the next start sees the board, takes
the number after it, and the sequencer ends the epoch that never began.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pellucid.errors import LedgerHaltedError
from pellucid.ledger.board import sync_folder


@contextmanager
def next_epoch(folder: Path) -> Iterator[int]:
    """Number of the epoch that begins; the body makes its board, then the number is used up.

    Raises:
        LedgerHaltedError: ``ledger/epoch`` is not a number.
    """
    (folder / "board").mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "epoch.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        epoch = max(_read(folder / "epoch"), *_boards(folder / "board"), 0) + 1
        yield epoch
        _write(folder / "epoch", epoch)
    finally:
        os.close(fd)


def _read(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return 0
    if not text.isdecimal():
        raise LedgerHaltedError(
            f"ledger/epoch: expected a number, got {text!r:.40}", hint="write the last epoch's number into it"
        )
    return int(text)


def _boards(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[0]) for path in folder.glob("[0-9]*-[0-9]*.board")]


def _write(path: Path, epoch: int) -> None:
    draft = path.with_name(f".{path.name}.new")
    with open(draft, "w") as file:
        file.write(f"{epoch}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)
