"""TOPv2: an utterance to an assistant to its bracketed parse.

Apart, because it is one task. The rows of all domains together, the files sorted by name, are a
split. Not here: low-resource splits, whose files lie in a folder of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bench import rows, templated


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(templated.Params):
    """Where the utterances come from, and the layout."""

    hub_id: str | None = "WillHeld/top_v2"


class Task(templated.Templated):
    """Utterances with their parse, words included."""

    layout = rows.Layout(
        title="TOPv2",
        form=".tsv",
        files={
            "train": ("*_train", "train", "train-*"),
            "validation": ("*_eval", "eval", "eval-*"),
            "test": ("*_test", "test", "test-*"),
        },
        columns={"domain": (), "utterance": (), "semantic_parse": ()},
        optional=("domain",),
        hub_splits={"validation": "eval"},
    )
    calibration_score = "exact_match"

    def fields(self, row: rows.Row) -> Mapping[str, str]:
        """As in the data set."""
        return {
            "domain": row["domain"] or "",
            "utterance": row["utterance"],
            "semantic_parse": row["semantic_parse"],
        }

    def references(self, row: rows.Row) -> tuple[str, ...]:
        """The parse."""
        return (row["semantic_parse"],)
