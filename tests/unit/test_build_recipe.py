"""The recipe: strict, whole, and never a silent default."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pellucid.core.recipe import Recipe, effective, encode_recipe, parse_recipe
from pellucid.errors import RecipeError

MINIMAL = {
    "name": "toy",
    "version": "1.0.0",
    "backend": "onnxruntime",
    "target": "cpu",
    "model": "model.onnx",
}
REASON = {"reason": "measured, and fast enough only so", "reviewer": "R. Reviewer"}


def parse(**changes: object) -> Recipe:
    return parse_recipe(yaml.safe_dump(MINIMAL | changes).encode())


def test_the_effective_recipe_reads_back_as_itself() -> None:
    said = effective(parse(gate={"kl_mean_max": 0.001}, validation={"data": "v.npz"}))
    assert effective(parse_recipe(encode_recipe(said))) == said
    assert said["gate"]["kl_mean_max"] == "0.001"
    assert said["tf32"] is False
    assert said["validation"] == {"data": "v.npz", "labels": None, "slices": []}


def test_strict_refuses_anything_unsaid_and_takes_the_effective_recipe() -> None:
    whole = effective(parse(strict=False, validation={"data": "v.npz"})) | {"strict": True}
    assert parse_recipe(encode_recipe(whole)).strict
    for key in set(whole) - set(MINIMAL) - {"strict"}:
        with pytest.raises(RecipeError, match=f"strict.*{key}"):
            parse_recipe(yaml.safe_dump({k: v for k, v in whole.items() if k != key}).encode())
    del whole["gate"]["kl_mean_max"]
    with pytest.raises(RecipeError, match=r"gate\.kl_mean_max"):
        parse_recipe(encode_recipe(whole))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "fp8"}, "not built by this version"),
        ({"backend": "openvino"}, "expected onnxruntime or tensorrt-rtx"),
        ({"target": "cuda"}, "not built by this version"),
        ({"tf32": True}, "tf32"),
        ({"workspace_bytes": 1024}, "workspace"),
        ({"serve_level": "native"}, "risky choice"),
        ({"commitment": "plain"}, "risky choice"),
        ({"nonfinite": "allow"}, "risky choice"),
        ({"surprise": 1}, "unknown key"),
        ({"gate": {"surprise": 1}}, r"gate\.surprise"),
        ({"buckets": [8, 1]}, "ascending"),
        ({"buckets": [1, 1]}, "ascending"),
        ({"buckets": [0]}, "from 1 to"),
        ({"buckets": [True]}, "integer"),
        ({"pinned_bucket": 3}, "one of the buckets"),
        ({"version": 1.2}, "version"),
        ({"version": "01.2"}, "version"),
        ({"model": "../model.onnx"}, "below the recipe"),
        ({"model": "/etc/passwd"}, "below the recipe"),
        ({"gate": {"kl_mean_max": -1}}, "number from 0"),
        ({"gate": {"kl_mean_max": ".nan"}}, "number from 0"),
        ({"gate": {"kl_mean_max": "1e-99999999"}}, "at most 40 places"),
        ({"gate": {"confidence": 0}}, "number from 0.000001"),
        ({"reasons": [{"choice": "threads"}]}, "expected a value"),
        (
            {"reasons": [{"choice": "threads", "reason": "it is slow", "reviewer": "me"}]},
            "of 3 characters or more",
        ),
        ({"reasons": [{"choice": "nothing", **REASON}]}, r"reasons\.choice"),
        ({"threads": 0}, "threads"),
        ({"name": "A B"}, "name"),
        ({"precision": "fp16"}, "precision: 'fp16' is a risky choice"),
        ({"precision": "bf16"}, "its CPU kernels|got 'bf16'"),
        ({"precision": "int8"}, "calibration: expected a calibration set for int8"),
        ({"calibration": {"data": "c.npz"}}, "calibration: expected null for fp32"),
        ({"profiles": [{"name": "p", "inputs": {}}]}, "profiles: expected none for onnxruntime"),
        ({"shapes": {"x": [0, -2]}}, "shapes"),
        ({"canonical": {"opset": 6}}, r"canonical\.opset"),
        ({"model": "a\u202egnp.onnx"}, "below the recipe"),
        ({"model": "a\x85.onnx"}, "below the recipe"),
        ({"reasons": [{"choice": "tf32", "reason": "why \u2066not", "reviewer": "someone"}]}, "a sentence"),
        ({"version": "1.2.0", "previous": "1.2"}, "previous: expected the version before"),
    ],
)
def test_what_cannot_be_promised_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parse(**changes)


@pytest.mark.parametrize("key", ["serve_level", "commitment", "nonfinite"])
def test_a_risky_choice_stands_with_its_reason(key: str) -> None:
    risky = {"serve_level": "native", "commitment": "plain", "nonfinite": "allow"}[key]
    assert getattr(parse(**{key: risky, "reasons": [{"choice": key, **REASON}]}), key) == risky


RTX = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}


def test_a_recipe_for_a_gpu_has_defaults_of_its_own_and_reads_back_as_itself() -> None:
    said = effective(parse(**RTX))
    assert (said["serve_level"], said["workspace_bytes"], said["tf32"]) == ("native", 2**32, False)
    assert said["licence_ack"] is True
    assert effective(parse_recipe(encode_recipe(said))) == said
    assert "licence_ack" not in effective(parse())


def test_a_strict_recipe_for_a_gpu_says_everything() -> None:
    whole = effective(parse(**RTX)) | {"strict": True}
    assert parse_recipe(encode_recipe(whole)).strict
    for key in ("serve_level", "workspace_bytes", "tf32"):
        with pytest.raises(RecipeError, match=f"strict.*{key}"):
            parse_recipe(yaml.safe_dump({k: v for k, v in whole.items() if k != key}).encode())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"licence_ack": None}, "licence_ack: expected true for tensorrt-rtx, got none"),
        ({"licence_ack": False}, "licence_ack: expected true for tensorrt-rtx, got false"),
        ({"target": "cpu"}, "target: expected one of sm75"),
        ({"target": "sm90"}, "target: expected one of sm75"),
        ({"target": "sm900"}, "target: expected cpu or sm75"),
        ({"serve_level": "portable"}, "serve_level: expected native"),
        ({"threads": 2}, "threads: expected 1"),
        ({"workspace_bytes": None}, "workspace_bytes: expected a size"),
        ({"tf32": True}, "tf32: True is a risky choice"),
        ({"backend": "onnxruntime"}, "target: expected cpu for onnxruntime"),
        ({"backend": "onnxruntime", "target": "cpu"}, "licence_ack: expected null"),
    ],
)
def test_what_a_gpu_recipe_cannot_mean_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parse(**RTX | changes)


def test_the_licence_hint_names_what_to_read() -> None:
    with pytest.raises(RecipeError) as error:
        parse(**RTX | {"licence_ack": None})
    assert "hosted" in error.value.hint
    assert "life-critical" in error.value.hint


def test_a_profile_is_ordered_named_once_and_answered_for() -> None:
    shapes = {"min": [1, 4], "opt": [2, 4], "max": [8, 4]}
    profile = {"name": "day", "inputs": {"x": shapes}}
    reasons = [{"choice": "profiles", **REASON}]
    assert effective(parse(**RTX, profiles=[profile], reasons=reasons))["profiles"] == [profile]
    for changes, words in (
        ({"profiles": [profile]}, "profiles: .'day'. is a risky choice"),
        ({"profiles": [profile, dict(profile, inputs={})], "reasons": reasons}, "each name once"),
        (
            {"profiles": [profile | {"inputs": {"x": shapes | {"min": [3, 4]}}}]},
            "axis 0: expected min <= opt",
        ),
        ({"profiles": [profile | {"inputs": {"x": shapes | {"min": [1]}}}]}, "of one rank"),
        ({"workspace_bytes": 2**20}, "workspace_bytes: 1048576 is a risky choice"),
    ):
        with pytest.raises(RecipeError, match=words):
            parse(**RTX | changes)


def test_what_tensorrt_defaults_to_inside_a_section_stays_when_another_key_is_said() -> None:
    assert effective(parse(**RTX, canonical={"fold": False}))["canonical"] == {"opset": 17, "fold": False}
    assert effective(parse())["canonical"] == {"opset": None, "fold": False}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"select": {"rule": "random"}}, "select.count"),
        ({"select": {"rule": "all", "count": 5}}, "select.count"),
        ({"select": {"rule": "stratified", "count": 5}}, "select.slice"),
        ({"select": {"rule": "first", "count": 5, "slice": "day"}}, "select.slice"),
        ({"select": {"rule": "stratified", "count": 5, "slice": "day"}}, "select.slice"),
        ({"operators": []}, "at least one operator"),
        ({"method": "guess"}, "minmax or entropy or percentile"),
    ],
)
def test_a_calibration_says_what_it_means(changes: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parse(
            precision="int8", calibration={"data": "c.npz"} | changes,
            reasons=[{"choice": "precision", **REASON}],
        )  # fmt: skip


def test_tf32_stands_with_its_reason() -> None:
    assert parse(**RTX, tf32=True, reasons=[{"choice": "tf32", **REASON}]).tf32


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nname: b\n", "twice"),
        ("gate: {kl_mean_max: 1, kl_mean_max: 2}\n", "twice"),
        ("name: &x a\nversion: *x\n", "alias"),
        ("- a\n", "mapping"),
        ("", "mapping"),
        ("name: !!python/object:os.system x\n", "YAML"),
        ("a: " + "[" * 40 + "]" * 40, "levels"),
        ("1: x\n", "text key"),
        ("name: [\n", "YAML"),
        ("name: \xff\n".encode("latin-1"), "YAML"),
    ],
)
def test_yaml_means_one_thing(text: str | bytes, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parse_recipe(text.encode() if isinstance(text, str) else text)


def test_words_of_old_yaml_stay_text() -> None:
    with pytest.raises(RecipeError, match="strict: expected true or false, got 'yes'"):
        parse_recipe(b"name: toy\nversion: 1.0.0\nbackend: onnxruntime\ntarget: cpu\nmodel: m\nstrict: yes\n")


def test_the_examples_are_strict(repository: Path) -> None:
    paths = list(repository.glob("examples/*/recipe.yaml"))
    assert paths
    for path in paths:
        assert parse_recipe(path.read_bytes()).strict
