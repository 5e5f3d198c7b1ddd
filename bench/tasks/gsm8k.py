"""GSM8K: a word problem to its working and a number.

Apart, because it is one task. There is no validation split: what is tuned is tuned on train. Not
here: which number of a text is the answer (``bench/answers.py``); the fixed examples of the
chain-of-thought paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bench import rows, templated


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(templated.Params):
    """Where the problems come from, and the prompt."""

    hub_id: str | None = "openai/gsm8k"


class Task(templated.Templated):
    """Problems; an example's id is its row, from 0."""

    layout = rows.Layout(
        title="GSM8K",
        form=".jsonl",
        files={"train": ("train", "train-*"), "test": ("test", "test-*")},
        columns={"question": (), "answer": ()},
        config="main",
    )
    calibration_score = "gsm8k_flexible"

    def fields(self, row: rows.Row) -> Mapping[str, str]:
        """As in the data set; the answer with its calculator marks."""
        return {"question": row["question"], "answer": row["answer"]}

    def references(self, row: rows.Row) -> tuple[str, ...]:
        """The working, ended by ``#### `` and the number."""
        return (row["answer"],)
