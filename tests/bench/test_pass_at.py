"""pass@k by hand, and its intervals: the unit is a problem, not a sample."""

import itertools
import math

import pytest

from bench import lookup, quality, stats
from bench.schema import BatchRecord
from bench.scores._pass_at import estimate
from bench.scores.contract import of_example
from bench.tasks.contract import Example


@pytest.mark.parametrize(("samples", "right"), [(5, 0), (5, 2), (5, 5), (7, 1)])
def test_the_estimate_is_the_share_of_choices_with_a_right_one(samples, right):
    passed = [True] * right + [False] * (samples - right)
    for k in range(1, samples + 1):
        choices = [any(chosen) for chosen in itertools.combinations(passed, k)]
        assert estimate(samples, right, k) == pytest.approx(sum(choices) / len(choices))


def test_the_estimate_keeps_its_digits_for_many_samples():
    expected = 1 - math.comb(180, 100) / math.comb(200, 100)
    assert estimate(200, 20, 100) == pytest.approx(expected, rel=1e-9)


def test_more_choices_than_samples_are_refused():
    with pytest.raises(ValueError, match="pass@10 of 9"):
        estimate(9, 9, 10)


def outcomes_of(name, outcomes):
    score = lookup.find("bench.scores", name, "score")
    samples = [
        score.statistics("", Example("0", "", ("",), outcome=outcome)) for outcome in outcomes
    ]
    return score.value(of_example(score, samples))


def test_a_problem_counts_by_its_samples():
    outcomes = ["passed", "failed", "timeout", "memory"] + ["failed"] * 6
    assert outcomes_of("pass_at_1", outcomes) == pytest.approx(0.1)
    assert outcomes_of("pass_at_10", outcomes) == 1.0
    assert outcomes_of("pass_at_1", ["failed", "output_limit"]) == 0.0


def test_nothing_that_was_not_run_is_a_failure():
    assert outcomes_of("pass_at_1", [None, None]) is None
    # Too few for the estimate.
    assert outcomes_of("pass_at_10", ["passed"] * 9) is None


class Legs:
    """As much of a leg as a score reads."""

    def __init__(self, statistics):
        self.statistics = statistics


def recorded(name, passed):
    """Records of problems p0, p1, ... with a row of 0 and 1 each, all first samples first."""
    batches = []
    for index, sample in enumerate(zip(*passed, strict=True)):
        rows = [[float(right), 1.0] for right in sample]
        ids = [f"p{i}" for i in range(len(sample))]
        legs = {"method": Legs({name: rows})}
        batches.append(BatchRecord(index, ids, [1] * len(ids), legs, []))
    return batches


def test_samples_of_a_problem_are_one_unit_of_the_interval():
    passed = [[1] * 10] * 4 + [[0] * 10] * 4
    row = quality.score_columns("pass_at_1", recorded("pass_at_1", passed), 0.01)
    assert row["score.pass_at_1"] == 0.5
    units = [[float(each[0]), 1.0] for each in passed]
    low, high = stats.bootstrap([units], lambda totals: totals[0][0] / totals[0][1])
    assert (row["score.pass_at_1.low"], row["score.pass_at_1.high"]) == pytest.approx((low, high))
    # 80 independent samples would give half a width of about 0.11.
    assert high - low > 0.5


def test_pass_at_10_is_the_mean_over_problems():
    passed = [[1] + [0] * 19, [0] * 20, [1] * 20]
    row = quality.score_columns("pass_at_10", recorded("pass_at_10", passed), 0.01)
    assert row["score.pass_at_10"] == pytest.approx((0.5 + 0 + 1) / 3)


def test_a_score_without_samples_of_its_own_kind_adds_them_up():
    batches = recorded("gsm8k_strict", [[1, 0], [1, 1]])
    assert quality.by_example("gsm8k_strict", batches, "method") == {"p0": (1, 2), "p1": (2, 2)}
