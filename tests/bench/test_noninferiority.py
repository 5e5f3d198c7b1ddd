"""The verdict on quality: its three outcomes, and how often it is wrong where it matters most."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from bench.resampling import bca, draws, influence_of
from bench.stats import bootstrap, least_examples, verdict

STATED = 0.025
REPETITIONS = 2000
# Four standard deviations of a share of so many repetitions above what is stated: 3.9 %.
MOST = STATED + 4 * math.sqrt(STATED * (1 - STATED) / REPETITIONS)


# Simulated at once: one product is much faster than as many small ones.
BLOCK = 100


def _difference(totals):
    (mine, of_mine), (dense, of_dense) = totals
    return mine / of_mine - dense / of_dense


def _intervals(table):
    """What ``bootstrap`` gives for each of [repetitions, examples, 4], in fewer steps."""
    repetitions, examples, _ = table.shape
    totals = draws(examples) @ table.transpose(1, 0, 2).reshape(examples, -1)
    totals = totals.reshape(-1, repetitions, 2, 2).transpose(1, 2, 3, 0)
    for rows, of in zip(table, totals, strict=True):
        values = _difference(of)
        estimate = _difference(rows.sum(axis=0).reshape(2, 2))
        yield bca(estimate, values, influence_of(rows, of.reshape(4, -1).T, values), STATED)


def _right_or_wrong(draw, shape, loss):
    """0 or 100 points; the same examples are hard for both. Dense is right in 69 %."""
    hard = 0.8 * draw.standard_normal(shape)
    dense, method = (hard + 0.6 * draw.standard_normal(shape) for _ in range(2))
    threshold = norm.ppf(norm.cdf(0.5) - loss / 100)
    return 100.0 * (method < threshold), np.ones(shape), 100.0 * (dense < 0.5), np.ones(shape)


def _skewed(draw, shape, loss):
    """Points of 0 to 100; a fifth of the examples lose a part of theirs, most of them little."""
    dense = 100 * draw.beta(2, 2, shape)
    # Mean loss of one that loses: 50 points x the mean of a beta.
    mean = loss / 0.2 / 50
    lost = draw.beta(1, 1 / mean - 1, shape) if loss else np.zeros(shape)
    method = dense * (1 - (draw.random(shape) < 0.2) * lost)
    return method, np.ones(shape), dense, np.ones(shape)


def _slots(draw, shape, loss):
    """Errors and slots; examples differ in both. The method errs more often on half of them."""
    slots = draw.integers(2, 9, shape)
    rate = draw.uniform(0, 0.2, shape)
    more = rate + 2 * loss * (draw.random(shape) < 0.5)
    return draw.binomial(slots, more), slots, draw.binomial(slots, rate), slots


def _verdicts(make, examples, loss, margin, better, repetitions):
    draw = np.random.default_rng(1)
    found = [
        verdict(*ends, margin, better)
        for _ in range(repetitions // BLOCK)
        for ends in _intervals(np.stack(make(draw, (BLOCK, examples), loss), axis=-1))
    ]
    return {name: found.count(name) / repetitions for name in ("non_inferior", "inferior")}


@pytest.mark.parametrize("make", [_right_or_wrong, _skewed, _slots])
def test_what_is_simulated_here_is_the_interval_of_a_run(make):
    table = np.stack(make(np.random.default_rng(0), (3, 50), 0.04), axis=-1).astype(float)
    for rows, ends in zip(table, _intervals(table), strict=True):
        assert ends == pytest.approx(bootstrap([rows[:, :2], rows[:, 2:]], _difference), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "examples", "margin", "better"),
    [
        (_right_or_wrong, 200, 5.0, "higher"),
        # Plain percentiles pass it in 4.6 %.
        (_skewed, 250, 2.5, "higher"),
        (_slots, 200, 0.05, "lower"),
    ],
    ids=["right or wrong", "skewed", "errors of slots"],
)
def test_a_loss_of_exactly_the_margin_passes_no_more_often_than_stated(
    make, examples, margin, better
):
    found = _verdicts(make, examples, margin, margin, better, REPETITIONS)
    assert 0 < found["non_inferior"] <= MOST
    assert 0 < found["inferior"] <= MOST


@pytest.mark.parametrize(
    ("make", "examples", "margin", "better"),
    [(_right_or_wrong, 600, 8.0, "higher"), (_slots, 600, 0.05, "lower")],
    ids=["right or wrong", "errors of slots"],
)
def test_an_equal_method_passes_in_more_than_nine_of_ten_runs(make, examples, margin, better):
    found = _verdicts(make, examples, 0.0, margin, better, 200)
    assert found["non_inferior"] > 0.9
    assert found["inferior"] == 0


def test_a_loss_of_twice_the_margin_is_found():
    found = _verdicts(_slots, 600, 0.1, 0.05, "lower", 200)
    assert found["inferior"] > 0.9
    assert found["non_inferior"] == 0


@pytest.mark.parametrize(
    ("low", "high", "better", "expected"),
    [
        (-0.9, 3.0, "higher", "non_inferior"),
        (-1.0, 3.0, "higher", "undecided"),
        (-3.0, -1.0, "higher", "undecided"),
        (-3.0, -1.1, "higher", "inferior"),
        (-3.0, 0.9, "lower", "non_inferior"),
        (-3.0, 1.0, "lower", "undecided"),
        (0.5, 2.0, "lower", "undecided"),
        (1.1, 3.0, "lower", "inferior"),
        (0.0, 0.0, "higher", "non_inferior"),
        (0.0, 0.0, "lower", "non_inferior"),
        (None, 3.0, "higher", None),
        (-0.5, None, "higher", None),
    ],
)
def test_the_verdict_is_the_place_of_the_interval_and_the_margin(low, high, better, expected):
    assert verdict(low, high, 1.0, better) == expected


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan])
def test_a_margin_is_positive(margin):
    with pytest.raises(ValueError, match="not positive"):
        verdict(-1.0, 1.0, margin, "higher")
    with pytest.raises(ValueError, match="not positive"):
        least_examples(margin, 100.0)


@pytest.mark.parametrize(("margin", "largest"), [(1.0, 100.0), (0.02, 1.0), (5.0, 100.0)])
def test_with_the_least_examples_a_loss_stays_unseen_in_the_stated_rate(margin, largest):
    least = least_examples(margin, largest)
    assert (1 - margin / largest) ** least <= STATED < (1 - margin / largest) ** (least - 1)


def test_one_example_shows_a_loss_of_all_there_is():
    assert least_examples(100.0, 100.0) == least_examples(2.0, 1.0) == 1
