"""Tasks of one form: a row of a data set fills a template, some others may stand before it.

Apart, because a prompt is data (``conf/task/``), and what is done with it is the same for every
data set: worked examples, order, what belongs into the record. Not here: fields of a data set
(``bench/tasks/``), how a prompt is made to fit (``prompts.py``).
"""

import difflib
import hashlib
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import lookup, rows
from bench.errors import InputError
from bench.tasks.contract import Example, Pair, Parts, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(rows.Place):
    """Settings that templated tasks share.

    Attributes:
        template: of the prompt; a field stands in it as ``{name}``.
        target: template of what is trained on behind it.
        shot_template: of a worked example, whole; empty where there can be none.
        shots: worked examples before the prompt, from the training split.
        shots_end: what follows them, where there are some.
        shots_seed: of their choice.
        shuffle_seed: of the order of the examples; None for the order of the rows.
        max_prompt_tokens: cap of a prompt, BOS included; None for what the model has room for.
        stop: text that ends an answer, beside EOS; it and what follows it is not scored.
        train_rows: training pairs, the first of the shuffled split; None for all, in their order.
        scores: names of files in ``bench/scores``.
    """

    template: str
    target: str
    shot_template: str = ""
    shots: int = 0
    shots_end: str = ""
    shots_seed: int = 0
    shuffle_seed: int | None = None
    max_prompt_tokens: int | None = None
    stop: tuple[str, ...] = ()
    train_rows: int | None = None
    scores: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("shots", 0), ("max_prompt_tokens", 1), ("train_rows", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(
                    f"Setting task.{name} is too small",
                    got=value,
                    allowed=f"{least} and up",
                    where=f"task.{name}",
                )
        if self.shots and not self.shot_template:
            raise InputError(
                "There is no template for worked examples",
                got=f"task.shots={self.shots}",
                allowed="task.shots=0, or a template of a whole example",
                where="task.shot_template",
            )
        known = lookup.names("bench.scores")
        for name in self.scores:
            if name not in known:
                near = ", ".join(difflib.get_close_matches(name, known))
                raise InputError(
                    "There is no score of this name",
                    got=f"{name} (near: {near})" if near else name,
                    allowed=", ".join(known),
                    where="task.scores",
                )


class Templated(ABC):
    """A task whose prompts are filled templates; a data set gives what follows.

    Attributes:
        layout: of its rows.
        calibration_score: as in ``Task``.
        cut_at: where a field may be cut that is too long.
    """

    layout: rows.Layout
    calibration_score: str | None = None
    cut_at = " "

    def __init__(self, params: Params) -> None:
        self._params = params
        self.scores, self.stops = params.scores, params.stop
        self._about: dict[Split, dict[str, Any]] = {}

    @abstractmethod
    def fields(self, row: rows.Row) -> Mapping[str, str] | None:
        """What a template may hold, of a row; None for a row that makes no example."""

    @abstractmethod
    def references(self, row: rows.Row) -> tuple[str, ...]:
        """Correct or human texts for a row."""

    def examples(self, split: Split) -> Sequence[Example]:
        """One example per row, in the rows' order or, with ``shuffle_seed``, in a shuffled one."""
        params = self._params
        found = rows.read(self.layout, params, split)
        shots = self._shots(found, split)
        seed = params.shuffle_seed
        order = range(len(found)) if seed is None else shuffled(len(found), seed)
        chosen = found if seed is None else (found[index] for index in order)
        examples = []
        for index, row in zip(order, chosen, strict=True):
            fields = self.fields(row)
            if fields is None:
                continue
            # Asked about a training row, its own answer must not stand there.
            before = [each for each in shots if split != "train" or each[0] != index]
            parts = self._parts(fields, [text for _, _, text in before[: params.shots]])
            examples.append(Example(row["id"], parts.text(), self.references(row), parts=parts))
        self._about[split] = {
            "source": found.source,
            "file_hash": found.file_hash,
            "hub_revision": params.hub_revision,
            "rows": len(found),
            "distinct_prompts": len({each.prompt for each in examples}),
            "shot_ids": [name for _, name, _ in shots[: params.shots]],
            "shots_seed": params.shots_seed,
            "shuffle_seed": seed,
        }
        return examples

    def training_pairs(self) -> Sequence[Pair]:
        """One pair per training row, without worked examples."""
        params = self._params
        found = rows.read(self.layout, params, "train")
        limit = params.train_rows
        kept = found if limit is None else (found[i] for i in shuffled(len(found), 0)[:limit])
        pairs = []
        for row in kept:
            fields = self.fields(row)
            if fields is not None:
                parts = self._parts(fields, [])
                pairs.append(Pair(parts.text(), self._filled("target", fields), parts))
        return pairs

    def about(self, split: Split) -> Mapping[str, Any]:
        """Where examples that were asked for came from."""
        return self._about.get(split, {})

    def _shots(self, found: rows.Rows, split: Split) -> list[tuple[int, str, str]]:
        """Index, id and text of the worked examples; one to spare where a row may be its own."""
        params = self._params
        if not params.shots:
            return []
        train = found if split == "train" else rows.read(self.layout, params, "train")
        wanted = params.shots + (split == "train")
        shots = []
        for index in shuffled(len(train), params.shots_seed):
            row = train[index]
            fields = self.fields(row)
            if fields is not None:
                shots.append((index, row["id"], self._filled("shot_template", fields)))
            if len(shots) == wanted:
                break
        return shots

    def _parts(self, fields: Mapping[str, str], shots: Sequence[str]) -> Parts:
        params = self._params
        self._filled("template", fields)
        used = {name for _, name, _, _ in string.Formatter().parse(params.template) if name}
        return Parts(
            template=params.template,
            fields={name: fields[name] for name in sorted(used)},
            shots=tuple(shots),
            shots_end=params.shots_end,
            max_tokens=params.max_prompt_tokens,
            cut_at=self.cut_at,
        )

    def _filled(self, which: str, fields: Mapping[str, str]) -> str:
        template: str = getattr(self._params, which)
        try:
            return template.format_map(fields)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise InputError(
                "The template cannot be filled",
                got=f"{template!r}: {error}",
                allowed=f"{', '.join('{' + name + '}' for name in fields)}; a brace is {{{{",
                where=f"task.{which}",
            ) from error


def shuffled(number: int, seed: int) -> list[int]:
    """0 to ``number`` - 1 in an order that depends on nothing but the two."""

    def key(index: int) -> bytes:
        return hashlib.sha256(f"{seed}:{index}".encode()).digest()

    return sorted(range(number), key=key)
