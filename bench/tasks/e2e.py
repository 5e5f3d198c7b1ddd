"""E2E NLG: restaurant facts (a meaning representation, MR) to an English text.

Apart, because it is one task. Evaluation has one example per distinct MR with all its references
(duplicates kept, as in the challenge), not one per row, which would weigh an MR by how often it was
described. Not here: facts to check, since the texts were written freely and hold no exact wordings;
the challenge's own METEOR, NIST and CIDEr.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import rows
from bench.tasks.contract import Example, Pair, Split

_LAYOUT = rows.Layout(
    title="E2E",
    form=".csv",
    files={
        "train": ("trainset", "train", "train-*"),
        "validation": ("devset", "validation", "validation-*"),
        "test": ("testset_w_refs", "test", "test-*"),
    },
    columns={"mr": ("meaning_representation",), "ref": ("human_reference",)},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(rows.Place):
    """Where the rows come from."""

    hub_id: str | None = "tuetschek/e2e_nlg"


class Task:
    """The E2E data set; an example's id is the row (0-based) in which its MR comes first."""

    scores: tuple[str, ...] = ("bleu", "rouge_l")
    calibration_score: str | None = "rouge_l"
    stops: tuple[str, ...] = ()

    def __init__(self, params: Params) -> None:
        self._params = params
        self._about: dict[Split, dict[str, Any]] = {}

    def examples(self, split: Split) -> Sequence[Example]:
        """One example per distinct MR, in the order of first occurrence."""
        groups: dict[str, tuple[str, list[str]]] = {}
        found = rows.read(_LAYOUT, self._params, split)
        for row in found:
            groups.setdefault(row["mr"], (row["id"], []))[1].append(row["ref"])
        self._about[split] = {
            "source": found.source,
            "file_hash": found.file_hash,
            "hub_revision": self._params.hub_revision,
            "rows": len(found),
            "distinct_prompts": len(groups),
        }
        return [
            Example(id=name, prompt=_prompt(mr), references=tuple(references))
            for mr, (name, references) in groups.items()
        ]

    def training_pairs(self) -> Sequence[Pair]:
        """One pair per row; runs of white space in a target become one space."""
        return [
            Pair(_prompt(row["mr"]), " ".join(row["ref"].split()))
            for row in rows.read(_LAYOUT, self._params, "train")
        ]

    def about(self, split: Split) -> Mapping[str, Any]:
        """Where examples that were asked for came from."""
        return self._about.get(split, {})


def _prompt(mr: str) -> str:
    return f"{mr}\n"
