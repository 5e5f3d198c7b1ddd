"""GSM8K, strict: the number behind the first ``#### `` is that of the reference.

Apart, because it is one score: many points below the flexible one for a model that does not keep to
the form. Numbers are compared as text: ``18.0`` is not ``18``. Not here: other numbers of a text.
"""

from collections.abc import Sequence
from typing import Literal

from bench.answers import INVALID, gold_number, strict_number
from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """1 for the right number, and 1 for the example."""
    found = strict_number(text)
    right = found != INVALID and found in map(gold_number, example.references)
    return (float(right), 1.0)


def value(totals: Sequence[float]) -> float | None:
    """Share of examples with the right number; None without examples."""
    right, examples = totals
    return right / examples if examples else None
