"""SQuAD 1.1 with its passage given, as CALM has it: a question to a short answer.

Apart, because it is one task. Rows are nested in the published JSON (passages, then questions) and
flat on the hub. The test split is nobody's to read: validation serves for both. Not here: a split
of calibration prompts by passage, which CALM's guarantee asks for strictly (2,067 passages in
validation).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import rows, templated


def _unpacked(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row for each question of the published file."""
    return [
        {
            "id": asked["id"],
            "title": article["title"],
            "context": passage["context"],
            "question": asked["question"],
            "answers": {"text": [answer["text"] for answer in asked["answers"]]},
        }
        for article in document["data"]
        for passage in article["paragraphs"]
        for asked in passage["qas"]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(templated.Params):
    """Where the questions come from, and the prompt."""

    hub_id: str | None = "rajpurkar/squad"


class Task(templated.Templated):
    """Questions with all answers that were given."""

    layout = rows.Layout(
        title="SQuAD",
        form=".json",
        files={
            "train": ("train-v1.1", "train", "train-*"),
            "validation": ("dev-v1.1", "validation", "validation-*"),
        },
        columns={"context": (), "question": (), "answers": (), "title": (), "id": ()},
        optional=("title", "id"),
        unpack=_unpacked,
        id_column="id",
        config="plain_text",
    )
    calibration_score = "f1"

    def fields(self, row: rows.Row) -> Mapping[str, str]:
        """``answer`` is the first one."""
        return {
            "title": row["title"] or "",
            "context": row["context"],
            "question": row["question"],
            "answer": row["answers"]["text"][0],
        }

    def references(self, row: rows.Row) -> tuple[str, ...]:
        """All answers, repeated ones too."""
        return tuple(row["answers"]["text"])
