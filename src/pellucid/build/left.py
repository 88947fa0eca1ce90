"""The worker as its parent knows it: how it is started, and which files it leaves in its folder."""

from __future__ import annotations

from typing import Final

from pellucid.errors import DiskFullError

ENTRY: Final = "from pellucid.app.processes import worker_main; worker_main()"
RESULT: Final = "result"
LOG: Final = "build.log.jsonl"
NO_ROOM: Final = 74  # exit status, EX_IOERR of sysexits.h: what it was to leave there did not fit on the disk


def no_room(subject: str) -> DiskFullError:
    """What the exit status ``NO_ROOM`` says, in words."""
    return DiskFullError(
        f"{subject}: expected room for what it makes in its temporary folder, got none left",
        hint="make room where TMPDIR is, or let TMPDIR name a folder that has some",
    )
