"""A quantised model over its versions: history, what a sample stands behind, and new data for old."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.app.ledger import open_ledger, settle
from pellucid.app.quant import Kept, Quantised, dependents, history, recalibrate, show
from pellucid.app.sign import sign_folder
from pellucid.app.site import Site
from pellucid.core.calibration_ranges import changes, parse_ranges
from pellucid.core.digest import sha256
from pellucid.core.entry import parse_entry
from pellucid.errors import FormatError, NotFoundError, RecipeError, UsageError
from pellucid.testing.server import serving
from pellucid.testing.site import make_site

pytestmark = pytest.mark.e2e
ROWS = np.random.default_rng(3).standard_normal((60, 20)).astype(np.float32)
WIDER = (np.random.default_rng(4).standard_normal((40, 20)) * 3).astype(np.float32)
LIMITS = ("top1_drop_max", "kl_mean_max", "flips_max", "slice_flips_max", "bucket_flips_max")
LOOSE = dict.fromkeys(LIMITS, "1")
RECIPE: dict[str, Any] = {
    "precision": "int8", "gate": LOOSE,
    "reasons": [{"choice": "precision", "reason": "a quarter of the memory", "reviewer": "a test"}],
    "calibration": {
        "data": "validation.npz", "select": {"rule": "first", "count": 50}, "source": "branch 1, spring",
        "licence": "internal", "times": "seen",
    },
}  # fmt: skip
CALLS = 3


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An INT8 model, served and called, and the version after it with other data."""
    root = tmp_path_factory.mktemp("quant") / "site"
    seen = np.arange(60) + 1772000000
    made = make_site(root, recipe=RECIPE, samples={"features": ROWS, "seen": seen})
    policy = root / "policy.yaml"
    policy.write_text(policy.read_text().replace("modes: [fp32]", "modes: [fp32, int8]"))
    with serving(root) as server, closing(http.client.HTTPConnection("127.0.0.1", server.port)) as client:
        for row in ROWS[:CALLS]:
            data = [float(value) for value in row]
            item = {"name": "features", "shape": [1, 20], "datatype": "FP32", "data": data}
            client.request("POST", "/v2/models/credit/infer", json.dumps({"inputs": [item]}))
            reply = client.getresponse()
            assert (reply.status, bool(reply.read())) == (200, True)
    return made


@dataclass(frozen=True)
class Second:
    """The version after the first: what the command printed, and both packages."""

    shown: str
    old: Quantised
    new: Quantised
    archive: Path


@pytest.fixture(scope="module")
def second(site: Site) -> Second:
    data = site.root / "summer.npz"
    np.savez(data, features=WIDER, seen=np.array(["2026-07-01"] * len(WIDER)))
    with pytest.raises(RecipeError, match="at least 50 rows"):
        recalibrate(site, "credit:1.0.0", data, "1.1.0")
    more = np.concatenate([ROWS[:1], WIDER, WIDER])
    np.savez(data, features=more, seen=np.array(["2026-07-01"] * len(more)))
    options = ("--version", "1.1.0", "--source", "branch 1, summer")
    code, shown = pellucid(site, "recalibrate", "credit:1.0.0", "--data", str(data), *options)
    assert code == 0, shown
    (folder,) = site.packages_folder.glob("credit-v1.1.0-*")
    signed = sign_folder(site, folder)
    return Second(shown, show(site, "credit:1.0.0"), show(site, "credit:1.1.0"), signed.archive)


def entries_of(site: Site, kind: str) -> list[dict[str, Any]]:
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    return [entry.data for entry in entries if entry.type == kind]


def pellucid(site: Site, *arguments: str, columns: int = 200) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pellucid", *arguments, "--site", str(site.root)],
        capture_output=True, text=True, env=os.environ | {"COLUMNS": f"{columns}"}, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout or done.stderr


