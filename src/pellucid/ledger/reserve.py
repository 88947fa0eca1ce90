"""Disk space that a file has before it needs it: what was promised can be written when the disk is full.

Blocks are taken behind the end of the file and do not make it longer, so that readers never see them.
Linux; where a file system cannot do it there is no reserve, and a full disk is noticed at the append.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Final

KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE
_UNABLE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def _function() -> Any:
    try:
        found = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


_fallocate: Final = _function()


def keep_ahead(fd: int, start: int, length: int) -> bool:
    """Take blocks for ``length`` bytes from ``start`` on; False where the system cannot do that.

    Raises:
        OSError: There is no room for them.
    """
    if _fallocate is None:
        return False
    while _fallocate(fd, KEEP_SIZE, start, length) != 0:
        number = ctypes.get_errno()
        if number in _UNABLE:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True
