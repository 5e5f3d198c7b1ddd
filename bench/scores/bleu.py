"""Corpus BLEU by sacrebleu: case-insensitive, 13a tokens, closest reference length.

Apart, because it is one score. The convention is that of the E2E challenge (mteval-v13a with a
varying number of references), so values compare with that literature; case-sensitive BLEU would be
several points lower. Counts are sacrebleu's own, example by example, and their sum gives exactly
what ``sacrebleu.corpus_bleu`` gives for the whole. Not here: sentence BLEU, which is not additive.
"""

from collections.abc import Sequence
from functools import cache
from typing import Literal

from sacrebleu.metrics.bleu import BLEU

from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "points"
better: Literal["higher", "lower"] = "higher"

_ORDER = 4


@cache
def _metric() -> BLEU:
    return BLEU(lowercase=True, tokenize="13a", smooth_method="exp", effective_order=False)


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """System length, closest reference length, then correct and total n-grams of order 1 to 4."""
    one = _metric().corpus_score([text], [[reference] for reference in example.references])
    return (one.sys_len, one.ref_len, *one.counts, *one.totals)


def value(totals: Sequence[float]) -> float | None:
    """BLEU in points; 0 where no n-gram matches; None where there is no reference text at all."""
    sys_len, ref_len, *counts = totals
    if ref_len == 0:
        return None
    score = BLEU.compute_bleu(
        correct=[int(count) for count in counts[:_ORDER]],
        total=[int(count) for count in counts[_ORDER:]],
        sys_len=int(sys_len),
        ref_len=int(ref_len),
        smooth_method="exp",
        effective_order=False,
    )
    return float(score.score)
