"""What a score is: additive statistics of each example, and a corpus score of their sum.

Apart, because this form is what makes one bootstrap serve all scores: resampling examples is
summing other rows. One file of this package is one score, found by its name; it defines the
module-level names of ``Score``. Not here: intervals (``bench/stats.py``).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

from bench.tasks.contract import Example

# The width of a unit's scale: what a share of it, such as a margin, is taken of.
RANGE = {"points": 100.0, "fraction": 1.0}


class Score(Protocol):
    """The module-level names that a score file defines.

    Attributes:
        unit: ``points`` (0..100) or ``fraction`` (0..1).
        better: whether a higher or a lower value is better.
    """

    unit: Literal["points", "fraction"]
    better: Literal["higher", "lower"]

    def statistics(self, text: str, example: Example) -> tuple[float, ...]:
        """Additive statistics of one text, the same number of values for every example."""
        ...

    def value(self, totals: Sequence[float]) -> float | None:
        """The score of summed statistics; None where it is not defined (nothing to count)."""
        ...


@runtime_checkable
class OfExample(Protocol):
    """What a score also has whose value for several samples of one example is not their mean."""

    def of_example(self, totals: Sequence[float]) -> tuple[float, ...]:
        """Statistics of an example, from the sums over its samples."""
        ...


def of_example(score: Score, samples: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Statistics of one example, from those of its samples; the unit of all intervals."""
    totals = tuple(sum(column) for column in zip(*samples, strict=True))
    return score.of_example(totals) if isinstance(score, OfExample) else totals


@runtime_checkable
class HasNeeds(Protocol):
    """What a score file also has that needs more than is always installed."""

    def check(self) -> None:
        """Raises ``InputError`` where something is missing; called before a run starts."""
        ...


def mean(totals: Sequence[float]) -> float | None:
    """``Score.value`` of (what examples add up to, examples); None without examples."""
    total, examples = totals
    return total / examples if examples else None


def quality(score: Score, text: str, example: Example) -> float | None:
    """One text alone, as a share of the score's range, higher is better; None where not defined."""
    value = score.value(score.statistics(text, example))
    if value is None:
        return None
    share = min(max(value / RANGE[score.unit], 0.0), 1.0)
    return share if score.better == "higher" else 1 - share


def similarity(score: Score, text: str, other: str, example: Example) -> float | None:
    """How near one text is to another one that stands for all references; 1 for equal texts."""
    if text == other:
        # A score of two empty texts may say otherwise.
        return 1.0
    return quality(score, text, replace(example, references=(other,)))
