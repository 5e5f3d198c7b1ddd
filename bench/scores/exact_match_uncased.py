"""Exact match, case aside: the text is one of the references, white space collapsed.

Apart, because it is one score. Not here: with case (``exact_match.py``).
"""

from dataclasses import replace

from bench.scores import exact_match
from bench.scores.exact_match import better, unit, value
from bench.tasks.contract import Example

__all__ = ["better", "statistics", "unit", "value"]


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """1 for a match, and 1 for the example."""
    lower = tuple(reference.lower() for reference in example.references)
    return exact_match.statistics(text.lower(), replace(example, references=lower))
