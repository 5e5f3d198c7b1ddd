"""CALM's threshold at each step: constant, or falling with position (section 3.2).

Apart, because the paper and its code print two different formulas, and which one was used must be
told. Pure. Not here: how a threshold is found (calibration).
"""

import math

from methods.calm.params import Params


def threshold_at(params: Params, index: int, max_new_tokens: int) -> float:
    """The threshold for the token of number ``index``.

    An early token that is wrong harms all that follow, so the threshold starts high and falls.

    Args:
        params: ``threshold`` must be a number.
        index: of the generated token, 0-based.
        max_new_tokens: N of the formula: the longest output, not this one's.

    Returns:
        ``paper``: 0.9 l + 0.1 exp(-tau t / N), clipped to [0, 1]; ``official``: the second summand
        times l, not clipped, as in the code of T5X and FREE. The two meet only at l = 1.
    """
    base = float(params.threshold)
    if params.decay is None:
        return base
    fall = math.exp(-params.decay * index / max_new_tokens)
    if params.decay_form == "official":
        return 0.9 * base + 0.1 * base * fall
    return min(max(0.9 * base + 0.1 * fall, 0.0), 1.0)
