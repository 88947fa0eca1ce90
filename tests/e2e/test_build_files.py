"""Files that are too large, empty, or no files at all: refused before they are read, in words."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pellucid.app.preflight import preflight
from pellucid.build.files import DATA_MAX, MODEL_MAX
from pellucid.build.frame import write_frame
from pellucid.build.job import run_build
from pellucid.build.shelf import Shelf
from pellucid.core.digest import Data
from pellucid.errors import GateError, LimitError, NotFoundError, ParseError, PellucidError
from pellucid.testing.builds import toy_job, write_recipe

pytestmark = pytest.mark.e2e


def grow(path: Path, size: int) -> None:
    """A file of that size which takes no room."""
    with path.open("wb") as file:
        file.truncate(size)


def ended(attempt: Callable[[], object]) -> PellucidError:
    """The error that an attempt ends with, in time."""
    caught: list[PellucidError] = []

    def run() -> None:
        try:
            attempt()
        except PellucidError as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert caught
    return caught[0]


@pytest.mark.parametrize("size", [MODEL_MAX + 1, 5 * 2**30])
def test_a_model_larger_than_onnx_allows_is_refused_unread_and_recorded(tmp_path: Path, size: int) -> None:
    build, recorder = toy_job(tmp_path / "packages")
    recipe = write_recipe(tmp_path / "recipe", b"")
    grow(recipe.parent / "model.onnx", size)
    with pytest.raises(LimitError, match=f"source: expected at most .* of {size:,}") as caught:
        run_build(recipe, build)
    assert "external data" in caught.value.hint
    assert [data["outcome"] for _, data in recorder.events] == [LimitError.code]
    with pytest.raises(LimitError, match="model: expected at most"):
        preflight(recipe.parent / "model.onnx")


def test_data_larger_than_a_message_is_refused_unread_and_recorded(tmp_path: Path) -> None:
    build, recorder = toy_job(tmp_path / "packages")
    recipe = write_recipe(tmp_path / "recipe", "credit_like", validation={"data": "rows.npz"})
    grow(recipe.parent / "rows.npz", DATA_MAX + 1)
    with pytest.raises(LimitError, match="validation: expected at most"):
        run_build(recipe, build)
    assert [data["outcome"] for _, data in recorder.events] == [LimitError.code]


def test_a_message_that_its_format_cannot_hold_ends_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    def refuse(_: object) -> bytes:
        raise msgspec.EncodeError("Can't encode bytes-like objects longer than 2**32 - 1")

    monkeypatch.setattr("pellucid.build.frame.msgspec.msgpack.encode", refuse)
    with pytest.raises(LimitError, match="expected parts below 4 GiB"):
        write_frame(io.BytesIO(), {"model": b""})


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder"])
def test_preflight_never_waits_for_what_is_no_plain_file(tmp_path: Path, kind: str) -> None:
    model, recipe = tmp_path / "model.onnx", write_recipe(tmp_path / "recipe", "credit_like")
    places = [model, tmp_path / "recipe.yaml"]
    for place in places:
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "folder":
            place.mkdir()
        else:
            place.symlink_to(kind)
    error = ended(lambda: preflight(model))
    assert isinstance(error, NotFoundError)
    assert "plain file" in error.message
    assert isinstance(ended(lambda: preflight(recipe.parent / "model.onnx", places[1])), NotFoundError)


@pytest.mark.parametrize("role", ["model", "validation", "reference", "golden", "recipe"])
def test_a_build_never_waits_for_what_is_no_plain_file(tmp_path: Path, role: str) -> None:
    build, _ = toy_job(tmp_path / "packages")
    data = {"data": "rows.npz"} if role in ("validation", "reference") else {"inputs": "rows.npz"}
    changes = {role: data} if role not in ("model", "recipe") else {}
    recipe = write_recipe(tmp_path / "recipe", "credit_like", **changes)
    place = recipe.parent / {"model": "model.onnx", "recipe": "recipe.yaml"}.get(role, "rows.npz")
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    error = ended(lambda: run_build(recipe, build))
    assert isinstance(error, NotFoundError)
    assert "plain file" in error.message


def test_an_empty_model_is_refused_with_a_hint(tmp_path: Path) -> None:
    build, _ = toy_job(tmp_path / "packages")
    with pytest.raises(ParseError, match="got an empty file") as caught:
        run_build(write_recipe(tmp_path / "recipe", b""), build)
    assert caught.value.hint.startswith("the export or the copy failed")


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_precision_without_validation_is_refused_before_anything_runs(
    tmp_path: Path, precision: str
) -> None:
    build, recorder = toy_job(tmp_path / "packages", entry="raise SystemExit('nothing may be started')")
    reasons = [{"choice": "precision", "reason": "to see it fail", "reviewer": "a test"}]
    calibration = {"calibration": {"data": "rows.npz"}} if precision == "int8" else {}
    recipe = write_recipe(tmp_path / "recipe", b"", precision=precision, reasons=reasons, **calibration)
    with pytest.raises(GateError, match=f"expected a validation set for {precision}") as caught:
        run_build(recipe, build)
    assert caught.value.hint.startswith("name one in the recipe, validation: {data: FILE.npz}")
    ((_, data),) = recorder.events
    assert (data["outcome"], data["ended"]) == (GateError.code, "not started")


def test_graphs_and_engines_share_files_and_data_sets_touch_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelved: list[bytes] = []
    put, drawn = Shelf.put, tmp_path / "drawn"
    drawn.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(drawn))

    def seen(shelf: Shelf, data: Data) -> Path:
        path = put(shelf, data)
        shelved.append(bytes(data))
        found = [file.read_bytes() for file in drawn.rglob("*") if file.is_file()]
        assert not any(rows in content for content in found)
        return path

    monkeypatch.setattr(Shelf, "put", seen)
    stream = io.BytesIO()
    np.savez(stream, features=np.random.default_rng(1).standard_normal((8, 20)).astype("<f4"))
    rows = stream.getvalue()
    build, _ = toy_job(tmp_path / "packages")
    recipe = write_recipe(
        tmp_path / "recipe", "credit_like", validation={"data": "rows.npz"}, golden={"inputs": "rows.npz"}
    )
    (recipe.parent / "rows.npz").write_bytes(rows)
    folder = run_build(recipe, build).folder
    assert list(drawn.iterdir()) == []
    graphs = {(folder / "model" / f"{name}.onnx").read_bytes() for name in ("source", "compiled")}
    assert set(shelved) == graphs
    for path in (folder / "model/source.onnx", folder / "model/compiled.onnx", folder / "engine/model.onnx"):
        assert path.stat().st_nlink == 1
