"""GSM8K, flexible: the last number of the text is that of the reference.

Apart, because it is one score: what a text repeats at its end fools it. Numbers are compared as
text: ``18.0`` is not ``18``. Not here: the number behind ``#### `` alone (``gsm8k_strict.py``).
"""

from typing import Literal

from bench.answers import flexible_number, is_gold
from bench.scores.contract import mean
from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"
value = mean


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """1 for the right number, and 1 for the example."""
    return (float(is_gold(flexible_number(text), example.references)), 1.0)
