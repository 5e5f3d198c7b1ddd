"""Ratios, percentiles and intervals, by hand. How often they cover: ``test_stats_coverage.py``."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from bench import stats
from bench.stats import SPEEDUPS, UNKNOWN, bootstrap, drift, percentile, speedup


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
    # Shares of the time, mean of both legs: their squares sum to 0.201, so 3.975 batches less one.
    freedom = 1 / (0.2**2 + 0.21**2 + 0.19**2 + 0.22**2 + 0.18**2) - 1
    reach = student.ppf(0.975, freedom) * error
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


def test_a_long_batch_leaves_fewer_degrees_of_freedom():
    seconds, twice = [1.0, 1.1, 0.9, 1.2, 8.0], [2.0, 2.1, 2.0, 2.3, 15.0]
    ratio, (low, _) = speedup(twice, [1] * 5, seconds, [1] * 5)
    shares = [(a / 12.2 + b / 23.4) / 2 for a, b in zip(seconds, twice, strict=True)]
    # Kish's effective number of batches is 2.18 of 5.
    freedom = 1 / sum(share**2 for share in shares) - 1
    assert 1.1 < freedom < 1.3
    left_out = [math.log((23.4 - b) / (12.2 - a)) for a, b in zip(seconds, twice, strict=True)]
    error = math.sqrt(4 / 5 * sum((each - np.mean(left_out)) ** 2 for each in left_out))
    assert math.log(ratio / low) == pytest.approx(student.ppf(0.975, freedom) * error, rel=1e-9)


def test_one_batch_of_nearly_all_work_leaves_one_degree_of_freedom_and_no_less():
    seconds = [1.0, 1.1, 0.9, 1.2, 1e6]
    ratio, (low, high) = speedup(seconds, [1] * 5, [1.0, 1.0, 1.0, 1.0, 1e6], [1] * 5)
    assert 0 < low < ratio < high < math.inf


def test_the_three_ways_give_three_results_for_the_same_data():
    legs = ([1.0, 9.0, 2.0, 7.0, 3.0], [8] * 5, [1.0, 3.0, 1.5, 2.0, 2.5], [8] * 5)
    found = {name: of(*legs) for name, of in SPEEDUPS.items()}
    totals, resampled, geometric = (
        found[name]
        for name in ("ratio_of_totals_jackknife_t", "ratio_of_totals_bca", "geometric_mean_t")
    )
    assert totals == speedup(*legs)
    assert totals[0] == resampled[0] == pytest.approx(22 / 10)
    assert geometric[0] == pytest.approx((1 * 3 * (4 / 3) * 3.5 * 1.2) ** (1 / 5))
    assert len({interval for _, interval in found.values()}) == 3
    assert all(low < ratio < high for ratio, (low, high) in found.values())


def test_the_geometric_mean_has_the_interval_of_students_t_on_its_logs():
    ratios = [1.0, 2.0, 4.0, 2.0, 1.0]
    mean, interval = SPEEDUPS["geometric_mean_t"](ratios, [3] * 5, [0.5] * 5, [1.5 * 1] * 5)
    # Logs in units of log 2, less the mean 0.8: squares sum to 2.8; each divided by 4, then by 5.
    reach = student.ppf(0.975, 4) * math.sqrt(2.8 / 4 / 5)
    assert mean == pytest.approx(2**0.8)
    assert interval == pytest.approx((2 ** (0.8 - reach), 2 ** (0.8 + reach)), rel=1e-9)


def test_the_geometric_mean_is_unknown_where_a_batch_has_no_ratio():
    legs = ([1.0] * 6, [4, 0, 4, 4, 4, 4], [1.0] * 6, [4] * 6)
    assert SPEEDUPS["geometric_mean_t"](*legs) == (None, UNKNOWN)
    assert speedup(*legs)[0] is not None


@pytest.mark.parametrize("name", SPEEDUPS)
def test_every_way_knows_its_limits(name):
    of = SPEEDUPS[name]
    assert of([], [], [], []) == (None, UNKNOWN)
    assert of([1.0] * 6, [0] * 6, [1.0] * 6, [4] * 6) == (None, UNKNOWN)
    assert of([3.0], [2], [1.0], [2]) == (pytest.approx(3.0), UNKNOWN)
    for batches, known in ((4, False), (5, True)):
        seconds = [1.0 + 0.1 * index for index in range(batches)]
        _, interval = of(seconds, [1] * batches, [1.0] * batches, [1] * batches)
        assert [end is not None for end in interval] == [known, known]
    same, interval = of([3.0] * 6, [7] * 6, [2.0] * 6, [7] * 6)
    assert (same, *interval) == pytest.approx((1.5, 1.5, 1.5), rel=1e-12)


def test_resampled_batches_without_a_token_give_no_interval():
    ratio, interval = SPEEDUPS["ratio_of_totals_bca"](
        [1.0] * 6, [0, 0, 0, 0, 0, 9], [1.0] * 6, [9] * 6
    )
    assert ratio == pytest.approx(6.0)
    assert interval == UNKNOWN


def test_drift_is_the_speedup_of_each_half_without_the_middle():
    found = drift([4.0, 2.0, 99.0, 3.0, 3.0], [1] * 5, [2.0, 1.0, 1.0, 2.0, 4.0], [1] * 5)
    assert found == pytest.approx((2.0, 1.0))


def test_drift_of_two_batches_is_their_ratios():
    assert drift([4.0, 2.0], [1, 1], [1.0, 1.0], [1, 1]) == pytest.approx((4.0, 2.0))


def test_drift_is_unknown_where_a_half_has_nothing():
    assert drift([], [], [], []) == (None, None)
    assert drift([1.0], [1], [1.0], [1]) == (None, None)
    assert drift([1.0, 2.0], [0, 1], [1.0, 1.0], [1, 1]) == (None, pytest.approx(2.0))


def test_percentile_lies_on_the_line_between_neighbours():
    # Rank 0.95 x 19 = 18.05 of 0 to 19.
    assert percentile([float(index) for index in range(20)], 95) == pytest.approx(18.05)
    assert percentile([4.0, 1.0, 2.0, 9.0], 50) == pytest.approx(3.0)


@pytest.mark.parametrize(("q", "least"), [(50, 1), (5, 20), (95, 20), (99, 100), (99.9, 1000)])
def test_percentile_is_withheld_where_no_sample_is_expected_beyond_it(q, least):
    samples = [float(index) for index in range(least)]
    assert percentile(samples, q) is not None
    assert percentile(samples[1:], q) is None


@pytest.mark.parametrize("q", [0, 100, -5, math.nan])
def test_percentile_refuses_what_is_none(q):
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0] * 1000, q)


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
