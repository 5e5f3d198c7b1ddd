"""Slot error rate: the share of wanted facts that a text does not state exactly once.

Apart, because it is one score, and because BLEU and ROUGE hardly move when a text drops a fact or
makes one up, which is how early exit does harm. Per example and slot of the vocabulary, one error
if

- the slot is wanted and its value is not stated (missing), or
- another value of it is stated (wrong, or made up where the slot is not wanted), or
- the right value is stated more than once (repeated).

A slot is at most one error, so a wrong value in place of the right one counts once. The rate is
errors / wanted slots, summed over examples: the same divisor for every method. It passes 1 where
slots made up outnumber those that are right. A value is stated where one of its wordings
stands in the text as a run of whole words, whatever the case and punctuation: so it is exact if the
task's wordings are (``Example.vocabulary``). Not here: a guess of slots for data without wordings.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "lower"

_NOT_WORD = re.compile(r"[\W_]+")


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """Slots in error and slots wanted; (0, 0) for an example without facts to check."""
    if example.facts is None or example.vocabulary is None:
        return (0.0, 0.0)
    words = _words(text)
    errors = 0
    for slot, wordings in example.vocabulary.items():
        wanted = {example.facts[slot]: 1} if slot in example.facts else {}
        errors += _stated(words, wordings) != wanted
    return (float(errors), float(len(example.facts)))


def value(totals: Sequence[float]) -> float | None:
    """Errors per wanted slot; None where no slot is wanted."""
    errors, slots = totals
    return errors / slots if slots else None


def _stated(words: str, wordings: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Value -> how often the text states it, for the values of one slot that it states."""
    counts = {
        value: sum(words.count(_words(wording)) for wording in choices)
        for value, choices in wordings.items()
    }
    return {value: count for value, count in counts.items() if count}


@lru_cache(maxsize=2**12)
def _words(text: str) -> str:
    """Lower-case words, each with its own space on both sides, so that ``count`` finds whole ones.

    Two spaces between neighbours let a wording be counted twice in a row.
    """
    return "".join(f" {word} " for word in _NOT_WORD.sub(" ", text.lower()).split())
