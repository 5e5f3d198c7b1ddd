"""Speed-ups, intervals, percentiles and verdicts: pure functions of numbers, free of torch.

Apart, so that every interval of the suite is computed by one text and can be simulated. Not here:
what is resampled and why (``latency.py``, ``quality.py``), how resamples become an interval
(``resampling.py``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.resampling import bca, draws, influence_of

CONFIDENCE = 0.95
# Of each side; also the one-sided error rate of a verdict.
_TAIL = 0.5 - CONFIDENCE / 2
# Fewer batches say too little about their own spread.
MIN_UNITS = 5

Interval = tuple[float | None, float | None]
UNKNOWN: Interval = (None, None)
Speedup = Callable[
    [Sequence[float], Sequence[int], Sequence[float], Sequence[int]],
    tuple[float | None, Interval],
]


def speedup(
    baseline_s: Sequence[float],
    baseline_tokens: Sequence[int],
    method_s: Sequence[float],
    method_tokens: Sequence[int],
) -> tuple[float | None, Interval]:
    """Time per token of the baseline over that of the method, as ratio of totals.

    A batch counts by its work: this is what a user who decodes these prompts gains. The interval is
    the jackknife-t one on the log ratio (unit: batch, repeats averaged before). Its degrees of
    freedom are Kish's effective number of batches less 1, where a batch weighs its share of the
    time: n - 1 for batches of equal work, fewer where a few long ones decide. With n - 1
    throughout, identical legs with log-normal work of sigma 1 are covered in 91 % at 5 batches;
    so, in 97 %.

    Args:
        baseline_s: seconds of each batch.
        baseline_tokens: tokens of each batch.
        method_s: likewise for the method, on the same prompts.
        method_tokens: likewise.

    Returns:
        The ratio and its interval; None where a total is not positive, and an unknown interval
        under ``MIN_UNITS`` batches or where one batch holds all of a total.
    """
    table = np.array([baseline_s, baseline_tokens, method_s, method_tokens], dtype=float)  # (4, n)
    totals = table.sum(axis=1)
    if (totals <= 0).any():
        return None, UNKNOWN
    units = table.shape[1]
    ratio = float(_log_ratio(totals))
    rest = totals[:, None] - table
    if units < MIN_UNITS or (rest <= 0).any():
        return math.exp(ratio), UNKNOWN
    left_out = _log_ratio(rest)
    error = math.sqrt((units - 1) / units * float(((left_out - left_out.mean()) ** 2).sum()))
    shares = (table[0] / totals[0] + table[2] / totals[2]) / 2
    freedom = max(1 / float((shares**2).sum()) - 1, 1.0)
    reach = float(special.stdtrit(freedom, 1 - _TAIL)) * error
    return math.exp(ratio), (math.exp(ratio - reach), math.exp(ratio + reach))


def speedup_bca(
    baseline_s: Sequence[float],
    baseline_tokens: Sequence[int],
    method_s: Sequence[float],
    method_tokens: Sequence[int],
) -> tuple[float | None, Interval]:
    """The ratio of ``speedup`` with a BCa bootstrap interval over batches.

    The same number; the interval may be skewed, as it follows the spread of the batches and not
    Student's t. It promises 95 % and holds less on few batches: measured on identical legs (5 %
    noise, log-normal work of sigma 0.5), it covers 1 in 91, 93, 93 and 93 % at 5, 10, 20 and 50.

    Returns:
        As ``speedup``; the interval is unknown also where a resample has no positive total.
    """
    table = np.array([baseline_s, baseline_tokens, method_s, method_tokens], dtype=float)  # (4, n)
    totals = table.sum(axis=1)
    if (totals <= 0).any():
        return None, UNKNOWN
    ratio = float(_log_ratio(totals))
    if table.shape[1] < MIN_UNITS:
        return math.exp(ratio), UNKNOWN
    resampled = draws(table.shape[1]) @ table.T  # (resamples, 4)
    if (resampled <= 0).any():
        return math.exp(ratio), UNKNOWN
    # The derivative of the log ratio by each batch's weight.
    influence = np.array([1.0, -1.0, -1.0, 1.0]) @ (table / totals[:, None])
    low, high = bca(ratio, _log_ratio(resampled.T), influence, _TAIL)
    return math.exp(ratio), (math.exp(low), math.exp(high))


def speedup_geometric(
    baseline_s: Sequence[float],
    baseline_tokens: Sequence[int],
    method_s: Sequence[float],
    method_tokens: Sequence[int],
) -> tuple[float | None, Interval]:
    """Geometric mean of the batches' own ratios, with Student's t interval of their logs.

    Every batch counts the same, however little work it is: another number than the ratio of
    totals wherever the gain depends on the batch. The ratio of the legs' mean speeds, a third
    number, is not offered: it is a ratio of no times that anyone waits for.

    Returns:
        The mean and its interval; None where a batch of either leg has no time or no token, as
        it has no ratio then; an unknown interval under ``MIN_UNITS`` batches.
    """
    table = np.array([baseline_s, baseline_tokens, method_s, method_tokens], dtype=float)  # (4, n)
    units = table.shape[1]
    if units == 0 or (table <= 0).any():
        return None, UNKNOWN
    logs = _log_ratio(table)
    mean = float(logs.mean())
    if units < MIN_UNITS:
        return math.exp(mean), UNKNOWN
    reach = float(special.stdtrit(units - 1, 1 - _TAIL) * logs.std(ddof=1) / math.sqrt(units))
    return math.exp(mean), (math.exp(mean - reach), math.exp(mean + reach))


# Three numbers or intervals for the same data: whoever shows one names it.
SPEEDUPS: Mapping[str, Speedup] = MappingProxyType(
    {
        "ratio_of_totals_jackknife_t": speedup,
        "ratio_of_totals_bca": speedup_bca,
        "geometric_mean_t": speedup_geometric,
    }
)


def drift(
    baseline_s: Sequence[float],
    baseline_tokens: Sequence[int],
    method_s: Sequence[float],
    method_tokens: Sequence[int],
) -> tuple[float | None, float | None]:
    """``speedup`` of the first and of the second half of the batches.

    Far apart, they say that the machine or the work changed while it was measured. The middle one
    of an odd number of batches is in neither; None where a half has nothing.
    """
    half = len(baseline_s) // 2
    halves = slice(half), slice(len(baseline_s) - half, None)
    first, second = (
        speedup(baseline_s[of], baseline_tokens[of], method_s[of], method_tokens[of])[0]
        for of in halves
    )
    return first, second


def percentile(samples: Sequence[float], q: float) -> float | None:
    """The q-th percentile in the samples' unit, linear between neighbours.

    Given only if at least one sample is expected beyond it, on its nearer side: p95 needs 20
    samples, p99 100, p99.9 1,000. With fewer it would be a name for the largest sample. The median
    is given from one sample on. None otherwise.

    Raises:
        ValueError: q is not between 0 and 100, both left out.
    """
    if not 0 < q < 100:
        raise ValueError(f"q = {q}: not between 0 and 100")
    # Rounded, as 100 - 99.9 is less than 0.1.
    beyond = round(len(samples) * min(q, 100 - q) / 100, 9)
    if len(samples) == 0 or (beyond < 1 and q != 50):
        return None
    return float(np.percentile(samples, q))


def verdict(
    low: float | None, high: float | None, margin: float, better: Literal["higher", "lower"]
) -> Literal["non_inferior", "inferior", "undecided"] | None:
    """Whether a method is worse than the baseline by no more than a margin.

    Non-inferior: the whole interval is on the good side of the margin; inferior: all of it is
    beyond; undecided: it holds the margin. The stated rate of calling a method non-inferior whose
    true difference is exactly the margin is that of one side of the interval, 2.5 %. It rests on
    examples that show the difference: under ``least_examples`` no interval can hold it.

    Args:
        low: lower end of the paired 95 % interval of method - baseline, in the score's unit.
        high: its upper end.
        margin: the loss that is accepted, in the score's unit, positive.
        better: which way the score is better.

    Returns:
        None where an end is unknown.

    Raises:
        ValueError: the margin is not positive.
    """
    if not margin > 0:
        raise ValueError(f"margin = {margin}: not positive")
    if low is None or high is None:
        return None
    worst, best = (low, high) if better == "higher" else (-high, -low)
    if worst > -margin:
        return "non_inferior"
    return "inferior" if best < -margin else "undecided"


def least_examples(margin: float, largest: float) -> int:
    """Examples under which a loss of the margin stays unseen more often than in 2.5 %.

    The rule of three at 97.5 %: a method that loses ``largest`` on a share margin / largest of the
    examples, and nothing on the others, loses nothing on n examples in (1 - share) ** n of all
    cases; the interval is then the point 0, whatever way it is made. 369 for 1 point of 100.

    Args:
        margin: the loss that is accepted, in the score's unit.
        largest: what one example can lose at most: 100 in points, 1 as a fraction.

    Raises:
        ValueError: the margin is not positive.
    """
    if not margin > 0:
        raise ValueError(f"margin = {margin}: not positive")
    return 1 if margin >= largest else math.ceil(math.log(_TAIL) / math.log1p(-margin / largest))


def bootstrap(
    statistics: Sequence[Sequence[Sequence[float]]],
    value: Callable[[Sequence[Sequence[float]]], float | None],
) -> Interval:
    """BCa bootstrap interval over examples of a function of summed statistics.

    Not plain percentiles: where few examples lose much, those see too little of the loss. Measured
    share of methods that lose exactly the margin and pass, which should be 2.5 %, at 50, 100 and
    500 examples: 10.2, 6.8 and 3.9 % by percentiles, 5.2, 3.7 and 2.7 % so, if a fifth of the
    examples lose some of their points; 4.0, 3.3 and 2.8 % against 3.0, 2.7 and 2.6 % if all differ.
    No interval helps where hardly an example shows the loss (``least_examples``).

    Args:
        statistics: for each leg, the additive statistics of every example, in the same order; one
            leg for a score, two for a paired difference.
        value: from each leg's totals to the number of interest.

    Returns:
        Low and high, within what resamples give; unknown under two examples or where a resample
        has no value.
    """
    tables = [np.asarray(leg, dtype=float) for leg in statistics]
    examples = len(tables[0])
    if examples < 2:
        return UNKNOWN
    table = np.hstack(tables)  # (examples, statistics of all legs)
    ends = np.cumsum([leg.shape[1] for leg in tables])[:-1]
    totals = np.vstack([table.sum(axis=0), draws(examples) @ table])
    legs = [leg.tolist() for leg in np.split(totals, ends, axis=1)]
    found = [value(row) for row in zip(*legs, strict=True)]
    known = np.array([math.nan if number is None else number for number in found])
    if not np.isfinite(known).all():
        return UNKNOWN
    estimate, values = float(known[0]), known[1:]
    return bca(estimate, values, influence_of(table, totals[1:], values), _TAIL)


def _log_ratio(quantities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of (baseline seconds / tokens) / (method seconds / tokens), over [4, ...]."""
    baseline_s, baseline_tokens, method_s, method_tokens = quantities
    return np.asarray(np.log(baseline_s * method_tokens / (baseline_tokens * method_s)))
