"""Prompts that fit: too long ones lose worked examples first, then the end of their longest field.

Apart, because cutting ids off a prompt's end would take away the cue that a model answers to, and
because how many prompts were cut belongs into the record. Free of torch. Not here: templates, which
are data (``conf/task/``); what a token is (``text.py``).
"""

from collections.abc import Callable
from dataclasses import replace

from bench.tasks.contract import Parts


def fit(parts: Parts, count: Callable[[str], int], room: int) -> Parts:
    """The parts of the longest prompt that fits; where none does, the shortest there is.

    Args:
        parts: of the whole prompt.
        count: tokens of a text, BOS included.
        room: most tokens of a prompt.
    """
    most = room if parts.max_tokens is None else min(room, parts.max_tokens)

    def fits(tried: Parts) -> bool:
        return count(tried.text()) <= most

    while not fits(parts):
        if not parts.shots:
            return _cut(parts, fits)
        # The last ones are nearest to what is asked: they stay longest.
        parts = replace(parts, shots=parts.shots[1:])
    return parts


def _cut(parts: Parts, fits: Callable[[Parts], bool]) -> Parts:
    """With as much of the longest field's beginning as fits."""
    longest = max(parts.fields, key=lambda name: len(parts.fields[name]))
    pieces = parts.fields[longest].split(parts.cut_at)

    def keep(number: int) -> Parts:
        kept = parts.cut_at.join(pieces[:number])
        return replace(parts, fields={**parts.fields, longest: kept})

    low, high = 0, len(pieces)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(keep(middle)):
            low = middle
        else:
            high = middle - 1
    return keep(low)