def test_recalibrating_makes_a_package_a_diff_and_an_entry(site: Site, second: Second) -> None:
    old, new = second.old.package, second.new.package
    assert (new.manifest.previous, new.version) == ("1.0.0", "1.1.0")
    found = second.new.calibration
    assert found is not None
    assert second.old.ranges is not None
    assert second.new.ranges is not None
    assert found.source == "branch 1, summer"
    assert found.licence is None  # what was said of the old data is not said of these
    assert found.times == {"from": "2026-07-01T00:00:00.000000000Z", "to": "2026-07-01T00:00:00.000000000Z"}
    changed = changes(second.old.ranges, second.new.ranges)
    assert changed[0].share > 0.5  # three times as wide
    assert {change.kind for change in changed} == {"activation"}  # the weights are the same
    (entry,) = entries_of(site, "recalibration")
    assert (entry["previous_package"], entry["package"]) == (old.digest, new.digest)
    assert entry["data"] == sha256((site.root / "summer.npz").read_bytes())
    assert entry["ranges"] == sha256(new.files["calibration/ranges.json"])
    assert (entry["largest"][0]["tensor"], entry["changed"]) == (changed[0].name, len(changed))
    for words in (
        "recalibrated credit 1.1.0",
        "Ranges that moved",
        changed[0].name,
        f"{changed[0].share:.6f}",
    ):
        assert words in second.shown
    for kept in ("model/source.onnx", "meaning.json"):
        assert new.files[kept] == old.files[kept]
    same = set(old.recipe) - {"version", "previous", "calibration", "model", "meaning", "validation"}
    assert {key: old.recipe[key] for key in same} == {key: new.recipe[key] for key in same}


def test_history_has_every_version_in_order(site: Site, second: Second) -> None:
    steps, kept = history(site, "credit")
    assert [step.quantised.package.version for step in steps] == ["1.0.0", "1.1.0"]
    assert kept.refused == ()
    assert (steps[0].changed, bool(steps[1].changed)) == ((), True)
    with pytest.raises(NotFoundError, match="'nobody'"):
        history(site, "nobody")
    code, shown = pellucid(site, "quant", "history", "credit", columns=80)
    assert code == 0
    for words in ("1.0.0", "1.1.0", "minmax", "branch 1, spring", "branch 1, summer", "2026-07-01T00:00:00"):
        assert words in shown, "broken over lines on a terminal of 80 columns"
    code, raw = pellucid(site, "quant", "history", "credit", "--json")
    packages = json.loads(raw)["packages"]
    assert [p["calibration"]["samples"] for p in packages] == [50, 50]
    assert packages[1]["changed"][0]["change"] != "0.000000"


def test_a_package_that_does_not_hold_is_named_not_believed(site: Site, second: Second) -> None:
    broken = site.packages_folder / "credit-v9.0.0-onnxruntime1.32-cpu.tar.gz"
    broken.write_bytes(second.archive.read_bytes()[:-1] + b"x")
    try:
        steps, kept = history(site, "credit")
    finally:
        broken.unlink()
    assert len(steps) == 2
    assert [name for name, _ in kept.refused] == [broken.name]


def test_show_says_how(site: Site) -> None:
    found = show(site, "credit:1.0.0")
    assert found.ranges == parse_ranges(found.package.files["calibration/ranges.json"])
    code, shown = pellucid(site, "quant", "show", "credit:1.0.0")
    assert code == 0
    for words in (
        "first, 50 of 60 rows",
        "branch 1, spring",
        "internal",
        "2026-02-25",
        "features",
    ):
        assert words in shown
    code, raw = pellucid(site, "quant", "show", "credit:1.0.0", "--json")
    assert json.loads(raw)["digests"] == [s.digest for s in found.calibration.samples]  # type: ignore[union-attr]


