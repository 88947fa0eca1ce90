"""What a rebuild says about bytes, measures and versions."""

from __future__ import annotations

import importlib.metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.build.rebuild import bytes_differ, install_line, missing_measures


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_the_first_difference_is_found_by_halving(a: bytes, b: bytes) -> None:
    found = bytes_differ(a, b)
    if a == b:
        assert found == ""
        return
    shorter = min(len(a), len(b))
    first = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    assert found == f"{len(a):,} bytes recorded, {len(b):,} rebuilt, first difference at offset {first:,}"


@pytest.mark.parametrize(
    ("recorded", "here", "words"),
    [
        ({"fixed_addresses": True, "no_network": True}, {"fixed_addresses": True}, []),
        ({"fixed_addresses": "no"}, {}, ["the recorded build lacked fixed_addresses: no"]),
        ({}, {"no_network": "no"}, ["this rebuild lacked no_network: no"]),
        ({"ends_with_parent": "no"}, {}, []),
        (None, {}, ["the recorded build does not say which hermetic measures it had"]),
    ],
)
def test_measures_that_a_build_lacked(
    recorded: dict[str, bool | str] | None, here: dict[str, bool | str], words: list[str]
) -> None:
    assert missing_measures({"hermetic": recorded}, {"hermetic": here}) == words


def test_the_line_names_only_what_is_not_here_in_that_version() -> None:
    here = importlib.metadata.version("msgspec")
    packages = [
        {"name": "msgspec", "version": here}, {"name": "numpy", "version": "0.0.1"},
        {"name": "no-such-library-here", "version": "2"}, {"name": "pellucid", "version": "0.0.0"},
    ]  # fmt: skip
    assert install_line(packages) == "pip install numpy==0.0.1 no-such-library-here==2"
    assert install_line([]) == ""
