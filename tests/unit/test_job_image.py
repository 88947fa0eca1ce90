"""Images by digest: what is taken, what is refused, and quickly."""

from __future__ import annotations

import pytest

from pellucid.core.image import Image, parse_image
from pellucid.errors import UsageError

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "name", "tag"),
    [
        (f"python@{DIGEST}", "python", None),
        (f"python:3.12-slim@{DIGEST}", "python", "3.12-slim"),
        (f"registry.example:5000/team/pellucid@{DIGEST}", "registry.example:5000/team/pellucid", None),
        (f"localhost:5000/a__b/c-d.e:x@{DIGEST}", "localhost:5000/a__b/c-d.e", "x"),
    ],
)
def test_a_reference_by_digest_is_read_and_written_back(text: str, name: str, tag: str | None) -> None:
    image = parse_image(text)
    assert image == Image(name, tag, DIGEST)
    assert str(image) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "python", "python:latest", "registry.example/team/pellucid:1.0", DIGEST, f"@{DIGEST}",
        f"python@{DIGEST[:-1]}", f"python@{DIGEST}0", f"python@{DIGEST.upper()}",
        "python@sha512:" + "ab" * 64,
        f"python@{DIGEST}\n", f" python@{DIGEST}", f"py thon@{DIGEST}", f"a;b@{DIGEST}", f"$(id)@{DIGEST}",
        f"{'a' * 600}@{DIGEST}", f"{'a-' * 200}@{DIGEST}", f"a//b@{DIGEST}", f"https://a/b@{DIGEST}",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected NAME@sha256"):
        parse_image(text)


def test_a_tag_alone_says_why() -> None:
    with pytest.raises(UsageError) as caught:
        parse_image("registry.example/pellucid:1.0", subject="--image")
    assert caught.value.message.startswith("--image: expected NAME@sha256")
    assert "a tag can be moved" in caught.value.hint
