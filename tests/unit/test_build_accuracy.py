"""Accuracy: exact where it can be, defined on zeros, closed on nothing and on NaN."""

from __future__ import annotations

import math

import pytest

from pellucid.core.accuracy import (
    Samples,
    clopper_pearson_upper,
    is_unjudged,
    kl_divergence,
    measure,
    quantile,
    score_form,
    text_label,
)
from pellucid.core.gap import Gap
from pellucid.core.recipe import effective, parse_recipe
from pellucid.errors import UsageError

GATE = effective(parse_recipe(b"name: a\nversion: 1.0.0\nbackend: onnxruntime\ntarget: cpu\nmodel: m\n"))[
    "gate"
]


def samples(engine: list[list[float]], **more: object) -> Samples:
    source = [[0.9, 0.1]] * len(engine)
    labels = ["yes" if row[0] >= row[1] else "no" for row in engine]
    return Samples(source, engine, ["yes"] * len(engine), labels, **more)  # type: ignore[arg-type]


def test_equal_scores_pass() -> None:
    report = measure(samples([[0.9, 0.1]] * 5, truth=["yes"] * 4 + ["no"]), GATE)
    assert report["passed"]
    assert (report["kl_mean"], report["error_max"], report["flips"]) == ("0", "0", 0)
    assert (report["top1"], report["top1_source"]) == ("0.8", "0.8")


def test_nothing_measured_fails_closed() -> None:
    report = measure(Samples((), (), (), ()), GATE)
    assert not report["passed"]
    assert report["findings"] == ["samples: expected a validation set, got none"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["source", "engine"])
def test_a_score_that_is_not_finite_fails_closed(bad: float, side: str) -> None:
    rows = {"source": [[0.9, 0.1]], "engine": [[0.9, 0.1]]}
    rows[side] = [[bad, 0.1]]
    report = measure(Samples(rows["source"], rows["engine"], ["a"], ["a"]), GATE)
    assert not report["passed"]
    assert side in report["findings"][0]
    assert report["kl_mean"] is None


def test_another_output_that_is_not_finite_fails_closed() -> None:
    report = measure(samples([[0.9, 0.1]], error=math.inf), GATE)
    assert not report["passed"]
    assert report["findings"][0].startswith("outputs: expected finite")


def test_a_slice_fails_although_the_whole_passes() -> None:
    engine = [[0.9, 0.1]] * 990 + [[0.1, 0.9]] * 9 + [[0.9, 0.1]]
    night = ["day"] * 980 + ["night"] * 20
    report = measure(samples(engine, slices={"light": night}), GATE | {"kl_mean_max": None})
    assert [f.partition(":")[0] for f in report["findings"]] == ["slice light=night"]
    by_value = {s["value"]: s for s in report["slices"]}
    assert (by_value["night"]["flips"], by_value["night"]["samples"], by_value["day"]["flips"]) == (9, 20, 0)
    assert report["flips"] == 9


def test_every_limit_broken_is_reported() -> None:
    gate = GATE | {"samples_min": 100, "error_max": "0.1", "kl_max_max": "0.1", "flips_upper_max": "0.01"}
    report = measure(samples([[0.1, 0.9]] * 3, truth=["yes"] * 3), gate)
    assert not report["passed"]
    assert {f.partition(":")[0] for f in report["findings"]} == {
        "samples", "KL mean", "KL max", "largest error", "flipped decisions",
        "flipped decisions, upper bound", "loss of top-1",
    }  # fmt: skip


def test_kl_is_defined_on_zeros() -> None:
    assert kl_divergence([0.0, 1.0], [0.5, 0.5]) == pytest.approx(math.log(2))
    assert math.isfinite(kl_divergence([1.0, 0.0], [0.0, 1.0]))
    assert kl_divergence([0.5, 0.5], [0.5, 0.5]) == 0.0


def test_scores_are_read_as_what_they_are() -> None:
    assert score_form([[0.25, 0.75]]) == "probabilities"
    assert score_form([[0.25], [0.5]]) == "bernoulli"
    assert score_form([[0.25, 3.0]]) == "softmax"
    assert score_form([[0.25, 0.25]]) == "softmax"


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantile(list(range(1, 101)), 0.99) == 99
    assert quantile(list(range(1, 101)), 0.5) == 50
    assert quantile([7.0], 0.999) == 7.0


def test_bounds_need_counts_that_fit() -> None:
    assert clopper_pearson_upper(0, 0) == 1.0
    assert clopper_pearson_upper(5, 5) == 1.0
    for hits, trials, confidence in ((3, 2, 0.95), (-1, 2, 0.95), (0, 2, 1.0), (0, 2, 0.0)):
        with pytest.raises(UsageError):
            clopper_pearson_upper(hits, trials, confidence)


