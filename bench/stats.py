"""Intervals: pure functions of numbers, free of torch.

Apart, so that every interval of the suite is computed by one text and can be simulated. Not here:
what is resampled and why (``summary.py``).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
# Fewer batches say too little about their own spread.
MIN_UNITS = 5
RESAMPLES = 1000

Interval = tuple[float | None, float | None]
UNKNOWN: Interval = (None, None)


def speedup(
    baseline_s: Sequence[float],
    baseline_tokens: Sequence[int],
    method_s: Sequence[float],
    method_tokens: Sequence[int],
) -> tuple[float | None, Interval]:
    """Time per token of the baseline over that of the method, as ratio of totals.

    The interval is the jackknife-t one on the log ratio (unit: batch, repeats averaged before).

    Args:
        baseline_s: seconds of each batch.
        baseline_tokens: tokens of each batch.
        method_s: likewise for the method, on the same prompts.
        method_tokens: likewise.

    Returns:
        The ratio and its interval; None where a total is not positive, and an unknown interval
        under ``MIN_UNITS`` batches.
    """
    table = np.array([baseline_s, baseline_tokens, method_s, method_tokens], dtype=float)
    totals = table.sum(axis=1)
    if table.shape[1] == 0 or (totals <= 0).any():
        return None, UNKNOWN
    ratio = _log_ratio(totals)
    units = table.shape[1]
    without = [totals - table[:, unit] for unit in range(units)]
    if units < MIN_UNITS or any((rest <= 0).any() for rest in without):
        return math.exp(ratio), UNKNOWN
    left_out = np.array([_log_ratio(rest) for rest in without])
    error = math.sqrt((units - 1) / units * float(((left_out - left_out.mean()) ** 2).sum()))
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, units - 1)) * error
    return math.exp(ratio), (math.exp(ratio - reach), math.exp(ratio + reach))


def _log_ratio(totals: NDArray[np.float64]) -> float:
    """Log of (baseline seconds / tokens) / (method seconds / tokens)."""
    baseline_s, baseline_tokens, method_s, method_tokens = totals
    return float(np.log(baseline_s * method_tokens / (baseline_tokens * method_s)))


def bootstrap(
    statistics: Sequence[Sequence[Sequence[float]]],
    value: Callable[[Sequence[Sequence[float]]], float | None],
) -> Interval:
    """Percentile bootstrap interval over examples of a function of summed statistics.

    Args:
        statistics: for each leg, the additive statistics of every example, in the same order; one
            leg for a score, two for a paired difference.
        value: from each leg's totals to the number of interest.

    Returns:
        Low and high; unknown under two examples or where a resample has no value.
    """
    tables = [np.asarray(leg, dtype=float) for leg in statistics]
    examples = len(tables[0])
    if examples < 2:
        return UNKNOWN
    # A fixed seed: an interval is a property of the records, the same whenever it is computed.
    draws = np.random.default_rng(0).multinomial(
        examples, np.full(examples, 1 / examples), size=RESAMPLES
    )
    totals = [draws @ table for table in tables]
    found = [value([leg[i] for leg in totals]) for i in range(RESAMPLES)]
    known = [number for number in found if number is not None]
    if len(known) < RESAMPLES:
        return UNKNOWN
    low, high = np.quantile(known, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return float(low), float(high)
