"""GSM8K, strict: the number behind the first ``#### `` is that of the reference.

Apart, because it is one score: many points below the flexible one for a model that does not keep to
the form. Numbers are compared as text: ``18.0`` is not ``18``. Not here: other numbers of a text.
"""

from typing import Literal

from bench.answers import is_gold, strict_number
from bench.scores.contract import mean
from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"
value = mean


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """1 for the right number, and 1 for the example."""
    return (float(is_gold(strict_number(text), example.references)), 1.0)
