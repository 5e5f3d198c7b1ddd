"""The BCa bootstrap: from resampled values to the ends of an interval.

Apart, because it is one method with its own sources, whatever is resampled. Pure, free of torch.
Not here: which values (``stats.py``).
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

RESAMPLES = 2000


@lru_cache(maxsize=1)
def draws(units: int) -> NDArray[np.float64]:
    """How often each resample holds each unit, [resamples, units]; read-only.

    Kept for the next score over the same examples; floats, or every product would make them first.
    """
    # A fixed seed: an interval is a property of the records, the same whenever it is computed.
    draw = np.random.default_rng(0)
    counts = np.empty((RESAMPLES, units), dtype=float)
    for row in counts:
        row[:] = np.bincount(draw.integers(units, size=units), minlength=units)
    counts.flags.writeable = False
    return counts


def influence_of(
    table: NDArray[np.float64], totals: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What each unit adds to the value, to first order, [units].

    By the least-squares gradient of the values by the totals over the resamples (Davison & Hinkley
    1997, section 2.7.4), so that no value is computed for it.

    Args:
        table: additive statistics of each unit, [units, statistics].
        totals: their sums over each resample, [resamples, statistics].
        values: the value of each resample, [resamples].
    """
    spread = totals.std(axis=0)
    # Statistics come in different sizes; a constant one tells nothing.
    scale = np.where(spread > 0, spread, np.inf)
    slope = (totals - totals.mean(axis=0)) / scale
    # Some repeat another, such as the counts of both legs: the least of all solutions will do.
    gradient = np.linalg.lstsq(slope, values - values.mean(), rcond=1e-9)[0]
    influence: NDArray[np.float64] = ((table - table.mean(axis=0)) / scale) @ gradient
    return influence


def bca(
    estimate: float, values: NDArray[np.float64], influence: NDArray[np.float64], tail: float
) -> tuple[float, float]:
    """Ends of the bias-corrected and accelerated interval (Efron 1987).

    Its levels are widened to those of Student's t (Hesterberg 2015, expanded percentiles): the
    variance of resamples of n units is too small by (n - 1) / n, and is itself an estimate.

    Args:
        estimate: the value of what was measured.
        values: those of its resamples.
        influence: what each unit adds to it, to first order, up to a factor.
        tail: what each end is to leave out.
    """
    units, resamples = len(influence), len(values)
    # Half of the ties: scores of few examples take few values.
    below = (float((values < estimate).mean()) + float((values <= estimate).mean())) / 2
    bias = float(special.ndtri(min(max(below, 0.5 / resamples), 1 - 0.5 / resamples)))
    square = float((influence**2).sum())
    acceleration = float((influence**3).sum()) / (6 * square**1.5) if square > 0 else 0.0
    reach = math.sqrt(units / (units - 1)) * float(special.stdtrit(units - 1, 1 - tail))
    levels = []
    for side in (bias - reach, bias + reach):
        # Past the pole lies the end of the scale.
        bend = 1 - acceleration * side
        z = bias + side / bend if bend > 0 else math.copysign(math.inf, side)
        levels.append(float(special.ndtr(z)))
    low, high = np.quantile(values, levels)
    return float(low), float(high)
