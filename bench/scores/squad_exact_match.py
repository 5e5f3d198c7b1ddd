"""Exact match of SQuAD 1.1: the words of the text are those of one of the answers.

Apart, because it is one score. Words are lower-cased, without ASCII punctuation and articles. Not
here: exact match of the text as it is (``exact_match.py``).
"""

from typing import Literal

from bench.answers import squad_words
from bench.scores.contract import mean
from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"
value = mean


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """1 for a match, and 1 for the example."""
    return (float(squad_words(text) in map(squad_words, example.references)), 1.0)
