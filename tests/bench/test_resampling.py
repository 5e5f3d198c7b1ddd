"""The BCa interval: its formula by hand, and another implementation on the same data."""

import numpy as np
import pytest
from scipy import stats as oracle

from bench.resampling import RESAMPLES, bca, draws, influence_of
from bench.stats import bootstrap

EVENLY = np.linspace(0.0, 1.0, 10001)


def _mean(totals):
    return totals[0][0] / totals[0][1]


def _widened(units):
    """Student's t with the small-sample factor: in place of 1.96."""
    return np.sqrt(units / (units - 1)) * oracle.t.ppf(0.975, units - 1)


def test_without_bias_and_skew_the_levels_are_those_of_students_t():
    found = bca(0.5, EVENLY, np.array([1.0, -1.0] * 5), 0.025)
    reach = _widened(10)
    assert found == pytest.approx(oracle.norm.cdf([-reach, reach]), abs=1e-6)


def test_the_levels_follow_bias_and_skew_by_the_formula():
    influence = np.array([4.0, -1.0, -1.0, -1.0, -1.0] * 4)
    acceleration = (4 * 64 - 16) / (6 * (4 * 16 + 16) ** 1.5)
    bias = oracle.norm.ppf(0.6)
    sides = bias + np.array([-1, 1]) * _widened(20)
    levels = oracle.norm.cdf(bias + sides / (1 - acceleration * sides))
    assert bca(0.6, EVENLY, influence, 0.025) == pytest.approx(levels, abs=1e-4)


def test_two_units_give_the_ends_of_what_was_drawn():
    found = bca(0.5, EVENLY, np.array([3.0, -1.0]), 0.025)
    assert found == pytest.approx((0.0, 1.0), abs=1e-6)


def test_equal_values_give_a_point():
    assert bca(2.0, np.full(100, 2.0), np.zeros(8), 0.025) == (2.0, 2.0)


def test_influence_of_a_ratio_is_its_derivative():
    draw = np.random.default_rng(0)
    slots = draw.integers(2, 9, 400).astype(float)
    table = np.stack([draw.binomial(slots.astype(int), 0.3), slots], axis=1)
    totals = draws(400) @ table
    found = influence_of(table, totals, totals[:, 0] / totals[:, 1])
    errors, wanted = table.sum(axis=0)
    by_hand = (table[:, 0] - table[:, 1] * errors / wanted) / wanted
    assert found == pytest.approx(by_hand, abs=0.02 * np.abs(by_hand).max())


def test_skewed_scores_get_the_interval_of_another_implementation_and_not_percentiles():
    values = np.random.default_rng(3).lognormal(0.0, 1.0, 300)
    found = np.array(bootstrap([[[value, 1.0] for value in values]], _mean))
    bca_ends, percentiles = (
        np.array(
            oracle.bootstrap(
                (values,), np.mean, n_resamples=20_000, batch=1000, method=kind, rng=0
            ).confidence_interval
        )
        for kind in ("BCa", "percentile")
    )
    tolerance = 0.03 * (found[1] - found[0])
    assert found == pytest.approx(bca_ends, abs=tolerance)
    # Both ends lie further up, where the few large values are.
    assert (found > percentiles + tolerance).all()


def test_each_resample_holds_as_many_units_as_there_are():
    counts = draws(7)
    assert counts.shape == (RESAMPLES, 7)
    assert (counts.sum(axis=1) == 7).all()
    # Each unit once on average; the variance of a count is 1 - 1 / n.
    assert counts.mean(axis=0) == pytest.approx(np.ones(7), abs=0.1)
    assert counts.var() == pytest.approx(6 / 7, abs=0.05)


def test_resamples_cannot_be_changed_for_the_next_score():
    with pytest.raises(ValueError, match="read-only"):
        draws(3)[0, 0] = 5
