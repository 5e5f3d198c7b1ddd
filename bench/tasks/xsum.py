"""XSum: a BBC article to one sentence about it.

Apart, because it is one task. Not here: ROUGE (``bench/scores/``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bench import rows, templated


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(templated.Params):
    """Where the documents come from, and the prompt."""

    hub_id: str | None = "EdinburghNLP/xsum"


class Task(templated.Templated):
    """Documents with their summary."""

    layout = rows.Layout(
        title="XSum",
        form=".parquet",
        files={
            "train": ("train-*", "train"),
            "validation": ("validation-*", "validation"),
            "test": ("test-*", "test"),
        },
        columns={"document": (), "summary": (), "id": ()},
        optional=("id",),
        may_be_empty=("document",),
        id_column="id",
    )
    calibration_score = "rouge_l"

    def fields(self, row: rows.Row) -> Mapping[str, str]:
        """As in the data set."""
        return {"document": row["document"], "summary": row["summary"]}

    def references(self, row: rows.Row) -> tuple[str, ...]:
        """The summary."""
        return (row["summary"],)
