"""What was admitted is read from entries; the index only finds them. And verifying needs no extras."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pellucid.core import canonical
from pellucid.core.archive import write_archive
from pellucid.errors import LimitError
from pellucid.ports import Found, Query
from pellucid.registry import admitted
from pellucid.registry.admitted import history_of
from pellucid.testing.packages import Workshop


class Entries:
    """A reader of ``load`` entries whose index may lie about everything but the place."""

    origin = "test/log"

    def __init__(self, loads: list[dict], *, lie: bool = False) -> None:
        self.loads, self.lie = loads, lie

    def entry(self, index: int) -> bytes:
        data = {"package": f"sha256:{index:064x}", "model": "toy", "verdict": "allowed"} | self.loads[index]
        return canonical.encode(
            {
                "specversion": "1.0", "id": f"n/1/0/e{index}", "type": data.pop("type", "load"), "data": data,
                "source": "pellucid:n", "time": "2026-11-30T16:40:14.000000000Z",
                "datacontenttype": "application/json",
            }
        )  # fmt: skip

    def find(self, query: Query) -> list[Found]:
        rows = [
            Found(i, f"n/1/0/e{i}", "load", i, "toy", "99.0" if self.lie else "")
            for i, load in enumerate(self.loads)
        ]
        wanted = [row for row in reversed(rows) if row.time_ns <= query.until_ns]
        return wanted[: query.limit]

    def size(self) -> int:
        return len(self.loads)

    def entries(self, start: int, stop: int) -> Iterator[bytes]:
        return map(self.entry, range(start, stop))


def test_the_highest_version_is_the_floor_whatever_the_order():
    history = history_of(Entries([{"version": v} for v in ("1.9", "1.10.0", "1.2", "1.10.0-rc.1")]), "toy")
    assert history.highest == "1.10.0"
    assert set(history.packages) == {"1.9", "1.10.0", "1.2", "1.10.0-rc.1"}


def test_entries_count_and_not_the_index():
    loads = [{"version": "1.0"}, {"version": "7", "model": "other"}, {"version": "8", "type": "load.refused"},
             {"version": "not one"}, {"version": "9", "package": None}]  # fmt: skip
    assert history_of(Entries(loads, lie=True), "toy").highest == "1.0"
    assert history_of(Entries([]), "toy").highest is None


def test_nobody_judges_by_half_of_a_history(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admitted, "LOADS_MAX", 10)
    loads = [{"version": f"1.{i}"} for i in range(11)]
    assert history_of(Entries(loads[:10]), "toy").highest == "1.9"
    with pytest.raises(LimitError, match="at most 10 loads"):
        history_of(Entries(loads), "toy")


def test_the_base_install_verifies(tmp_path: Path):
    shop = Workshop()
    package = shop.package()
    (tmp_path / "toy.tar.gz").write_bytes(write_archive(package.name, package.files))
    trust = tmp_path / "trust"
    trust.mkdir()
    for role in ("builder", "qualifier"):
        (trust / f"{role}.pem").write_bytes(shop.trust.of(role)[0])
    (tmp_path / "policy.yaml").write_text("security: {allowed_precision_modes: [fp32]}")
    code = (
        "import sys\n"
        "for name in ('numpy', 'onnx', 'onnxruntime', 'uvicorn', 'cyclonedx'): sys.modules[name] = None\n"
        "from pellucid.cli.main import main\n"
        "main(['verify', 'toy.tar.gz', '--trust', 'trust', '--policy', 'policy.yaml'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not judged" in done.stdout
