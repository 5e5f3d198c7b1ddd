"""Ratios and intervals: by hand, and by simulation where theory says how often they must cover."""

import math

import numpy as np
import pytest

from bench import stats
from bench.stats import UNKNOWN, bootstrap, speedup

# Enough that the bounds below lie four standard deviations (0.5 points) off 95 %.
REPETITIONS = 2000
BATCHES = 20
NOISE = 0.05


def test_speedup_is_the_ratio_of_total_times_per_token():
    # Baseline: 6 s for 30 tokens, 0.2 s each. Method: 3 s for 25 tokens, 0.12 s each.
    ratio, interval = speedup([4.0, 2.0], [20, 10], [1.0, 2.0], [10, 15])
    assert ratio == pytest.approx(0.2 / 0.12, rel=1e-12)
    assert interval == UNKNOWN


def test_speedup_at_equal_lengths_is_the_ratio_of_times_and_not_a_mean_of_ratios():
    ratio, _ = speedup([1.0, 9.0], [8, 8], [1.0, 3.0], [8, 8])
    assert ratio == pytest.approx(10 / 4, rel=1e-12)


@pytest.mark.parametrize(("batches", "known"), [(4, False), (5, True)])
def test_speedup_has_an_interval_from_five_batches_on(batches, known):
    tokens = [10] * batches
    baseline_s = [2.0 + 0.1 * index for index in range(batches)]
    ratio, (low, high) = speedup(baseline_s, tokens, [1.0] * batches, tokens)
    assert ratio is not None
    assert (low is not None, high is not None) == (known, known)


def test_the_interval_is_the_jackknife_made_by_hand():
    baseline_s = [2.0, 2.2, 1.8, 2.4, 1.6]
    _, interval = speedup(baseline_s, [1] * 5, [1.0] * 5, [1] * 5)
    without = [math.log((10.0 - each) / 4.0) for each in baseline_s]
    mean = sum(without) / 5
    error = math.sqrt(4 / 5 * sum((each - mean) ** 2 for each in without))
    # Student's t at 97.5 % with 4 degrees of freedom.
    reach = 2.7764451051977987 * error
    by_hand = (2 * math.exp(-reach), 2 * math.exp(reach))
    assert interval == pytest.approx(by_hand, rel=1e-9)


def test_the_interval_lies_around_the_ratio_and_is_a_point_without_noise():
    ratio, (low, high) = speedup([3.0] * 6, [10] * 6, [2.0] * 6, [10] * 6)
    assert ratio == pytest.approx(1.5)
    assert (low, high) == pytest.approx((1.5, 1.5))


@pytest.mark.parametrize(
    "legs",
    [
        ([], [], [], []),
        ([1.0] * 6, [4] * 6, [1.0] * 6, [0] * 6),
        ([1.0] * 6, [4] * 6, [0.0] * 6, [4] * 6),
    ],
    ids=["no batch", "no token", "no time"],
)
def test_speedup_is_unknown_where_a_total_is_not_positive(legs):
    assert speedup(*legs) == (None, UNKNOWN)


def test_speedup_has_no_interval_where_one_batch_holds_all_tokens():
    ratio, interval = speedup([1.0] * 6, [0, 0, 0, 0, 0, 9], [1.0] * 6, [9] * 6)
    assert ratio == pytest.approx(6.0)
    assert interval == UNKNOWN


def test_the_interval_of_identical_legs_covers_one_about_95_times_of_100():
    draw = np.random.default_rng(0)
    tokens = draw.integers(20, 60, size=BATCHES)
    covered = 0
    for _ in range(REPETITIONS):
        noise = np.exp(NOISE * draw.standard_normal((2, BATCHES)))
        baseline_s, method_s = 0.01 * tokens * noise
        _, (low, high) = speedup(baseline_s, tokens, method_s, tokens)
        covered += low <= 1 <= high
    assert 0.93 <= covered / REPETITIONS <= 0.97


def test_bootstrap_of_a_mean_agrees_with_the_normal_interval():
    draw = np.random.default_rng(0)
    values = draw.normal(5.0, 2.0, size=400)
    low, high = bootstrap([[[value, 1.0] for value in values]], lambda t: t[0][0] / t[0][1])
    reach = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.05)


def test_bootstrap_of_equal_examples_is_a_point():
    found = bootstrap([[[3.0, 4.0]] * 10], lambda totals: totals[0][0] / totals[0][1])
    assert found == (0.75, 0.75)


def test_bootstrap_resamples_both_legs_together():
    draw = np.random.default_rng(0)
    rows = [[value, 1.0] for value in draw.uniform(size=50)]
    found = bootstrap([rows, rows], lambda t: t[0][0] / t[0][1] - t[1][0] / t[1][1])
    assert found == (0.0, 0.0)


def test_bootstrap_of_a_paired_shift_does_not_see_the_spread_of_examples():
    draw = np.random.default_rng(0)
    dense = [[float(value), 1.0] for value in draw.integers(0, 100, size=50)]
    method = [[value + 1.0, 1.0] for value, _ in dense]
    found = bootstrap([method, dense], lambda t: t[0][0] / t[0][1] - t[1][0] / t[1][1])
    assert found == pytest.approx((1.0, 1.0), abs=1e-12)


def test_bootstrap_is_the_same_whenever_it_is_computed():
    rows = [[float(index), 1.0] for index in range(20)]
    first, second = (bootstrap([rows], lambda t: t[0][0] / t[0][1]) for _ in range(2))
    assert first == second
    assert first[0] < first[1]


def test_bootstrap_is_unknown_of_one_example():
    assert bootstrap([[[1.0, 1.0]]], lambda totals: totals[0][0]) == UNKNOWN


def test_bootstrap_is_unknown_where_a_resample_has_no_value():
    # Drawn from 3 examples, the only one that counts is left out of some resamples.
    rows = [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    found = bootstrap([rows], lambda t: t[0][0] / t[0][1] if t[0][1] else None)
    assert found == UNKNOWN


def test_least_number_of_batches_is_the_one_that_is_documented():
    assert stats.MIN_UNITS == 5
    assert stats.CONFIDENCE == 0.95
