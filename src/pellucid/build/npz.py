"""Arrays of an ``.npz`` file that somebody named: whole and of a bounded size, or one error in words."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any, Final

from pellucid.errors import FormatError, RecipeError

FREE_BYTES: Final = 2**30  # limit: what any file may unfold to,
EXPANSION_MAX: Final = 64  # and how many times its own size a larger one: beyond that it is a bomb
_BROKEN: Final = (  # what NumPy, zipfile, zlib and struct raise on bytes that are no such file
    OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, SyntaxError, OverflowError,
    AttributeError, TypeError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


def read_arrays(raw: bytes, subject: str) -> dict[str, Any]:
    """Arrays by name.

    Raises:
        FormatError: No such file, one with pickles, or one that unfolds to far more than it is.
    """
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size <= max(FREE_BYTES, EXPANSION_MAX * len(raw)):
            with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
                return {name: _array(arrays, name) for name in arrays.files}
    except _BROKEN as error:
        got = f"{error!s:.120}" or type(error).__name__
        raise FormatError(f"{subject}: expected an .npz file without pickles, got {got}") from error
    raise FormatError(
        f"{subject}: expected at most {EXPANSION_MAX} times the {len(raw):,} bytes of the file, "
        f"got arrays of {size:,}",
        hint="save it without compression: numpy.savez",
    )


def _array(arrays: Any, name: str) -> Any:
    value = arrays[name]
    if not hasattr(value, "dtype"):  # a member that is no array comes as its bytes
        raise ValueError(f"{name!r:.60}, which is no array")
    return value


def plain_text(value: Any, subject: str) -> str:
    """A label or the value of a slice, as documents hold it.

    Raises:
        RecipeError: Text that is no Unicode: half a surrogate pair, or bytes in another encoding.
    """
    try:
        text = value.decode() if isinstance(value, bytes) else str(value)
        text.encode()
    except UnicodeError:
        raise RecipeError(f"{subject}: expected labels and slices in Unicode, got {value!r:.60}") from None
    return text
