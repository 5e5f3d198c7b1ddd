"""Which exit threshold keeps a promised loss: Learn-then-Test by fixed-sequence testing.

Apart, because a guarantee must be checked against losses of known risk, without a model and without
torch. Source: arXiv 2207.07061 (CALM). It uses the Hoeffding-Bentkus p-value without printing it;
the form here is the usual one of Learn-then-Test (arXiv 2110.01052).

The promise: with probability 1 - ``epsilon`` over the draw of the calibration prompts, the expected
loss at the chosen threshold is at most ``delta``. It holds only if

- the losses are one a prompt (never one a token), of prompts drawn independently;
- the prompts served no other choice: taking them to pick the measure or the decay voids it;
- thresholds and their order were fixed before any loss was seen;
- what was decoded is what will run: same decay, dtype, batch size and token limit.

Not here: decoding, and scoring a text.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special

# (mean loss, n, delta) -> p-value of "the expected loss is above delta".
PValue = Callable[[float, int, float], float]

# n * mean of whole losses is a whole number up to rounding, and must not be taken for the next one.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Tested:
    """One threshold that was tried: the mean loss found there, and whether it passed."""

    threshold: float
    mean_loss: float
    p_value: float
    accepted: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a calibration chose, and all that it saw.

    Attributes:
        threshold: the last one accepted; None = never exit, that is the full model. Never exiting
            is not a threshold of 1: a decayed threshold, or a softmax gap rounded to 1, exits
            there.
        tested: in the order of testing; all but the last one were accepted.
        n: calibration prompts.
        delta: the loss allowed in expectation.
        epsilon: the probability allowed of choosing a threshold whose expected loss is above delta.
        smallest_n: prompts that a loss of 0 on all of them needs to pass.
    """

    threshold: float | None
    tested: tuple[Tested, ...]
    n: int
    delta: float
    epsilon: float
    smallest_n: int

    @property
    def too_few_prompts(self) -> bool:
        """Whether no losses whatever could have passed: then None says nothing of the method."""
        return self.n < self.smallest_n


def hoeffding(mean_loss: float, n: int, delta: float) -> float:
    """Hoeffding's p-value of "the expected loss is above ``delta``", for losses in [0, 1].

    Args:
        mean_loss: of n independent losses.
        n: at least 1.
        delta: strictly between 0 and 1.

    Raises:
        ValueError: for an argument out of its range.
    """
    _check_p_value(mean_loss, n, delta)
    return math.exp(-2 * n * max(0.0, delta - mean_loss) ** 2)


def hoeffding_bentkus(mean_loss: float, n: int, delta: float) -> float:
    """The smaller of two p-values of "the expected loss is above ``delta``"; losses in [0, 1].

    With a = mean loss and h(a, d) = a ln(a/d) + (1-a) ln((1-a)/(1-d)), 0 ln 0 = 0:
    min(exp(-n h(a, delta)), e P[Binomial(n, delta) <= ceil(n a)]), and 1 where a >= delta. Never
    above Hoeffding's own.

    Args:
        mean_loss: of n independent losses.
        n: at least 1.
        delta: strictly between 0 and 1.

    Raises:
        ValueError: for an argument out of its range.
    """
    _check_p_value(mean_loss, n, delta)
    if mean_loss >= delta:
        return 1.0
    # log1p keeps its digits where delta is tiny: 1 - delta would have lost them.
    rest = (1 - mean_loss) * (math.log1p(-mean_loss) - math.log1p(-delta))
    divergence = float(special.xlogy(mean_loss, mean_loss / delta)) + rest
    count = math.ceil(n * mean_loss - _ROUNDING)
    bentkus = math.e * float(special.bdtr(count, n, delta))
    return min(1.0, math.exp(-n * divergence), bentkus)


def smallest_n(delta: float, epsilon: float, p_value: PValue = hoeffding_bentkus) -> int:
    """Least number of prompts with which a loss of 0 on each of them passes.

    To be asked before decoding: with fewer, every threshold fails, even that of a perfect method.

    Args:
        delta: strictly between 0 and 1.
        epsilon: strictly between 0 and 1.
        p_value: the test; at mean loss 0 it must fall as n grows.

    Raises:
        ValueError: for a level out of its range.
    """
    _check_level("delta", delta)
    _check_level("epsilon", epsilon)
    enough = 1
    while p_value(0.0, enough, delta) > epsilon:
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if p_value(0.0, middle, delta) > epsilon:
            too_few = middle
        else:
            enough = middle
    return enough


