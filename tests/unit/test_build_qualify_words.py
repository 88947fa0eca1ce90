"""What ``pellucid qualify`` prints of what nobody measured."""

from __future__ import annotations

import pytest

from pellucid.cli.qualify import _between


@pytest.mark.parametrize(
    ("flips", "words"),
    [
        (None, "decisions not measured, bits at most 3 ulp apart"),
        (0, "0 decisions flip, bits at most 3 ulp apart"),
    ],
)
def test_decisions_that_nobody_compared_do_not_flip(flips: int | None, words: str) -> None:
    assert _between({"flips_between_buckets": flips, "bound": {"ulp": 3}}) == words