def test_a_sample_leads_to_packages_and_to_their_calls(site: Site, second: Second, tmp_path: Path) -> None:
    first = show(site, "credit:1.0.0")
    assert first.calibration is not None
    shared, only_first = first.calibration.samples[0].digest, first.calibration.samples[9].digest
    both = dependents(site, shared)
    assert [(d.quantised.package.version, len(d.calls)) for d in both.found] == [
        ("1.0.0", CALLS),
        ("1.1.0", 0),
    ]
    assert [call.key for call in both.found[0].calls] == [f"test1/1/0/{n}" for n in range(1, CALLS + 1)]
    one = dependents(site, only_first)
    assert [d.samples for d in one.found] == [((9, only_first),)]
    reads = [entry for entry in entries_of(site, "read") if entry["what"] == "dependents"]
    assert [entry["sample"] for entry in reads[-2:]] == [shared, only_first]
    assert reads[-1]["packages"] == [first.package.digest]
    np.savez(tmp_path / "row.npz", features=ROWS[8:10])
    whole = dependents(site, str(tmp_path / "row.npz"))
    assert [[index for index, _ in d.samples] for d in whole.found] == [[8, 9]]
    row = dependents(site, str(tmp_path / "row.npz"), 1)
    assert [d.samples for d in row.found] == [((9, only_first),)]
    assert dependents(site, sha256(b"nobody's")).found == ()
    np.savez(tmp_path / "other.npz", features=ROWS[:, :3])
    assert dependents(site, str(tmp_path / "other.npz")).found == ()
    code, raw = pellucid(site, "quant", "dependents", shared, "--json")
    answer = json.loads(raw)
    assert code == 0
    assert [len(p["calls"]) for p in answer["packages"]] == [CALLS, 0]
    code, shown = pellucid(site, "quant", "dependents", shared)
    assert re.search(rf"calls recorded +{CALLS}\b", shown)
    np.savez(tmp_path / "fresh.npz", features=np.concatenate([ROWS[8:9], ROWS[:1] + 1]))
    _, shown = pellucid(site, "quant", "dependents", str(tmp_path / "fresh.npz"), "--row", "1")
    assert f"No package here was calibrated with row 1 of {tmp_path / 'fresh.npz'}." in shown


def test_questions_badly_asked_are_not_answered(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("no rows")
    with pytest.raises(FormatError, match="npz"):
        dependents(site, str(tmp_path / "text"))
    with pytest.raises(NotFoundError):
        dependents(site, str(tmp_path / "missing.npz"))
    with pytest.raises(FormatError, match="64 hex digits"):
        dependents(site, "sha256:12")
    with pytest.raises(UsageError, match="--row"):
        dependents(site, sha256(b""), 1)
    np.savez(tmp_path / "row.npz", features=ROWS[:2])
    with pytest.raises(UsageError, match="a row below 2"):
        dependents(site, str(tmp_path / "row.npz"), 2)
    monkeypatch.setattr("pellucid.app.quant.all_packages", lambda *_: Kept((), ()))
    with pytest.raises(FormatError, match="npz"):  # nor where there is no package to ask
        dependents(site, str(tmp_path / "text"))


def test_recalibrating_needs_what_the_recipe_named(site: Site, tmp_path: Path) -> None:
    data = tmp_path / "new.npz"
    np.savez(data, features=np.concatenate([ROWS, WIDER]), seen=np.arange(100))
    with pytest.raises(UsageError, match=r"after 1\.0\.0, got '0\.9'"):
        recalibrate(site, "credit:1.0.0", data, "0.9")
    with pytest.raises(NotFoundError, match="data: expected a file"):
        recalibrate(site, "credit:1.0.0", tmp_path / "missing.npz", "1.2.0")
    validation = site.root / "recipes/credit-1.0.0/validation.npz"
    away = validation.rename(tmp_path / "away.npz")
    others = list(site.path("recipes").rglob("validation.npz"))
    moved = [(path, path.rename(tmp_path / f"away-{n}.npz")) for n, path in enumerate(others)]
    try:
        with pytest.raises(NotFoundError, match="validation: expected") as error:
            recalibrate(site, "credit:1.0.0", data, "1.2.0")
    finally:
        away.rename(validation)
        for path, place in moved:
            place.rename(path)
    assert "put the file back" in error.value.hint
    assert not (site.path("recipes") / "credit-v1.2.0").exists()
