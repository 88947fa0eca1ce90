"""Two builds compared: what stands first, what it is called, and where no reason is known."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from pellucid.core import canonical, strict_yaml
from pellucid.core.package_diff import NOTHING, SECTIONS, compare, is_option, relative_change
from pellucid.core.package_diff_layers import UNKNOWN, alignment_of
from pellucid.core.package_diff_sides import Kernel, Side, package_side
from pellucid.core.tensorrt_layers import DEFERRED
from pellucid.errors import FormatError

RECIPE: dict[str, Any] = {"name": "m", "version": "1.0.0", "target": "sm80", "precision": "fp32"}


def kernel(*nodes: str, tactic: str = "t", precision: str = "FP32", size: int = 1, **more: Any) -> Kernel:
    return Kernel("k", "correlation", frozenset(nodes), tactic, precision, size=size, **more)


def side(*kernels: Kernel, **more: Any) -> Side:
    return Side("one", kernels=kernels or None, **more)


def test_nothing_differs_and_what_is_missing_is_said() -> None:
    found = compare(side(kernel("a")), side(kernel("a")))
    assert (found.first, found.differences) == (NOTHING, ())
    assert {"tactics", "precision", "fusions", "formats"} <= set(found.same)
    assert found.not_compared["recipe"] == "neither says"
    one_sided = compare(side(kernel("a"), recipe=RECIPE), side(kernel("a")))
    assert one_sided.not_compared["recipe"] == "B does not say"
    assert set(found.same) | set(found.not_compared) == set(SECTIONS)


def test_layers_are_matched_by_nodes_not_by_the_builders_names() -> None:
    a, b = kernel("conv", "relu"), replace(kernel("relu", "conv"), name="another name")
    assert compare(side(a), side(b)).differences == ()


def test_the_heaviest_layer_stands_first_and_an_explained_one_before_it() -> None:
    a = side(kernel("big", size=900), kernel("small", size=5), kernel("mid", size=50))
    b = side(
        kernel("big", size=900, tactic="u"), kernel("small", size=5, tactic="u_align1"),
        kernel("mid", size=50, tactic="u"),
    )  # fmt: skip
    found = compare(a, b)
    assert [d.subject for d in found.differences if d.section == "tactics"] == ["small", "big", "mid"]
    assert "alignment not said in A, 1 by the tactic's name in B" in found.first


def test_a_measured_time_outweighs_any_size() -> None:
    quick = kernel("quick", size=10**9)
    slow = kernel("slow", time_ms=Decimal("0.5"))
    changed = [replace(k, tactic="u") for k in (quick, slow)]
    assert compare(side(quick, slow), side(*changed)).differences[0].subject == "slow"


def test_no_reason_is_invented() -> None:
    found = compare(side(kernel("a")), side(kernel("a", tactic="u")))
    assert found.first.endswith("reason: " + UNKNOWN)
    recipes = RECIPE, RECIPE | {"target": "sm89", "gate": {"samples_min": 5}}
    a, b = (side(kernel("a", tactic=t), recipe=r) for t, r in zip("tu", recipes, strict=True))
    found = compare(a, b)
    assert found.differences[0].reason == f"{UNKNOWN}; what went in differs: target sm80 in A, sm89 in B"
    assert [d.subject for d in found.differences if d.section == "recipe"] == ["target", "gate"]
    words = "layer a runs t in A and u in B"
    assert found.first == f"target sm80 in A, sm89 in B, the likely cause: {words}"
    a, b = (side(kernel("a", precision=p), recipe=r) for p, r in zip(("FP32", "FP16"), recipes, strict=True))
    assert compare(a, b).first.startswith(
        "target sm80 in A, sm89 in B, the likely cause: layer a computes in"
    )


def test_precision_is_explained_by_the_recipe_or_by_a_typed_graph() -> None:
    kernels = kernel("a"), kernel("a", precision="FP16")
    recipes = RECIPE, RECIPE | {"precision": "fp16"}
    a, b = (side(k, recipe=r) for k, r in zip(kernels, recipes, strict=True))
    found = compare(a, b)
    assert found.first == (
        "layer a computes in FP32 in A and in FP16 in B; reason: the recipe asks for fp32 in A, fp16 in B"
    )
    a, b = (
        side(k, options={"strongly_typed": True}, digests={"compiled": d})
        for k, d in zip(kernels, ("x", "y"), strict=True)
    )
    assert "takes its types from the graph" in compare(a, b).first
    a, b = (side(k) for k in kernels)
    assert compare(a, b).first.endswith(UNKNOWN)


def test_a_lost_fusion_names_the_layers_of_both() -> None:
    fused, apart = [kernel("conv", "relu"), kernel("fc")], [kernel("conv"), kernel("relu"), kernel("fc")]
    lost = compare(side(*fused), side(*apart)).differences[0]
    assert (lost.section, lost.a, lost.b) == ("fusions", "conv + relu", "conv; relu")
    assert "split: 1 layer in A" in lost.words
    gained = compare(side(*apart), side(*fused)).differences[0]
    assert "merged" in gained.words
    assert gained.rank > lost.rank
    other = compare(side(kernel("a", "b"), kernel("c")), side(kernel("a"), kernel("b", "c"))).differences[0]
    assert "cut in another way" in other.words


def test_a_stub_is_said_to_be_chosen_at_run_time() -> None:
    a, b = kernel("a", tactic=DEFERRED), replace(kernel("a", tactic=""), op="runtime_fusion")
    found = compare(side(a), side(b)).differences[0]
    assert (found.a, found.b) == ("correlation chosen at run time", "runtime_fusion")


def test_formats_are_named_beside_and_without_another_tactic() -> None:
    a = kernel("a", formats=("(NHWC) Channel major format",))
    b = kernel("a", formats=("(Linear) Row major linear format",))
    found = compare(side(a), side(b)).differences[0]
    assert (found.section, found.a) == ("formats", "(NHWC) Channel major format")
    both = compare(side(a), side(replace(b, tactic="u")))
    assert [d.section for d in both.differences] == ["tactics", "formats"]
    assert "format (NHWC) Channel major format in A" in both.first
    moved = compare(side(a), side(a, kernel(is_reformat=True))).differences[0]
    assert moved.words == "0 layers only move or convert data in A, 1 in B"


@pytest.mark.parametrize(
    ("tactic", "formats", "words"),
    [
        ("k_aligna8_alignc4", (), "8/4 by the tactic's name"),
        ("x_ldg4_y", (), "4 by the tactic's name"),
        ("plain", ("Half(8,1:8,4,2) -> Half(8,1:8,4,2)",), "vectors of 8 by the format"),
        ("plain", ("Half(8,4,2,1) -> Half(8,4,2,1)",), "no vectors by the format"),
        ("plain", (), "not said"),
    ],
)
def test_alignment_as_names_and_formats_say(tactic: str, formats: tuple[str, ...], words: str) -> None:
    assert alignment_of([kernel("a", tactic=tactic, formats=formats)]) == words


def test_graph_ranges_accuracy_memory_warnings_bytes() -> None:
    a = side(
        kernel("a"), nodes={"a": "Conv", "gone": "Relu"}, ranges={"x": (Decimal(-1), Decimal(1))},
        accuracy={"device.top1": Decimal("0.98")}, memory={"weights_bytes": 10, "peak_rss_bytes": 1},
        warnings={"unused_input": 1}, digests={"engine": "x"}, fingerprint="f",
    )  # fmt: skip
    b = side(
        kernel("a"), nodes={"a": "Gemm", "new": "Relu"}, ranges={"x": (Decimal(-1), Decimal(3))},
        accuracy={"device.top1": Decimal("0.90")}, memory={"weights_bytes": 20, "peak_rss_bytes": 2},
        warnings={}, digests={"engine": "y"}, fingerprint="f",
    )  # fmt: skip
    found = compare(a, b)
    words = [d.words for d in found.differences]
    assert words == [
        "accuracy: device.top1 is 0.98 in A and 0.90 in B",
        "graph: 1 node only in A: gone (Relu)",
        "graph: 1 node only in B: new (Relu)",
        "graph: node a is Conv in A and Gemm in B",
        "range of x: [-1, 1] in A, [-1, 3] in B (50% of the wider)",
        "memory: weights_bytes is 10 bytes in A and 20 in B",
        "warnings: 1 of kind unused_input in A, 0 in B",
        "the engines are not the same bytes, the layers are the same",
    ]


def test_relative_change_of_points_and_of_equal_ranges() -> None:
    one, two = Decimal(1), Decimal(2)
    assert relative_change((one, one), (one, one)) == 0
    assert relative_change((one, one), (two, two)) == 1
    assert relative_change((-one, one), (-one, one)) == 0


def test_environment_names_versions_and_instruction_sets_not_people() -> None:
    said = {
        "packages": [{"name": "onnxruntime", "version": "1.26"}], "who": {"user": "a"},
        "device": {"kind": "cpu", "isa": ["avx2"]}, "hermetic": {"no_network": True, "left_behind": []},
        "system": {"kernel": "6.1"},
    }  # fmt: skip
    other = said | {
        "packages": [{"name": "onnxruntime", "version": "1.27"}], "who": {"user": "b"},
        "device": {"kind": "cpu", "isa": ["avx2", "avx512f"]},
        "hermetic": {"no_network": "not allowed", "left_behind": ["x"]},
    }  # fmt: skip
    found = compare(side(environment=said), side(environment=other))
    subjects = [d.subject for d in found.differences]
    assert subjects == ["device.isa", "onnxruntime", "hermetic.no_network"]


def of_backend(backend: str, packages: dict[str, str], options: dict[str, Any], **recipe: Any) -> Side:
    listed = [{"name": name, "version": version} for name, version in packages.items()]
    said = {"backend": backend, "packages": listed}
    return side(
        kernel("a", tactic=backend[0]), recipe=RECIPE | {"backend": backend} | recipe, environment=said,
        options=options,
    )  # fmt: skip


ORT = of_backend(
    "onnxruntime", {"numpy": "2", "onnxruntime": "1.32"}, {"threads": 1, "tf32": False, "arena": 1, "d": 0},
    target="cpu",
)  # fmt: skip
RTX = of_backend(
    "tensorrt-rtx", {"numpy": "2", "onnxruntime": "1.32", "tensorrt_rtx_cu13": "1.7"},
    {"tf32": True, **{f"o{i}": i for i in range(6)}},
)  # fmt: skip


def test_of_two_backends_the_backend_is_the_likely_cause_and_options_are_none() -> None:
    found = compare(ORT, RTX)
    assert found.builders is not None
    assert found.first == (
        "backend onnxruntime in A, tensorrt-rtx in B, the likely cause: layer a runs o in A and t in B"
    )
    assert found.builders.rows == [
        ("backend", "onnxruntime", "tensorrt-rtx"),
        ("versions", "onnxruntime 1.32", "tensorrt_rtx_cu13 1.7"),
        ("target", "cpu", "sm80"),
        ("precision", "fp32", "fp32"),
    ]
    assert found.builders.options_in_words == (
        "options of two backends are not comparable name by name: 3 (arena, d, threads) only in A; "
        "6 (o0, o1, o2, o3 and 2 more) only in B; 1 (tf32) of one name in both"
    )
    assert found.builders.record()["options"] == {
        "only_a": ["arena", "d", "threads"], "only_b": [f"o{i}" for i in range(6)], "both": ["tf32"],
    }  # fmt: skip
    [tactic] = [d for d in found.differences if d.section == "tactics"]
    assert "backend onnxruntime in A, tensorrt-rtx in B" in tactic.reason
    assert "options." not in tactic.reason
    options = [d.subject for d in found.differences if is_option(d)]
    assert len(options) == 3 + 6  # --json has them all; what both mean to be theirs alone (tf32) aside


def test_of_one_backend_an_option_may_be_the_cause() -> None:
    found = compare(RTX, replace(RTX, kernels=(kernel("a", tactic="u"),), options={"o0": 1}))
    assert found.builders is None
    assert "options.o0 0 in A, 1 in B" in found.first


@pytest.mark.parametrize("missing", ["recipe", "environment", "options"])
def test_what_a_builder_does_not_say_is_not_said(missing: str) -> None:
    found = compare(replace(ORT, **{missing: None}), RTX).builders
    assert found is not None
    assert found.a.backend == "onnxruntime"
    if missing == "options":
        assert "only in A" not in found.options_in_words
    else:
        assert "not said" in {a for _, a, _ in found.rows}
    assert compare(side(kernel("a")), RTX).builders is None


def test_control_characters_of_a_package_are_spelled_out() -> None:
    a, b = side(nodes={"a\x1b[2J": "Conv"}), side(nodes={})
    assert "\x1b" not in compare(a, replace(b, nodes={"b": "x\ny"})).first
    tactics = side(kernel("a\x1b[0m")), side(kernel("a\x1b[0m", tactic="\x1b]0;x"))
    assert all(c.isprintable() for c in compare(*tactics).first)


def test_a_packages_documents_become_a_side() -> None:
    facts = {
        "layers": [
            {
                "name": "l", "op": "gemm", "nodes": ["n1"], "tactic": "t", "precision": "FP16",
                "inputs": [{"format": "f", "shape": [-1, 4], "datatype": "FP16"}], "outputs": [],
                "constants": [{"shape": [4, 2], "format": "f"}], "reformat": False,
            }
        ],
        "nodes": [{"name": "n1", "op": "Gemm"}], "warnings": [{"kind": "k", "count": 2}],
        "memory": {"weights_bytes": 8}, "fingerprint": "f", "options": {},
    }  # fmt: skip
    files = {
        "facts.json": canonical.encode(facts), "recipe.yaml": strict_yaml.dump(RECIPE), "engine/e": b"e",
        "model/names.json": canonical.encode({"nodes": [{"from": "given name", "to": "n1"}], "tensors": []}),
        "calibration/ranges.json": canonical.encode({"ranges": [{"tensor": "x", "low": "-1", "high": "2"}]}),
        "accuracy.json": canonical.encode({"top1": "0.5", "words": "none", "passed": True}),
    }  # fmt: skip
    found = package_side("p", files, [{"accuracy": {"samples": 10}}])
    assert found.kernels is not None
    (one,) = found.kernels
    assert (one.nodes, one.precision, one.size) == (frozenset({"given name"}), "FP16", 12)
    assert found.nodes == {"given name": "Gemm"}
    assert found.ranges == {"x": (Decimal(-1), Decimal(2))}
    assert found.accuracy == {"graphs.top1": Decimal("0.5"), "device.samples": Decimal(10)}
    assert compare(found, found).differences == ()


@pytest.mark.parametrize("facts", [{"layers": [{}]}, {"layers": [1]}, {"nodes": 5}, {"warnings": {"a": 1}}])
def test_documents_of_another_form_raise_from_the_tree(facts: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="expected documents"):
        package_side("p", {"facts.json": canonical.encode(facts)})


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": ["a list"]}, {"accuracy": {"graphs.error_max": Decimal("1e999999999")}},
        {"options": [1]}, {"environment": {"packages": 1}}, {"environment": {"packages": [{"name": "x"}]}},
        {"memory": [1]}, {"memory": {"weights_bytes": []}}, {"memory": {"weights_bytes": "x"}},
        {"kernels": (kernel("a", precision=True),)},  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_documents_of_another_form_end_in_words(changes: dict[str, Any]) -> None:
    """A package that nobody signed may hold anything."""
    good = side(
        kernel("a"), recipe=RECIPE, options={"x": 1}, memory={"weights_bytes": 1},
        accuracy={"graphs.error_max": Decimal("0.001")}, environment={"packages": []},
    )  # fmt: skip
    with pytest.raises(FormatError, match="expected documents"):
        compare(good, replace(good, **changes))
