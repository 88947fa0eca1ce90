"""Files that somebody named: plain ones of a bounded size, or one error in words."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from pellucid.errors import LimitError, NotFoundError

MODEL_MAX: Final = 2**31 - 1  # limit: protobuf's; one ONNX file holds no more
DATA_MAX: Final = 2**32 - 1  # limit: msgpack's; it goes to the build's process in one piece
_MODEL_HINT: Final = (
    "an ONNX file (protobuf) holds at most 2 GiB, larger ones are written with external data; "
    "model and external data of 2 GiB in all are built: export the weights in FP16, or split the model"
)
_DATA_HINT: Final = "fewer rows, or a smaller datatype"


def read_plain(path: Path, subject: str, size_max: int = DATA_MAX, hint: str = _DATA_HINT) -> bytes:
    """Bytes of a plain file, its size known before anything is read.

    Raises:
        NotFoundError: It is not there, not readable, or no plain file.
        LimitError: It is larger than ``size_max``.
    """
    try:
        # a pipe opened for reading would wait for its writer, a device might never end
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            is_plain, size = stat.S_ISREG(status.st_mode), status.st_size
            if is_plain and size <= size_max:
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    return file.read()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NotFoundError(f"{subject}: expected a file at {path}, got {error.strerror}") from error
    if not is_plain:
        raise NotFoundError(f"{subject}: expected a plain file at {path}, got another kind")
    raise LimitError(f"{subject}: expected at most {size_max:,} bytes, got {path} of {size:,}", hint=hint)


def read_model(path: Path, subject: str) -> bytes:
    """Bytes of an ONNX file.

    Raises:
        NotFoundError, LimitError: As ``read_plain``; the limit is that of one ONNX file.
    """
    return read_plain(path, subject, MODEL_MAX, _MODEL_HINT)
