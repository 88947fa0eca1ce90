"""Digests that a build computes once: of the very object, as long as it lasts."""

from __future__ import annotations

import pytest

from pellucid.build import hashed
from pellucid.core.digest import sha256


def test_each_object_is_hashed_once_and_no_other_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def counted(data: bytes) -> str:
        seen.append(data)
        return sha256(data)

    monkeypatch.setattr(hashed, "sha256", counted)
    digest = hashed.Hashed()
    for number in range(200):
        data = bytes([number]) * 2000  # freed after each turn, unless somebody holds it
        assert digest(data) == digest(data) == sha256(data)
    assert len(seen) == 200
