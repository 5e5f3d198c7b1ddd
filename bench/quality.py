"""Columns of quality: each score of both legs, their paired difference, and the verdict on it.

Apart, because the same numbers are made for one run and across runs. Pure, free of torch. Not here:
what a score is (``scores/``), how an interval is made (``stats.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bench import lookup, stats
from bench.schema import BatchRecord
from bench.scores.contract import RANGE, Score, of_example

Totals = Sequence[Sequence[float]]


def score_columns(name: str, batches: Sequence[BatchRecord], margin: float) -> dict[str, Any]:
    """A score of both legs, with intervals, the paired difference, and whether it is worse.

    Args:
        name: of the score.
        batches: all records of a run: of its legs ``method`` and, where it ran, ``baseline``.
        margin: what may be lost, as a share of the score's range.
    """
    score: Score = lookup.find("bench.scores", name, "score")
    of = {leg: list(by_example(name, batches, leg).values()) for leg in batches[0].legs}
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


def by_example(
    name: str, batches: Sequence[BatchRecord], leg: str
) -> Mapping[str, Sequence[float]]:
    """Example id -> statistics of a leg, its samples taken together; in the order of the records.

    Empty for a run without this score.
    """
    score: Score = lookup.find("bench.scores", name, "score")
    samples: dict[str, list[Sequence[float]]] = {}
    for batch in batches:
        rows = batch.legs[leg].statistics.get(name)
        for example, row in zip(batch.example_ids, rows, strict=True) if rows else ():
            samples.setdefault(example, []).append(row)
    return {example: of_example(score, rows) for example, rows in samples.items()}


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
