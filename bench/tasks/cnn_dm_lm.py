"""CNN/DailyMail as plain text to go on with: an article's first words to the rest of it.

Apart, because it is one task: neither prompt nor reference is that of the summaries. As in
LayerSkip's benchmark: words are what white space divides, joined by single spaces. Not here: the
rows (``cnn_dm.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bench import rows, templated
from bench.tasks import cnn_dm


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(cnn_dm.Params):
    """Where the articles come from.

    Attributes:
        prompt_words: words of an article that are given.
    """

    prompt_words: int = 100


class Task(templated.Templated):
    """Articles with more words than are given."""

    layout = cnn_dm.LAYOUT
    calibration_score = "rouge_l"

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._given = params.prompt_words

    def fields(self, row: rows.Row) -> Mapping[str, str] | None:
        """``beginning`` and ``rest``; None for an article that has no rest."""
        words = row["article"].split()
        if len(words) <= self._given:
            return None
        return {
            "beginning": " ".join(words[: self._given]),
            "rest": " ".join(words[self._given :]),
        }

    def references(self, row: rows.Row) -> tuple[str, ...]:
        """The rest of the article."""
        return (" ".join(row["article"].split()[self._given :]),)
