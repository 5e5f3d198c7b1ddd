"""CNN/DailyMail 3.0.0: a news article to its highlights.

Apart, because it is one task. Not here: the form without a cue (``cnn_dm_lm.py``), the ``.story``
files that the data set was first made of.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bench import rows, templated

LAYOUT = rows.Layout(
    title="CNN/DM",
    form=".parquet",
    files={
        "train": ("train-*", "train"),
        "validation": ("validation-*", "validation"),
        "test": ("test-*", "test"),
    },
    columns={"article": (), "highlights": (), "id": ()},
    optional=("id",),
    id_column="id",
    config="3.0.0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(templated.Params):
    """Where the articles come from, and the prompt."""

    hub_id: str | None = "abisee/cnn_dailymail"


class Task(templated.Templated):
    """Articles; ``highlights_line`` is the highlights with their line breaks taken out."""

    layout = LAYOUT
    calibration_score = "rouge_l"

    def fields(self, row: rows.Row) -> Mapping[str, str]:
        """LayerSkip's worked examples glue sentences ("end .Next"): hence ``highlights_line``."""
        highlights = row["highlights"]
        return {
            "article": row["article"],
            "highlights": highlights,
            "highlights_line": highlights.replace("\n", ""),
        }

    def references(self, row: rows.Row) -> tuple[str, ...]:
        """The highlights, one sentence a line."""
        return (row["highlights"],)
