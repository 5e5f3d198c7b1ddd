"""The answer within a text: GSM8K's number, SQuAD's words.

Apart, because several scores judge the same extracted answer. Both follow the published rules: lm-
eval's task ``gsm8k`` (version 3) and SQuAD 1.1's script. Not here: scores.
"""

import re
import string
from collections.abc import Sequence

INVALID = "[invalid]"
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def strict_number(text: str) -> str:
    """The number behind the first ``#### ``; ``[invalid]`` without one."""
    found = _STRICT.search(text)
    return INVALID if found is None else _plain(found[1])


def flexible_number(text: str) -> str:
    """The last number of a text; ``[invalid]`` without one."""
    found = _FLEXIBLE.findall(text)
    return _plain(next(filter(None, found[-1]))) if found else INVALID


def gold_number(reference: str) -> str:
    """Of a reference: the number behind ``#### ``, or of a text without it the last one."""
    found = strict_number(reference)
    return flexible_number(reference) if found == INVALID else found


def is_gold(number: str, references: Sequence[str]) -> bool:
    """Whether a number that was found is that of a reference."""
    return number != INVALID and number in map(gold_number, references)


def _plain(number: str) -> str:
    """Without thousands commas, dollar signs and a final full stop."""
    return number.replace(",", "").replace("$", "").removesuffix(".")


def squad_words(text: str) -> list[str]:
    """Words in lower case, without ASCII punctuation and without a, an and the."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()
