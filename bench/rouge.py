"""ROUGE of the ``rouge_score`` package: Porter stems, F1, best reference, mean over examples.

Apart, because four scores differ by one key. Text is lower-cased, all but a-z and 0-9 divides
words, words of more than three letters are stemmed; so text without such letters scores 0. The best
reference is the one with the highest F1. Not here: other conventions (docs/tasks.md), which never
share a column with these.
"""

from collections.abc import Callable
from functools import cache, lru_cache

from rouge_score import rouge_scorer, tokenizers

from bench.tasks.contract import Example


class _RememberingTokenizer:
    """Stems a text once: a reference is scored again for every method and every run in a sweep."""

    def __init__(self) -> None:
        stem = tokenizers.DefaultTokenizer(use_stemmer=True).tokenize
        self.tokenize = lru_cache(maxsize=2**15)(stem)


_TOKENIZER = _RememberingTokenizer()


@cache
def _scorer(key: str) -> rouge_scorer.RougeScorer:
    return rouge_scorer.RougeScorer([key], tokenizer=_TOKENIZER)


def statistics_of(key: str) -> Callable[[str, Example], tuple[float, ...]]:
    """``Score.statistics`` of one of the package's keys, such as ``rougeLsum``."""

    def statistics(text: str, example: Example) -> tuple[float, ...]:
        """F1 against the best reference in points, and 1 for the example."""
        best = _scorer(key).score_multi(example.references, text)[key]
        return (100.0 * float(best.fmeasure), 1.0)

    return statistics
