"""How often the intervals of a speed-up hold the truth, by simulation: what 95 % promises.

Identical legs, so the truth is 1; the work of batches differs, each pass has noise of its own, and
repeats are averaged before, as in a run.
"""

import numpy as np
import pytest

from bench.stats import SPEEDUPS

# Of a true 95 % the standard deviation is then 0.5 points: the bounds lie four of them away.
REPETITIONS = 2000
LEAST, MOST = 0.93, 0.97
REPEATS = 3
NOISE = 0.05


def _covered(way, batches, work_sigma):
    draw = np.random.default_rng(batches)
    work = np.exp(work_sigma * draw.standard_normal((REPETITIONS, batches)))
    noise = 1 + NOISE * draw.standard_normal((2, REPETITIONS, REPEATS, batches))
    baseline_s, method_s = work * noise.mean(axis=2)
    tokens = [10] * batches
    ends = [
        SPEEDUPS[way](*legs, tokens)[1]
        for legs in zip(baseline_s, [tokens] * REPETITIONS, method_s, strict=True)
    ]
    return float(np.mean([low <= 1 <= high for low, high in ends]))


@pytest.mark.parametrize("batches", [5, 10, 20, 50])
def test_the_jackknife_interval_covers_one_as_often_as_stated(batches):
    assert LEAST <= _covered("ratio_of_totals_jackknife_t", batches, 0.5) <= MOST


@pytest.mark.parametrize("batches", [5, 10])
def test_the_jackknife_interval_covers_where_a_few_long_batches_decide(batches):
    # With n - 1 degrees of freedom it would hold 91 and 92 %.
    assert LEAST <= _covered("ratio_of_totals_jackknife_t", batches, 1.0) <= 0.985


@pytest.mark.parametrize("batches", [5, 20])
def test_the_interval_of_the_geometric_mean_covers_one_as_often_as_stated(batches):
    assert LEAST <= _covered("geometric_mean_t", batches, 0.5) <= MOST


def test_the_bca_interval_covers_one_as_often_as_its_docstring_says():
    # Resampled batches spread too little where few of them hold much of the work.
    assert 0.90 <= _covered("ratio_of_totals_bca", 5, 0.5) <= 0.93
