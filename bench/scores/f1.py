"""Token F1 of SQuAD 1.1: words that text and best answer share, as multisets; mean over examples.

Apart, because it is one score; CALM's distance on SQuAD is 1 - F1. Words are lower-cased, without
ASCII punctuation and articles. No word in common is 0, also where neither side has one: 2.0's
script says 1 there. Not here: exact match (``squad_exact_match.py``).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from bench.answers import squad_words
from bench.scores.contract import mean
from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"
value = mean


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """F1 against the best answer, and 1 for the example."""
    words = squad_words(text)
    return (max(_f1(words, squad_words(answer)) for answer in example.references), 1.0)


def _f1(words: Sequence[str], answer: Sequence[str]) -> float:
    shared = (Counter(words) & Counter(answer)).total()
    return 2 * shared / (len(words) + len(answer)) if shared else 0.0
