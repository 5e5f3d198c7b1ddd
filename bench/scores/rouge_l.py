"""ROUGE-L F1 of the ``rouge_score`` package: Porter stems, best reference, mean over examples.

Apart, because it is one score. Not the ROUGE_L of the E2E challenge's script (that one has
beta = 1.2, takes the best precision and the best recall of different references, and does not
stem): the two never stand in one column. Not here: ROUGE-Lsum and ROUGE-N.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal

from rouge_score import rouge_scorer, tokenizers

from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "points"
better: Literal["higher", "lower"] = "higher"


class _RememberingTokenizer:
    """Stems a text once: a reference is scored again for every method and every run in a sweep."""

    def __init__(self) -> None:
        stem = tokenizers.DefaultTokenizer(use_stemmer=True).tokenize
        self.tokenize = lru_cache(maxsize=2**15)(stem)


@cache
def _scorer() -> rouge_scorer.RougeScorer:
    return rouge_scorer.RougeScorer(["rougeL"], tokenizer=_RememberingTokenizer())


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """F1 against the best reference in points, and 1 for the example."""
    best = _scorer().score_multi(example.references, text)["rougeL"]
    return (100.0 * float(best.fmeasure), 1.0)


def value(totals: Sequence[float]) -> float | None:
    """Mean F1 in points; None without examples."""
    points, examples = totals
    return points / examples if examples else None
