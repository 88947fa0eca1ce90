"""C2SP checkpoints: what a log says its tree is, as a signed note.

Three lines: origin, size, root. Extension lines are not used and refused. The key that signs has
the origin as its name, so that a key of one log cannot speak for another.
Source: spec/note.md, section 3.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

import msgspec

from pellucid.core.merkle.hashing import EMPTY_ROOT
from pellucid.core.note import open_note, parse_vkey, sign_note
from pellucid.core.signature import SigningKey
from pellucid.errors import FormatError, SignatureError

SIZE_MAX: Final = 2**53 - 1  # limit: sizes stand in canonical JSON too
_TEXT: Final = re.compile(r"([^\n]{1,256})\n(0|[1-9][0-9]{0,15})\n([A-Za-z0-9+/]{43}=)\n")


class Checkpoint(msgspec.Struct, frozen=True):
    """A tree head.

    Attributes:
        origin: Name of the log.
        size: Number of entries.
        root: Root hash, 32 bytes.
    """

    origin: str
    size: int
    root: bytes


def format_checkpoint(checkpoint: Checkpoint) -> str:
    """The note text of a checkpoint.

    Raises:
        FormatError: The values are not those of a checkpoint.
    """
    root = base64.b64encode(checkpoint.root).decode()
    text = f"{checkpoint.origin}\n{checkpoint.size}\n{root}\n"
    if parse_checkpoint(text) != checkpoint:
        raise FormatError("checkpoint: expected origin, size and root of a tree, got others")
    return text


def parse_checkpoint(text: str) -> Checkpoint:
    """Read a checkpoint's note text.

    Raises:
        FormatError: Another form, extension lines, or an empty tree with another root.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise FormatError(f"checkpoint: expected origin, size and root lines, got {text!r:.120}")
    size, root = int(match[2]), _root(match[3])
    if size > SIZE_MAX:
        raise FormatError(f"checkpoint: expected a size of at most {SIZE_MAX:,}, got {size:,}")
    if size == 0 and root != EMPTY_ROOT:
        raise FormatError("checkpoint: expected the root of the empty tree at size 0, got another")
    return Checkpoint(match[1], size, root)


def _root(text: str) -> bytes:
    try:
        root = base64.b64decode(text, validate=True)
    except binascii.Error:
        root = b""
    if len(root) != 32 or base64.b64encode(root).decode() != text:
        raise FormatError(f"checkpoint: expected a root of 32 bytes in base64, got {text!r:.80}")
    return root


def sign_checkpoint(checkpoint: Checkpoint, signer: SigningKey) -> bytes:
    """Signed note of a checkpoint, under the origin as key name; Ed25519."""
    return sign_note(format_checkpoint(checkpoint), checkpoint.origin, signer)


def verify_checkpoint(raw: bytes, vkey: str) -> Checkpoint:
    """Checkpoint of a note that the log's key signed.

    Raises:
        FormatError: Not a note, not a checkpoint, or not a verifier key.
        SignatureError: Not signed by this key, or the origin is another log's.
    """
    key = parse_vkey(vkey)
    checkpoint = parse_checkpoint(open_note(raw, [key]).text)
    if checkpoint.origin != key.name:
        raise SignatureError(f"checkpoint: expected origin {key.name!r}, got {checkpoint.origin!r}")
    return checkpoint
