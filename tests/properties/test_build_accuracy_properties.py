"""Our own exact bound and divergence against programs nobody here wrote, and against their definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.accuracy import clopper_pearson_upper, incomplete_beta, kl_divergence

special = pytest.importorskip("scipy.special", reason="NOT RUN scipy: scipy is not installed")


@given(trials=st.integers(1, 200_000), share=st.floats(0, 1), confidence=st.floats(0.5, 0.9999))
def test_clopper_pearson_is_scipys(trials: int, share: float, confidence: float) -> None:
    hits = min(int(share * trials), trials - 1)
    expected = special.betaincinv(hits + 1, trials - hits, confidence)
    assert clopper_pearson_upper(hits, trials, confidence) == pytest.approx(expected, rel=1e-8)


@given(a=st.floats(0.5, 5000), b=st.floats(0.5, 5000), x=st.floats(0, 1))
def test_incomplete_beta_is_scipys(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-10)


@given(trials=st.integers(1, 60), hits=st.integers(0, 59))
def test_the_bound_is_what_it_says(trials: int, hits: int) -> None:
    """At the bound, so few hits or fewer come in exactly five of a hundred series."""
    if hits >= trials:
        return
    p = clopper_pearson_upper(hits, trials, 0.95)
    few = sum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(hits + 1))
    assert few == pytest.approx(0.05, rel=1e-6)


distributions = st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda v: sum(v) > 1e-3)


@given(p=distributions, q=distributions)
def test_kl_is_finite_and_never_negative(p: list[float], q: list[float]) -> None:
    p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
    value = kl_divergence(p, q)
    assert math.isfinite(value)
    assert value >= 0.0
    if min(q) > 1e-9:
        assert value == pytest.approx(sum(special.rel_entr(p, q)), abs=1e-9)