def fixed_sequence(
    thresholds: Sequence[float],
    losses_of: Callable[[float], Sequence[float]],
    delta: float,
    epsilon: float,
) -> Outcome:
    """Walks the thresholds down, each tested by Hoeffding-Bentkus, up to the first that fails.

    A threshold below the first failure is not tried, even if it would pass: stopping there is what
    spares the correction for testing many.

    Args:
        thresholds: at least one, finite, strictly descending: from the most careful one on.
        losses_of: from a threshold to the loss of each calibration prompt, in [0, 1], of the same
            prompts each time. Called once for each threshold that is tested, in order, since each
            call is a decoding of the whole set.
        delta: the loss allowed in expectation, strictly between 0 and 1.
        epsilon: the failure probability allowed, strictly between 0 and 1.

    Raises:
        ValueError: for thresholds that do not descend, a level out of its range, a loss out of
            [0, 1] (named by its index), no losses, or another number of losses than before.
    """
    _check_descending(thresholds)
    least = smallest_n(delta, epsilon)
    chosen = None
    tested: list[Tested] = []
    n = 0
    for threshold in thresholds:
        losses = _fractions(f"losses at threshold {threshold}", losses_of(threshold))
        if not len(losses) or (tested and len(losses) != n):
            wanted = n if tested else "at least one"
            raise ValueError(f"losses at threshold {threshold}: got {len(losses)}, need {wanted}")
        n = len(losses)
        # The exact sum: the order of the prompts must not decide a test.
        mean_loss = math.fsum(losses) / n
        p_value = hoeffding_bentkus(mean_loss, n, delta)
        tested.append(Tested(threshold, mean_loss, p_value, accepted=p_value <= epsilon))
        if not tested[-1].accepted:
            break
        chosen = threshold
    return Outcome(chosen, tuple(tested), n, delta, epsilon, least)


def textual_losses(similarities: Sequence[float]) -> tuple[float, ...]:
    """Losses of textual consistency: 1 - similarity of the early text to the full model's own.

    Args:
        similarities: of each prompt, higher is closer, in [0, 1] (a fraction: ROUGE-L in points
            is refused). A measure that leaves [0, 1] is clipped by its owner, who knows its range.

    Raises:
        ValueError: for a similarity out of [0, 1], named by its index.
    """
    return tuple((1 - _fractions("similarities", similarities)).tolist())


def risk_losses(
    *, early_quality: Sequence[float], full_quality: Sequence[float]
) -> tuple[float, ...]:
    """Losses of risk consistency: what quality each prompt lost against the full model.

    The paper's R is a risk, lower is better, and its loss max(0, R(early) - R(full)). Scores are
    qualities, higher is better, Q = 1 - R, so the loss here is max(0, Q(full) - Q(early)). A prompt
    that gained counts 0 and does not make up for one that lost, so the mean loss is at or above the
    mean quality lost. By name only: swapped arguments would take each loss for a gain, and pass.

    Args:
        early_quality: quality of the early text against the reference, by prompt, in [0, 1].
        full_quality: likewise of the full model's text, of the same prompts in the same order.

    Raises:
        ValueError: for a quality out of [0, 1], named by its index, or unequal lengths.
    """
    early = _fractions("early_quality", early_quality)
    full = _fractions("full_quality", full_quality)
    if len(early) != len(full):
        raise ValueError(f"early_quality has {len(early)} prompts, full_quality {len(full)}")
    return tuple(np.maximum(0.0, full - early).tolist())


def _fractions(name: str, values: Sequence[float]) -> NDArray[np.float64]:
    """The values as an array, all of them in [0, 1]; NaN is not."""
    table = np.asarray(values, dtype=float)
    outside = np.flatnonzero(~((table >= 0) & (table <= 1)))
    if outside.size:
        index = int(outside[0])
        raise ValueError(f"{name}: index {index} is {values[index]}, must be in [0, 1]")
    return table


def _check_descending(thresholds: Sequence[float]) -> None:
    # Written so that NaN, which compares as False, is refused.
    finite = all(math.isfinite(threshold) for threshold in thresholds)
    falling = all(high > low for high, low in pairwise(thresholds))
    if not (len(thresholds) and finite and falling):
        raise ValueError(
            f"thresholds: got {list(thresholds)}, need at least one, finite, strictly descending"
        )


def _check_level(name: str, level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"{name}: got {level}, must be strictly between 0 and 1")


def _check_p_value(mean_loss: float, n: int, delta: float) -> None:
    _check_level("delta", delta)
    if n < 1:
        raise ValueError(f"n: got {n}, must be at least 1")
    if not 0 <= mean_loss <= 1:
        raise ValueError(f"mean_loss: got {mean_loss}, must be in [0, 1]")
