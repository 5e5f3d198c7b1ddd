"""Columns of time: rates, percentiles, and the speed-up of the timed batches.

Apart, so that every time of the table is computed by one text from raw values that stand in the
records. A pass gives one TTFT and one TPOT; percentiles are over passes, medians and totals over
batches, whose repeats are averaged first. Pure, free of torch. Not here: intervals (``stats.py``),
what the times could have been (``promise.py``).
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from bench import stats
from bench.schema import Leg

Legs = Mapping[str, Sequence[Leg]]


class Times(NamedTuple):
    """Seconds and tokens of each timed batch of one leg, repeats averaged.

    Attributes:
        ttft_s: prompt pass.
        decode_s: what follows it.
        decoded: kept decode tokens, the prompt's not counted.
        kept: kept tokens.
    """

    ttft_s: list[float]
    decode_s: list[float]
    decoded: list[int]
    kept: list[int]

    @property
    def whole_s(self) -> list[float]:
        """Prompt pass and decoding."""
        return [a + b for a, b in zip(self.ttft_s, self.decode_s, strict=True)]


def tokens(legs: Sequence[Leg], first: int) -> int:
    """Kept tokens; those of the first Round are left out if ``first`` is 1, not if it is 0."""
    return sum(
        max(len(row) - first * before, 0)
        for leg in legs
        for row, before in zip(leg.ids, leg.first_tokens(), strict=True)
    )


def timed(legs: Sequence[Leg]) -> list[Leg]:
    """Those of timed batches."""
    return [leg for leg in legs if leg.timings]


def times(legs: Sequence[Leg]) -> Times:
    """The timed batches of one leg."""
    held = timed(legs)
    return Times(
        ttft_s=[fmean(t.ttft_s for t in leg.timings) for leg in held],
        decode_s=[fmean(t.decode_s for t in leg.timings) for leg in held],
        decoded=[tokens([leg], first=1) for leg in held],
        kept=[tokens([leg], first=0) for leg in held],
    )


def _longest(leg: Leg) -> int:
    """Decode tokens of the row that has most."""
    return max(len(row) - before for row, before in zip(leg.ids, leg.first_tokens(), strict=True))


def latency_columns(legs: Legs) -> dict[str, Any]:
    """Rate, TTFT, TPOT and time of a round of the method leg, with their percentiles."""
    own, of = timed(legs["method"]), times(legs["method"])
    ttft_s = [timing.ttft_s for leg in own for timing in leg.timings]
    # By the longest row: the others wait for it. The steps do not matter, whatever each gave.
    tpot_s = [
        [timing.decode_s / longest for timing in leg.timings]
        for leg in own
        if (longest := _longest(leg)) > 0
    ]
    passes = [each for batch in tpot_s for each in batch]
    # Without the prompt's round.
    round_s = [seconds for leg in own for seconds in (leg.round_s or ())[1:]]
    decode_s = sum(of.decode_s)
    return {
        # Where no row went past the prompt's token there is no rate, not a rate of 0.
        "decode_tokens_per_s": (sum(of.decoded) or None)
        and decode_s
        and sum(of.decoded) / decode_s,
        "timed_passes": len(ttft_s) or None,
        "ttft_s": median(of.ttft_s) if of.ttft_s else None,
        "ttft_p95_s": stats.percentile(ttft_s, 95),
        "ttft_p99_s": stats.percentile(ttft_s, 99),
        "tpot_s": median(map(fmean, tpot_s)) if tpot_s else None,
        "tpot_p95_s": stats.percentile(passes, 95),
        "tpot_p99_s": stats.percentile(passes, 99),
        "round_s": stats.percentile(round_s, 50),
        "round_p95_s": stats.percentile(round_s, 95),
        "round_p99_s": stats.percentile(round_s, 99),
    }


def speedup_columns(legs: Legs) -> dict[str, Any]:
    """Time per kept token of the baseline over the method's; empty without a baseline."""
    if "baseline" not in legs:
        return {}
    dense, own = times(legs["baseline"]), times(legs["method"])
    pairs = (dense.decode_s, dense.decoded, own.decode_s, own.decoded)
    speedup, (low, high) = stats.speedup(*pairs)
    total, _ = stats.speedup(dense.whole_s, dense.kept, own.whole_s, own.kept)
    first, second = stats.drift(*pairs)
    return {
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "speedup_total": total,
        "speedup_drift": second / first if first and second else None,
    }
