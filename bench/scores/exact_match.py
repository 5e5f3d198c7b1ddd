"""Exact match: the text is one of the references, white space collapsed, case kept.

Apart, because it is one score. Not here: without case (``exact_match_uncased.py``); SQuAD's, which
drops punctuation and articles (``squad_exact_match.py``); a number in a longer text
(``gsm8k_strict.py``); LayerSkip's benchmark, which gives this name to an edit distance.
"""

from collections.abc import Sequence
from typing import Literal

from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """1 for a match, and 1 for the example."""
    wanted = {" ".join(reference.split()) for reference in example.references}
    return (float(" ".join(text.split()) in wanted), 1.0)


def value(totals: Sequence[float]) -> float | None:
    """Share of examples that match; None without examples."""
    matches, examples = totals
    return matches / examples if examples else None
