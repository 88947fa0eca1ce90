"""No folder of the machine that built stands in what is handed on; two builds have the same log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from pellucid.build import places
from pellucid.build.job import run_build
from pellucid.build.left import ENTRY
from pellucid.errors import PellucidError
from pellucid.testing.builds import EventList, toy_job, write_recipe
from pellucid.testing.models import digits_like

pytestmark = pytest.mark.e2e
RTX: dict[str, Any] = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}
BACKENDS = [{}, RTX]
_MEASURED = re.compile(r"[\d.e+-]+ ?(?:seconds|ms|MiB)\b")  # by the builder, inside its messages


def outside(place: str, **fields: str) -> bytes:
    """Digits, its first weights said to lie in a file."""
    model = onnx.load_model_from_string(digits_like())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": place, **fields}.items():
        tensor.external_data.add(key=key, value=value)
    return model.SerializeToString()


def foreign(domain: str) -> bytes:
    """An operator that nobody has."""
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 4]) for n in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Foo", ["x"], ["y"], domain=domain)], "g", [x], [y])
    sets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("elsewhere", 1)]
    return onnx.helper.make_model(graph, opset_imports=sets).SerializeToString()


GOOD = {"digits": digits_like()}
BAD = {
    "short": outside("model.onnx", offset="99999999"),
    "cut short": digits_like()[:2000],
    "no plugin": foreign("elsewhere"),
}


def built(folder: Path, model: bytes, **changes: Any) -> tuple[str, EventList]:
    """A build's error in words, or ``""``, and its entries."""
    job, recorder = toy_job(folder / "packages")
    try:
        run_build(write_recipe(folder / "recipe", model, **changes), job)
    except PellucidError as error:
        return error.message, recorder
    return "", recorder


def log_of(folder: Path) -> list[dict[str, Any]]:
    [path] = (folder / "packages").rglob("build.log.jsonl")
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        del line["time"]
        line["message"] = _MEASURED.sub("T", line["message"])
    return lines


@pytest.mark.parametrize("changes", BACKENDS, ids=["onnxruntime", "tensorrt-rtx"])
@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_no_folder_of_the_builder_is_handed_on(
    tmp_path: Path, name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if changes:
        pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
    (tmp_path / "drawn").mkdir()
    (tmp_path / "user").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "drawn"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    model = (GOOD | BAD)[name]
    words, recorder = built(tmp_path / "user" / "a", model, **changes)
    assert (words == "") == (name in GOOD), words
    kept = [p for p in (tmp_path / "user/a/packages").rglob("*") if p.is_file()]
    assert kept
    for secret in (str(tmp_path), "/tmp/tmp"):
        assert secret not in words
        assert secret not in json.dumps(recorder.events)
        assert [str(p.relative_to(tmp_path)) for p in kept if secret.encode() in p.read_bytes()] == []
    again, _ = built(tmp_path / "user" / "b", model, **changes)
    assert again == words
    assert log_of(tmp_path / "user" / "a") == log_of(tmp_path / "user" / "b")


def test_a_traceback_names_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program itself lies below somebody's home."""
    home = Path(places.__file__).parents[2]
    monkeypatch.setenv("HOME", str(home))
    entry = f"import pellucid.build.prepare as p; p.prepare = lambda task: p.canonicalise(1, 2, 3); {ENTRY}"
    job, _ = toy_job(tmp_path / "packages", entry=entry)
    with pytest.raises(PellucidError):
        run_build(write_recipe(tmp_path / "recipe", "credit_like"), job)
    [path] = (tmp_path / "packages").rglob("build.stderr")
    said = path.read_text()
    assert 'File "<home>/pellucid/build/worker.py"' in said
    assert str(home) not in said


def test_the_entry_of_a_build_names_files_without_their_folders(tmp_path: Path) -> None:
    job, recorder = toy_job(tmp_path / "packages")
    recipe = write_recipe(tmp_path / "recipe", "credit_like")
    with (recipe.parent / "model.onnx").open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(PellucidError, match=r"model\.onnx"):
        run_build(recipe, job)
    assert "model.onnx" in recorder.events[0][1]["reason"]
    assert str(tmp_path) not in recorder.events[0][1]["reason"]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("open /s/x1/tmp/tmpabcd0123/model.onnx", "open <temporary>/model.onnx"),
        ("/s/x1/tmp/pellucid-precision-abcd_123/b", "<temporary>/b"),
        ("/s/x1/tmp/other", "<temporary>/tmp/other"),
        ("/s/x1", "<temporary>"),
        ("/s/x2/tmp", "/s/x2/tmp"),
    ],
)
def test_a_childs_folder_is_hidden_wherever_it_stands(said: str, left: str) -> None:
    scratch = Path("/s/x1")
    assert places.hide(said, scratch) == left
    assert places.hide_in({said: [said, 1, b"x"]}, scratch) == {left: [left, 1, b"x"]}
    assert places.hide_in_log(json.dumps(said).encode(), scratch) == json.dumps(left).encode()
    assert places.hide_in_stderr(said.encode() + b"\xff", scratch) == left.encode() + b"\xff"


def test_a_folder_with_marks_of_json_is_hidden_in_the_log() -> None:
    scratch = Path('/s/"ä\\')
    line = json.dumps({"message": f"{scratch}/tmp/tmpabcd0123/m"}, ensure_ascii=False).encode()
    assert json.loads(places.hide_in_log(line, scratch)) == {"message": "<temporary>/m"}
