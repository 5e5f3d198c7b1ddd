"""Balanced brackets: the share of texts whose square brackets form at least one whole tree.

Apart, because it is one score: of parses, how many could be read at all. Not here: whether a parse
is right (``exact_match.py``).
"""

from itertools import accumulate
from typing import Literal

from bench.scores.contract import mean
from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"
value = mean


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """1 for a text with brackets, all closed in order, and 1 for the example."""
    depths = list(accumulate({"[": 1, "]": -1}.get(letter, 0) for letter in text))
    whole = "[" in text and depths[-1] == 0 and min(depths) >= 0
    return (float(whole), 1.0)
