"""Container images by digest: a tag can be moved to other bytes, a digest cannot."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from pellucid.errors import UsageError

_HOST: Final = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME: Final = rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_IMAGE: Final = re.compile(rf"(?P<name>{_NAME})(?::(?P<tag>{_TAG}))?@(?P<digest>sha256:[0-9a-f]{{64}})")
LENGTH_MAX: Final = 512  # limit: a name is at most 255, a tag 128, a digest 71


class Image(msgspec.Struct, frozen=True):
    """An image that means one thing.

    Attributes:
        name: With its registry if one was said, without tag.
        tag: For people only, or ``None``; never decides what runs.
        digest: ``sha256:...`` of the manifest.
    """

    name: str
    tag: str | None
    digest: str

    def __str__(self) -> str:
        return f"{self.name}{f':{self.tag}' if self.tag else ''}@{self.digest}"


def parse_image(text: str, *, subject: str = "image") -> Image:
    """Image of ``NAME[:TAG]@sha256:...``.

    Raises:
        UsageError: No digest, or not a reference.
    """
    match = _IMAGE.fullmatch(text) if len(text) <= LENGTH_MAX else None
    if match is None:
        raise UsageError(
            f"{subject}: expected NAME@sha256:<64 hex digits>, got {text!r:.120}",
            hint="a tag can be moved to other bytes: take the digest that the registry gave at the push"
            if "@" not in text
            else "",
        )
    return Image(match["name"], match["tag"], match["digest"])
