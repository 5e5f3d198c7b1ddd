"""Edit similarity: 1 - Levenshtein distance in characters / length of the longer text.

Apart, because it is one score. Best reference, mean over examples; two empty texts are alike.
LayerSkip's benchmark reports the bare distance, as ``exact_match``. Not here: word edits.
"""

from typing import Literal

from bench.scores.contract import mean
from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"
value = mean


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """The similarity, and 1 for the example."""
    return (max(_similarity(text, reference) for reference in example.references), 1.0)


def _similarity(text: str, reference: str) -> float:
    longer = max(len(text), len(reference))
    return 1.0 - distance(text, reference) / longer if longer else 1.0


def distance(first: str, second: str) -> int:
    """Fewest insertions, deletions and replacements of characters that make one of the other.

    A column of the usual table at a time, its differences held as the bits of two numbers: Myers
    (1999), "A fast bit-vector algorithm for approximate string matching", in Hyyro's (2003) form
    for whole strings.
    """
    if not first or not second:
        return len(first) + len(second)
    places: dict[str, int] = {}
    for index, letter in enumerate(first):
        places[letter] = places.get(letter, 0) | 1 << index
    every, last = (1 << len(first)) - 1, 1 << (len(first) - 1)
    # Bits of rows where the table grows, and falls, by one downwards.
    grows, falls, found = every, 0, len(first)
    for letter in second:
        equal = places.get(letter, 0)
        diagonal = (((equal & grows) + grows) ^ grows) | equal | falls
        across_up = falls | ~(diagonal | grows)
        across_down = grows & diagonal
        found += bool(across_up & last) - bool(across_down & last)
        across_up = across_up << 1 | 1
        across_down = across_down << 1
        grows = (across_down | ~(diagonal | across_up)) & every
        falls = across_up & diagonal & every
    return found
