"""Columns of quality: each score of both legs, their paired difference, and the verdict on it.

Apart, because the same numbers are made for one run and across runs. Pure, free of torch. Not here:
what a score is (``scores/``), how an interval is made (``stats.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bench import lookup, stats
from bench.schema import Leg
from bench.scores.contract import RANGE, Score

Totals = Sequence[Sequence[float]]


def score_columns(name: str, legs: Mapping[str, Sequence[Leg]], margin: float) -> dict[str, Any]:
    """A score of both legs, with intervals, the paired difference, and whether it is worse.

    Args:
        name: of the score.
        legs: ``method`` and, where it ran, ``baseline``; their batches in the same order.
        margin: what may be lost, as a share of the score's range.
    """
    score: Score = lookup.find("bench.scores", name, "score")
    of = {
        leg: [row for b in batches for row in b.statistics[name]] for leg, batches in legs.items()
    }
    low, high = stats.bootstrap([of["method"]], lambda totals: score.value(totals[0]))
    row: dict[str, Any] = {
        f"score.{name}": score.value(_sums(of["method"])),
        f"score.{name}.low": low,
        f"score.{name}.high": high,
    }
    if "baseline" not in of:
        return row
    low, high = stats.bootstrap([of["method"], of["baseline"]], partial(difference, score.value))
    return row | {
        f"dense.{name}": score.value(_sums(of["baseline"])),
        f"diff.{name}": difference(score.value, [_sums(of["method"]), _sums(of["baseline"])]),
        f"diff.{name}.low": low,
        f"diff.{name}.high": high,
        **verdict_columns(name, (low, high), len(of["method"]), margin),
    }


def verdict_columns(
    name: str, ends: stats.Interval, examples: int, margin: float
) -> dict[str, Any]:
    """Whether a difference stays within a margin.

    Args:
        name: of the score.
        ends: of the interval of the difference.
        examples: that it rests on; so few that a loss of the margin may not show decide nothing.
        margin: as a share of the score's range.
    """
    score: Score = lookup.find("bench.scores", name, "score")
    whole = RANGE[score.unit]
    verdict = stats.verdict(*ends, margin * whole, score.better)
    if verdict == "non_inferior" and examples < stats.least_examples(margin * whole, whole):
        verdict = "undecided"
    return {f"diff.{name}.margin": margin * whole, f"diff.{name}.verdict": verdict}


def difference(value: Callable[[Sequence[float]], float | None], totals: Totals) -> float | None:
    """Method less baseline, of the totals of both."""
    mine, dense = value(totals[0]), value(totals[1])
    return None if mine is None or dense is None else mine - dense


def _sums(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]
