"""Spec-Bench: its question file, in a conversation of up to two turns.

Apart, because it is one task. First come all first turns in the file's order, then all second ones:
a second turn holds the model's own first answer (``bench/turns.py``). There is no score: a quarter
of the questions have no reference, and what is claimed of the answers is that they are those of the
dense model. An example's id is ``question.turn``. Not here: speed by category, which the records
give by these ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from bench import rows
from bench.errors import InputError
from bench.tasks.contract import Example, Parts, Split

MT_BENCH = (
    *("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem"),
    "humanities",
)
_LAYOUT = rows.Layout(
    title="Spec-Bench",
    form=".jsonl",
    files={"test": ("question",)},
    columns={"question_id": (), "category": (), "turns": (), "reference": ()},
    optional=("reference",),
    id_column="question_id",
    config="spec_bench",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(rows.Place):
    """Where the file is, and the conversation's template.

    Attributes:
        template: of a question with what stands before it; holds ``{question}``.
        next_template: of a second one; holds ``{first}``, ``{answer}`` and ``{question}``.
        category: of the questions, or ``mt_bench`` for its eight together; None for all.
        max_prompt_tokens: cap of a prompt, BOS included; None for what the model has room for.
        stop: text that ends an answer, beside EOS.
    """

    template: str
    next_template: str
    category: str | None = None
    max_prompt_tokens: int | None = None
    stop: tuple[str, ...] = ()


class Task:
    """The questions."""

    scores: tuple[str, ...] = ()
    # Its second turns follow answers: there is nothing to decode twice.
    calibration_score: str | None = None

    def __init__(self, params: Params) -> None:
        self._params, self.stops = params, params.stop
        self._about: dict[str, Any] = {}

    def examples(self, split: Split) -> Sequence[Example]:
        """All first turns, then all second ones."""
        found = rows.read(_LAYOUT, self._params, split)
        asked = [row for row in found if self._wanted(row["category"])]
        if not asked:
            raise InputError(
                "Spec-Bench has no such category",
                got=self._params.category,
                allowed=", ".join(dict.fromkeys(["mt_bench", *(r["category"] for r in found)])),
                where="task.category",
            )
        self._about = {
            "source": found.source,
            "file_hash": found.file_hash,
            "rows": len(found),
            "questions": len(asked),
        }
        seconds = [row for row in asked if len(row["turns"]) > 1]
        return [*map(self._first, asked), *map(self._second, seconds)]

    def training_pairs(self) -> NoReturn:
        """There is nothing to learn from questions."""
        raise InputError(
            "The task has no texts to train on",
            got="task=spec_bench",
            allowed="a task with a training split",
            where="task=NAME",
        )

    def about(self, split: Split) -> Mapping[str, Any]:
        """Where the questions came from."""
        return self._about

    def _wanted(self, category: str) -> bool:
        wanted = self._params.category
        names = MT_BENCH if wanted == "mt_bench" else (wanted,)
        return wanted is None or category in names

    def _first(self, row: rows.Row) -> Example:
        fields = _fields(row)
        template = self._params.template
        # What is cut must not be the question behind the passages.
        inner = "{passages}\n{question}" if "passages" in fields else "{question}"
        parts = self._parts(template.replace("{question}", inner), fields)
        return Example(f"{row['id']}.1", parts.text(), (), parts=parts)

    def _second(self, row: rows.Row) -> Example:
        first, second = row["turns"][:2]
        fields = {"first": first, "answer": "", "question": second}
        parts = self._parts(self._params.next_template, fields)
        return Example(f"{row['id']}.2", parts.text(), (), parts=parts, after=f"{row['id']}.1")

    def _parts(self, template: str, fields: Mapping[str, str]) -> Parts:
        return Parts(template, fields, max_tokens=self._params.max_prompt_tokens)


def _fields(row: rows.Row) -> dict[str, str]:
    """The first turn's; passages apart from the question that stands behind them."""
    text = row["turns"][0]
    passages, line_break, question = text.rpartition("\n")
    if row["category"] == "rag" and line_break:
        return {"passages": passages, "question": question}
    return {"question": text}
