"""Corpus chrF2 by sacrebleu: character n-grams of order 1 to 6, beta 2, no word n-grams.

Apart, because it is one score. Case counts, white space does not; of several references the best
one by sentence chrF. Counts are sacrebleu's own, example by example, and their sum gives what
``sacrebleu.corpus_chrf`` gives for the whole. Not here: chrF++.
"""

from collections.abc import Sequence
from functools import cache
from typing import Literal

from sacrebleu.metrics.chrf import CHRF

from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "points"
better: Literal["higher", "lower"] = "higher"


@cache
def _metric() -> CHRF:
    return CHRF(char_order=6, word_order=0, beta=2)


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """For each order: n-grams of the text, of the best reference, and of both."""
    # The package keeps its additive counts to itself; a corpus score sums exactly these.
    (row,) = _metric()._extract_corpus_statistics([text], [[r] for r in example.references])
    return tuple(map(float, row))


def value(totals: Sequence[float]) -> float | None:
    """The score in points; None where there is no reference text at all."""
    if not any(totals[1::3]):
        return None
    return float(_metric()._compute_f_score([int(count) for count in totals]))
