"""Files that are no such files, and a machine that refuses: each build ends in words and an entry."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pellucid.build import cancel, job, npz
from pellucid.build import golden as golden_cases
from pellucid.build.job import run_build
from pellucid.core.digest import sha256
from pellucid.core.tensor import TensorSpec
from pellucid.errors import (
    BuildCancelledError,
    BuildError,
    DiskFullError,
    FormatError,
    NotFoundError,
    RecipeError,
    UsageError,
)
from pellucid.testing.builds import toy_job, write_recipe

pytestmark = pytest.mark.e2e


def saved(save: Any, *arrays: Any, **named: Any) -> bytes:
    stream = io.BytesIO()
    save(stream, *arrays, **named)
    return stream.getvalue()


@pytest.mark.parametrize(
    "raw",
    [b"", b"PK\x03\x04cut short", saved(np.save, np.ones(3)), saved(np.savez, features=np.float32(1))],
    ids=["empty", "broken", "npy", "scalar"],
)
def test_golden_inputs_that_are_none_are_refused_in_words_and_recorded(tmp_path: Path, raw: bytes) -> None:
    build, recorder = toy_job(tmp_path / "packages")
    recipe = write_recipe(tmp_path / "recipe", "credit_like", golden={"inputs": "golden.npz"})
    (recipe.parent / "golden.npz").write_bytes(raw)
    with pytest.raises(RecipeError, match=r"golden\.inputs: .*expected"):
        run_build(recipe, build)
    assert recorder.events[0][1]["outcome"] == RecipeError.code


def wide(size: int) -> bytes:
    """A model that takes and gives rows of that many numbers, in a hundred bytes."""
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", size]) for n in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def test_a_declared_size_draws_no_golden_case_that_no_memory_holds(tmp_path: Path) -> None:
    build, _ = toy_job(tmp_path / "packages")
    folder = run_build(write_recipe(tmp_path / "recipe", wide(2**31 - 1)), build).folder
    golden = json.loads((folder / "golden/golden.json").read_bytes())
    assert golden["cases"] == []
    assert "got more" in golden["reason"]


def test_golden_cases_are_drawn_for_the_buckets_whose_inputs_fit() -> None:
    specs = [TensorSpec("x", "FP32", (-1, 10))]
    drawn = golden_cases.draw(specs, [1, 4, 8], count=1, seed=0, bytes_max=4 * 10 * 5)
    assert [bucket for bucket, _ in drawn] == [1, 4]


def bomb(megabytes: int) -> bytes:
    """An array of zeros, a thousandth of its size."""
    header, stream = io.BytesIO(), io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (megabytes * 2**18,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(header.getvalue())
        for _ in range(megabytes):
            member.write(bytes(2**20))
    return stream.getvalue()


def test_an_archive_that_unfolds_to_far_more_than_it_is_is_not_unfolded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = bomb(8)
    assert npz.read_arrays(raw, "sample")["x"].size == 2**21
    monkeypatch.setattr(npz, "FREE_BYTES", 2**20)
    with pytest.raises(FormatError, match="got arrays of 8,388,"):
        npz.read_arrays(raw, "sample")


@pytest.mark.parametrize("role", ["model", "validation"])
def test_a_pipe_or_a_device_in_place_of_a_file_is_never_waited_for(tmp_path: Path, role: str) -> None:
    build, recorder = toy_job(tmp_path / "packages")
    recipe = write_recipe(tmp_path / "recipe", "credit_like", validation={"data": "rows.npz"})
    if role == "model":
        (recipe.parent / "model.onnx").unlink()
        os.mkfifo(recipe.parent / "model.onnx")
    else:
        (recipe.parent / "rows.npz").symlink_to("/dev/zero")
    ended: list[BaseException] = []

    def attempt() -> None:
        try:
            run_build(recipe, build)
        except NotFoundError as error:
            ended.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(20)
    assert ended
    assert "plain file" in str(ended[0])
    assert recorder.events == []


# -- the machine refuses --------------------------------------------------------------------------


def test_a_full_disk_is_an_outcome_with_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere")

    monkeypatch.setattr("pellucid.build.stages.tempfile.TemporaryDirectory", full)
    build, recorder = toy_job(tmp_path / "packages")
    with pytest.raises(DiskFullError, match="No space left"):
        run_build(write_recipe(tmp_path / "recipe", "credit_like"), build)
    assert recorder.events[0][1]["outcome"] == "disk_full"


def test_a_log_that_cannot_be_kept_costs_neither_the_entry_nor_the_reason(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "failed").write_text("in the way")
    build, recorder = toy_job(tmp_path / "packages")
    with pytest.raises(BuildError, match="got an empty file") as caught:
        run_build(write_recipe(tmp_path / "recipe", b""), build)
    assert "could not be kept" in caught.value.hint
    assert recorder.events[0][1]["outcome"] == "build_parse"


def test_two_failures_within_a_second_keep_a_log_each(tmp_path: Path) -> None:
    build, recorder = toy_job(tmp_path / "packages")
    clock = build.clock.now_ns()
    build = job.Job(build.out, recorder, type("Still", (), {"now_ns": lambda _: clock})())
    for _ in range(2):
        with pytest.raises(BuildError, match="empty file"):
            run_build(write_recipe(tmp_path / "recipe", b""), build)
    logs = [path.read_bytes() for path in (tmp_path / "packages").glob("failed/*/build.log.jsonl")]
    assert sorted(map(sha256, logs)) == sorted(data["log"] for _, data in recorder.events)
    assert len(logs) == 2


def test_no_package_stands_without_its_entry(tmp_path: Path) -> None:
    class Refusing:
        def event(self, *_: Any) -> str:
            raise DiskFullError("ledger: expected to write an entry, got a full disk")

    build, _ = toy_job(tmp_path / "packages", recorder=Refusing())
    with pytest.raises(DiskFullError):
        run_build(write_recipe(tmp_path / "recipe", "credit_like"), build)
    assert list((tmp_path / "packages").iterdir()) == []


def test_of_two_builds_of_a_version_the_slower_one_says_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beaten(self: Path, target: Path) -> Path:
        target.mkdir(parents=True)
        (target / "manifest.json").write_text("of the faster one")
        return rename(self, target)

    build, recorder = toy_job(tmp_path / "packages")
    recipe = write_recipe(tmp_path / "recipe", "credit_like")
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", beaten)
    with pytest.raises(UsageError, match="which exists"):
        run_build(recipe, build)
    assert recorder.events[0][1]["outcome"] == UsageError.code
    assert not list((tmp_path / "packages").glob(".building*"))


def test_a_request_to_stop_after_the_last_child_leaves_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = cancel.Stop()
    golden = job._golden

    def asked_late(*arguments: Any) -> Any:
        found = golden(*arguments)
        stop.request()
        return found

    monkeypatch.setattr(job, "_golden", asked_late)
    build, recorder = toy_job(tmp_path / "packages")
    with stop, pytest.raises(BuildCancelledError):
        run_build(write_recipe(tmp_path / "recipe", "credit_like"), build)
    assert recorder.events[0][1]["outcome"] == BuildCancelledError.code
    assert [p.name for p in (tmp_path / "packages").iterdir()] == ["failed"]