def test_limits_that_somebody_asked_for_are_judged() -> None:
    gate = GATE | {"kl_mean_max": None, "psnr_db_min": "40", "cosine_min": "0.999", "kl_p999_max": "0.001"}
    report = measure(samples([[0.9, 0.1]] * 4 + [[0.7, 0.3]]), gate)
    assert {f.partition(":")[0] for f in report["findings"]} == {"PSNR in dB", "smallest cosine", "KL p99.9"}
    assert report["findings"][1].startswith("PSNR in dB: expected at least 40, got 19.0")
    good = measure(samples([[0.9, 0.1]] * 5), gate)
    assert good["passed"]
    assert (good["psnr_db"], good["cosine_min"], good["cosine_mean"]) == ("inf", "1", "1")


def test_limits_that_somebody_asked_for_fail_when_nothing_can_be_measured() -> None:
    text = Samples([[]], [[]], ["a"], ["a"])
    assert measure(text, GATE)["passed"]
    findings = measure(text, GATE | {"psnr_db_min": "1", "error_max": "1"})["findings"]
    assert [f.rpartition("got ")[2] for f in findings] == ["nothing measured"] * 2


def test_every_output_counts_not_only_the_deciding_one() -> None:
    other = Gap()
    other.add([1.0, 0.0], [0.0, 1.0])
    deciding = Gap()
    deciding.add([0.9, 0.1], [0.9, 0.1])
    report = measure(samples([[0.9, 0.1]], gaps=[deciding, other]), GATE)
    assert (report["error_max"], report["psnr_db"], report["cosine_min"]) == ("1", "0", "0")
    assert report["cosine_mean"] == "0.5"


def test_gates_of_earlier_packages_are_understood() -> None:
    old = {key: GATE[key] for key in GATE if key not in ("psnr_db_min", "cosine_min", "kl_p999_max")}
    assert measure(samples([[0.9, 0.1]]), old)["passed"]


def test_an_engine_off_the_simplex_is_not_read_more_kindly() -> None:
    """Rounded probabilities that no longer sum to 1 keep the source's reading; nothing positive is far."""
    source = [[0.7, 0.2, 0.1]] * 3
    labels = ["a"] * 3

    def kl(row: list[float]) -> float:
        report = measure(Samples(source, [row] * 3, labels, labels), GATE)
        assert report["kl_form"] == "probabilities"
        return float(report["kl_mean"])

    assert kl([0.7, 0.2, 0.1]) == kl([1.4, 0.4, 0.2]) == pytest.approx(0, abs=1e-15)
    assert kl([0.2, 0.7, 0.1]) == pytest.approx(0.5 * math.log(0.7 / 0.2))
    assert kl([0.21, 0.7, 0.1]) == pytest.approx(kl([0.2, 0.7, 0.1]), rel=0.1)
    assert kl([-0.1, 0.0, 0.0]) > 10
    single = Samples([[0.5]], [[1.5]], ["a"], ["a"])
    assert measure(single, GATE)["kl_form"] == "bernoulli"
    assert float(measure(single, GATE)["kl_mean"]) > 10


def test_one_number_that_decides_nothing_is_not_measured_as_if_nothing_had_changed() -> None:
    """Softmax of one number is 1, and no decision is no other decision: neither may pass for agreement."""
    far = Samples([[1.0], [-20.0]], [[7.0], [30.0]], [None, None], [None, None], slices={"at": ["a", "b"]})
    report = measure(far, GATE)
    unmeasured = ("kl_form", "kl_mean", "kl_max", "flips", "flips_upper", "top1")
    assert [report[key] for key in unmeasured] == [None] * len(unmeasured)
    assert (report["error_max"], report["slices"][0]["flips"]) == ("50", None)
    assert is_unjudged(report, GATE)
    assert not is_unjudged(report, GATE | {"error_max": "1"})
    assert measure(far, GATE | {"error_max": "1"})["findings"] == [
        "largest error: expected at most 1, got 50"
    ]
    demanded = measure(far, GATE | {"flips_upper_max": "1"})["findings"]
    assert demanded == ["flipped decisions, upper bound: expected at most 1, got nothing measured"]
    assert not is_unjudged(measure(samples([[0.9, 0.1]]), GATE), GATE)


def test_true_labels_that_are_no_numbers_as_the_models_are_a_finding() -> None:
    found = measure(Samples([[1, 0]] * 2, [[1, 0]] * 2, ["0"] * 2, ["0"] * 2, truth=["0", "cat"]), GATE)
    assert found["findings"] == ["labels: expected whole numbers as the model decides, got 'cat'"]
    assert text_label([b"caf\xc3\xa9"]) == "caf\u00e9"
    assert text_label([b"a", b"b"]) == "['a', 'b']"


def test_sums_that_overflow_are_no_match() -> None:
    from pellucid.core.gap import Gap, cosine

    assert cosine(math.inf, math.inf, math.inf) == 0.0
    assert Gap(elements=1, squares=1.0, source_squares=math.inf).relative_rms == math.inf
