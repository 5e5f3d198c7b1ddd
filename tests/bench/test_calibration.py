"""Calibration: p-values by hand, the walk down the thresholds, and how often the promise breaks."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from bench import calibration
from bench.calibration import (
    fixed_sequence,
    hoeffding,
    hoeffding_bentkus,
    risk_losses,
    smallest_n,
    textual_losses,
)

EPSILON = 0.05
TRIALS = 500
# Four standard deviations above epsilon: 500 trials at 5 % give 25, at most 44.
MOST_VIOLATIONS = TRIALS * EPSILON + 4 * math.sqrt(TRIALS * EPSILON * (1 - EPSILON))
GRID = tuple(round(1 - 0.05 * step, 2) for step in range(21))


def binomial_at_most(count, n, delta):
    return sum(math.comb(n, k) * delta**k * (1 - delta) ** (n - k) for k in range(count + 1))


def hoeffding_part(mean_loss, n, delta):
    """The first of the two p-values, as a plain product of powers."""
    ones = n * mean_loss
    ratio = (delta / mean_loss) ** ones if mean_loss else 1.0
    return ratio * ((1 - delta) / (1 - mean_loss)) ** (n - ones)


def test_hoeffding_is_the_formula():
    assert hoeffding(0.05, 200, 0.1) == pytest.approx(math.exp(-1.0), rel=1e-12)
    assert hoeffding(0.0, 150, 0.1) == pytest.approx(math.exp(-3.0), rel=1e-12)
    assert hoeffding(0.3, 150, 0.1) == 1.0


def test_at_no_loss_the_p_value_is_the_chance_of_it():
    # (1 - delta)^n: the Bentkus part is e times as large.
    assert hoeffding_bentkus(0.0, 29, 0.1) == pytest.approx(0.9**29, rel=1e-12)
    assert hoeffding_bentkus(0.0, 1, 0.25) == pytest.approx(0.75, rel=1e-12)


@pytest.mark.parametrize("n", [1, 7, 1000])
@pytest.mark.parametrize("mean_loss", [0.1, 0.1000001, 0.5, 1.0])
def test_a_loss_at_or_above_the_tolerance_never_passes(mean_loss, n):
    assert hoeffding_bentkus(mean_loss, n, 0.1) == 1.0
    assert hoeffding(mean_loss, n, 0.1) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("mean_loss", "n", "delta", "count"),
    [(0.05, 100, 0.1, 5), (0.145, 100, 0.2, 15), (0.07, 100, 0.15, 7), (0.2, 60, 0.35, 12)],
    ids=["whole", "rounds up", "a whole number but for rounding", "few prompts"],
)
def test_the_bentkus_part_is_e_times_a_binomial_tail_where_it_is_smaller(
    mean_loss, n, delta, count
):
    by_hand = math.e * binomial_at_most(count, n, delta)
    assert by_hand < hoeffding_part(mean_loss, n, delta)
    assert hoeffding_bentkus(mean_loss, n, delta) == pytest.approx(by_hand, rel=1e-9)


def test_p_values_agree_with_scipy_and_with_plain_sums():
    smaller = {"hoeffding": 0, "bentkus": 0}
    for n, delta in itertools.product((1, 2, 10, 59, 100), (0.02, 0.1, 0.25, 0.9)):
        # Whole losses, and half a loss less.
        for ones in np.arange(0, n * delta, 0.5):
            tail = stats.binom.cdf(math.ceil(ones), n, delta)
            assert tail == pytest.approx(binomial_at_most(math.ceil(ones), n, delta), rel=1e-9)
            parts = {"hoeffding": hoeffding_part(ones / n, n, delta), "bentkus": math.e * tail}
            wanted = min(1.0, *parts.values())
            assert hoeffding_bentkus(ones / n, n, delta) == pytest.approx(wanted, rel=1e-9)
            smaller[min(parts, key=parts.get)] += 1
    assert min(smaller.values()) >= 100


def test_the_p_value_rises_with_the_loss_and_stays_at_or_below_hoeffdings():
    for n in (5, 80, 1000):
        losses = np.linspace(0, 0.3, 301)
        found = np.array([hoeffding_bentkus(loss, n, 0.2) for loss in losses])
        assert (np.diff(found) >= -1e-12).all()
        assert (found <= [hoeffding(loss, n, 0.2) + 1e-12 for loss in losses]).all()
        assert found[0] < found[-1] == 1.0


def test_extreme_arguments_keep_their_digits():
    # Of 1e8 losses just under delta: exp(-n d^2 / (2 delta (1 - delta))), d = 1e-6.
    assert hoeffding_bentkus(0.1 - 1e-6, 10**8, 0.1) == pytest.approx(
        math.exp(-1e-4 / 0.18), rel=1e-6
    )
    assert hoeffding_bentkus(0.0, 3 * 10**12, 1e-12) == pytest.approx(math.exp(-3), rel=1e-9)
    assert hoeffding_bentkus(0.0, 10**6, 0.1) == 0.0
    assert 0 < hoeffding_bentkus(5e-324, 10, 0.1) <= 1


@pytest.mark.parametrize("p_value", [hoeffding, hoeffding_bentkus])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((-0.01, 10, 0.1), "mean_loss"),
        ((1.01, 10, 0.1), "mean_loss"),
        ((math.nan, 10, 0.1), "mean_loss"),
        ((0.0, 0, 0.1), "n:"),
        ((0.0, 10, 0.0), "delta"),
        ((0.0, 10, 1.0), "delta"),
    ],
)
def test_a_p_value_of_arguments_out_of_range_is_refused(p_value, arguments, named):
    with pytest.raises(ValueError, match=named):
        p_value(*arguments)


@pytest.mark.parametrize(
    ("delta", "bentkus_n", "hoeffding_n"),
    [(0.02, 149, 3745), (0.05, 59, 600), (0.10, 29, 150), (0.25, 11, 24)],
)
def test_smallest_n_is_the_table_and_no_fewer_pass(delta, bentkus_n, hoeffding_n):
    assert smallest_n(delta, EPSILON) == bentkus_n
    assert smallest_n(delta, EPSILON, hoeffding) == hoeffding_n
    assert smallest_n(delta, 1 - delta) == 1
    assert hoeffding_bentkus(0.0, bentkus_n, delta) <= EPSILON
    assert hoeffding_bentkus(0.0, bentkus_n - 1, delta) > EPSILON


@pytest.mark.parametrize("epsilon", [0.0, 1.0, math.nan])
def test_smallest_n_refuses_an_epsilon_out_of_range(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        smallest_n(0.1, epsilon)


class Scripted:
    """Losses by threshold: of 100 prompts the stated number loses all; remembers what was asked."""

    def __init__(self, lost):
        self.lost = lost
        self.asked = []

    def __call__(self, threshold):
        self.asked.append(threshold)
        return [1.0] * self.lost[threshold] + [0.0] * (100 - self.lost[threshold])


def test_the_walk_stops_at_the_first_failure_though_a_later_one_would_pass():
    losses_of = Scripted({0.9: 0, 0.8: 2, 0.7: 30, 0.6: 0})
    found = fixed_sequence([0.9, 0.8, 0.7, 0.6], losses_of, 0.1, EPSILON)
    assert losses_of.asked == [0.9, 0.8, 0.7]
    assert found.threshold == 0.8
    assert found.tested == (
        calibration.Tested(0.9, 0.0, pytest.approx(0.9**100), accepted=True),
        calibration.Tested(0.8, 0.02, hoeffding_bentkus(0.02, 100, 0.1), accepted=True),
        calibration.Tested(0.7, 0.3, 1.0, accepted=False),
    )
    assert (found.n, found.delta, found.epsilon, found.smallest_n) == (100, 0.1, EPSILON, 29)
    assert not found.too_few_prompts


def test_all_accepted_gives_the_last_threshold_and_none_accepted_gives_never():
    assert fixed_sequence([0.9, 0.1], Scripted({0.9: 0, 0.1: 1}), 0.1, EPSILON).threshold == 0.1
    losses_of = Scripted({0.9: 30, 0.1: 0})
    found = fixed_sequence([0.9, 0.1], losses_of, 0.1, EPSILON)
    assert found.threshold is None
    assert losses_of.asked == [0.9]
    assert not found.too_few_prompts


def test_a_threshold_of_zero_is_chosen_and_not_taken_for_never():
    assert fixed_sequence([0.0], Scripted({0.0: 0}), 0.1, EPSILON).threshold == 0.0


@pytest.mark.parametrize(("n", "threshold"), [(28, None), (29, 0.5)])
def test_too_few_prompts_for_even_a_perfect_method_are_said(n, threshold):
    found = fixed_sequence([0.5], lambda _: [0.0] * n, 0.1, EPSILON)
    assert found.threshold == threshold
    assert found.too_few_prompts == (threshold is None)


def test_the_order_of_the_prompts_does_not_matter():
    losses = np.random.default_rng(0).beta(0.1, 2.0, size=300)
    ways = [losses, losses[::-1], np.sort(losses)]
    found = {fixed_sequence([0.5], lambda _, way=way: way, 0.1, EPSILON).tested for way in ways}
    assert len(found) == 1


@pytest.mark.parametrize(
    "thresholds",
    [[], [0.5, 0.5], [0.5, 0.9], [0.9, math.nan, 0.5], [math.nan], [math.inf, 0.5]],
)
def test_thresholds_that_do_not_descend_are_refused_before_any_decoding(thresholds):
    losses_of = Scripted({})
    with pytest.raises(ValueError, match="strictly descending"):
        fixed_sequence(thresholds, losses_of, 0.1, EPSILON)
    assert losses_of.asked == []


@pytest.mark.parametrize("levels", [(0.0, 0.05), (1.0, 0.05), (0.1, 0.0), (0.1, 1.0)])
def test_levels_out_of_range_are_refused_before_any_decoding(levels):
    losses_of = Scripted({0.5: 0})
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        fixed_sequence([0.5], losses_of, *levels)
    assert losses_of.asked == []


@pytest.mark.parametrize("wrong", [-1e-9, 1.5, math.nan, math.inf])
def test_a_loss_out_of_range_is_refused_by_its_index(wrong):
    with pytest.raises(ValueError, match=r"threshold 0\.5: index 2 is"):
        fixed_sequence([0.5], lambda _: [0.0, 1.0, wrong, wrong], 0.1, EPSILON)


def test_no_losses_or_another_number_of_them_is_refused():
    with pytest.raises(ValueError, match=r"threshold 0\.5: got 0, need at least one"):
        fixed_sequence([0.5], lambda _: [], 0.1, EPSILON)
    with pytest.raises(ValueError, match=r"threshold 0\.4: got 40, need 50"):
        fixed_sequence([0.5, 0.4], lambda at: [0.0] * round(100 * at), 0.1, EPSILON)


def test_textual_losses_are_one_less_the_similarity():
    assert textual_losses([1.0, 0.75, 0.0]) == (0.0, 0.25, 1.0)
    with pytest.raises(ValueError, match="similarities: index 1 is 80"):
        textual_losses([1.0, 80.0])


def test_risk_losses_clip_each_prompt_and_not_the_mean():
    early, full = [0.9, 0.2, 0.5], [0.5, 0.6, 0.5]
    losses = risk_losses(early_quality=early, full_quality=full)
    assert losses == pytest.approx((0.0, 0.4, 0.0))
    # On average nothing is lost: what the first gained the second lost.
    assert max(0.0, np.mean(full) - np.mean(early)) == pytest.approx(0.0)
    assert np.mean(losses) == pytest.approx(0.4 / 3)


def test_clipping_the_mean_would_pass_what_clipping_each_prompt_refuses():
    full = [0.5] * 100
    early = [0.0] * 50 + [1.0] * 50
    each = risk_losses(early_quality=early, full_quality=full)
    of_the_mean = [max(0.0, np.mean(full) - np.mean(early))] * 100
    assert fixed_sequence([0.5], lambda _: each, 0.1, EPSILON).threshold is None
    assert fixed_sequence([0.5], lambda _: of_the_mean, 0.1, EPSILON).threshold == 0.5


def test_qualities_out_of_range_or_of_other_prompts_are_refused():
    with pytest.raises(ValueError, match=r"early_quality: index 0 is -0\.1"):
        risk_losses(early_quality=[-0.1], full_quality=[0.5])
    with pytest.raises(ValueError, match="full_quality: index 1 is 41"):
        risk_losses(early_quality=[0.1, 0.1], full_quality=[0.5, 41.0])
    with pytest.raises(ValueError, match="early_quality has 1 prompts, full_quality 2"):
        risk_losses(early_quality=[0.1], full_quality=[0.5, 0.5])


def independent(draw, n):
    return lambda risk: draw.random(n) < risk


def same_prompts(draw, n):
    hardness = draw.random(n)
    return lambda risk: hardness < risk


def fractions(draw, n):
    return lambda risk: draw.beta(2 * risk, 2 * (1 - risk), size=n) if risk else np.zeros(n)


def slope(delta):
    """The risk of each threshold: rises evenly, to four times the tolerance at 0."""
    return {at: 4 * delta * (1 - at) for at in GRID}


def cliff(delta):
    """The hard case: none down to 0.9, then all that is left is hardly above the tolerance."""
    return {at: 0.0 if at >= 0.9 else 1.001 * delta for at in GRID}


def outcomes(kind, risks, n, delta):
    draw = np.random.default_rng(0)
    for _ in range(TRIALS):
        sample = kind(draw, n)
        yield fixed_sequence(GRID, lambda at, sample=sample: sample(risks[at]), delta, EPSILON)


@pytest.mark.parametrize("kind", [independent, same_prompts, fractions])
@pytest.mark.parametrize(
    ("curve", "n", "delta"), [(slope, 200, 0.1), (slope, 200, 0.25), (cliff, 59, 0.05)]
)
def test_the_chosen_threshold_breaks_the_promise_as_seldom_as_stated(kind, curve, n, delta):
    risks = curve(delta)
    found = list(outcomes(kind, risks, n, delta))
    chosen = [each.threshold for each in found if each.threshold is not None]
    assert sum(risks[at] > delta for at in chosen) <= MOST_VIOLATIONS
    # And not by hardly ever exiting: it goes down to 0.9, which uses two fifths of the tolerance on
    # the slope and is the last one without a risk on the cliff.
    assert len(chosen) == TRIALS
    assert np.median(chosen) <= 0.9
    for each in found:
        accepted = [test.threshold for test in each.tested if test.accepted]
        assert each.threshold == accepted[-1] == GRID[len(accepted) - 1]


@pytest.mark.parametrize("delta", [0.02, 0.05, 0.1, 0.25])
def test_losses_of_exactly_the_tolerance_pass_in_at_most_epsilon_of_all_cases(delta):
    """Exact, no luck: the chances of all counts of Bernoulli(delta) losses that would pass."""
    sizes = []
    for n in (*range(1, 60), 100, 149, 150, 300):
        counts = np.arange(n + 1)
        p_values = np.array([hoeffding_bentkus(count / n, n, delta) for count in counts])
        chances = stats.binom.pmf(counts, n, delta)
        for level in (0.01, EPSILON, 0.2):
            assert chances[p_values <= level].sum() <= level + 1e-12, (n, level)
        sizes.append(chances[p_values <= EPSILON].sum())
    # Hardly below what is allowed, where the counts let it.
    assert max(sizes) > 0.8 * EPSILON


def test_a_simulated_loss_of_the_tolerance_is_wrongly_accepted_as_often_as_theory_says():
    delta, n = 0.05, 59
    draw = np.random.default_rng(0)
    wrong = sum(
        fixed_sequence([0.9], lambda _: draw.random(n) < delta, delta, EPSILON).threshold == 0.9
        for _ in range(TRIALS)
    )
    # Only no loss at all passes: 0.95^59 = 4.85 %, 24 of 500; four standard deviations are 19.
    assert abs(wrong - TRIALS * 0.95**59) <= 20
