"""Exact match: the text is one of the references, white space collapsed, case kept.

Apart, because it is one score. Not here: without case (``exact_match_uncased.py``); SQuAD's, which
drops punctuation and articles (``squad_exact_match.py``); a number in a longer text
(``gsm8k_strict.py``); LayerSkip's benchmark, which gives this name to an edit distance.
"""

from typing import Literal

from bench.scores.contract import mean
from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"
value = mean


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """1 for a match, and 1 for the example."""
    wanted = {" ".join(reference.split()) for reference in example.references}
    return (float(" ".join(text.split()) in wanted), 1.0)
