"""The last checks before weights are read: tokenizer, lengths in tokens, the method's settings.

Apart from ``planning.py``, because tokenizers are heavy to import. Not here: measuring.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench import drawn, executed, lookup, models, presence
from bench.errors import InputError
from bench.examples import fitted, schedule_lengths, tokenise
from bench.planning import Planned, needs_schedule_length, resolve_params
from bench.scores.contract import HasNeeds
from bench.summary import METHOD
from bench.tasks.contract import PublicData, Verbatim
from bench.text import Text, until


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that was checked and may start.

    Attributes:
        planned: what runs.
        device: where.
        params: the method's complete settings.
        text: the tokenizer; none is needed where prompts are drawn.
        rows: prompt ids of the examples; of a later turn those without the earlier answer.
        n_truncated: examples whose prompt had to lose something.
        first_prompt: text of the first one as it is decoded; None where nothing is text.
    """

    planned: Planned
    device: torch.device
    params: Any
    text: Text
    rows: Sequence[Sequence[int]]
    n_truncated: int = 0
    first_prompt: str | None = None

    @property
    def room(self) -> int:
        """Most tokens of a prompt, so that all new ones have positions."""
        return prompt_room(self.planned)

    @property
    def positions(self) -> int:
        """Prompt and new tokens of the longest row, an earlier turn's answer included."""
        new = self.planned.config.max_new_tokens
        pairs = zip(self.rows, self.planned.examples, strict=True)
        longest = max(len(row) + (0 if each.after is None else new) for row, each in pairs)
        return min(longest, self.room) + new

    def about(self) -> dict[str, Any]:
        """What is decoded, for a reader: where it came from, and the first prompt exactly."""
        task, split = self.planned.task, self.planned.config.task.split
        source = task.about(split) if isinstance(task, PublicData) else {}
        prompt = {"first_prompt": self.first_prompt, "first_prompt_ids": list(self.rows[0])}
        return {**source, **prompt}

    def scored_text(self, ids: Sequence[int]) -> str:
        """The text of new ids up to the first stop id or stop text."""
        task = self.planned.task
        stops = task.stops if isinstance(task, PublicData) else ()
        if isinstance(task, Verbatim):
            return until(self.text.verbatim(ids), stops)
        return until(self.text.decode(ids), stops).strip()


def prepare(planned: Planned) -> Prepared:
    """Checks what only tokens can tell, before any weight is read.

    Raises:
        InputError: for a missing tokenizer, device or sandbox, or prompts that are too long.
    """
    own, config = planned.weights[METHOD], planned.config
    executed.refuse_without_sandbox(planned.examples)
    n_truncated, first = 0, None
    _check_scores(planned)
    if planned.drawn:
        text = Text(None, own.shape)
        shapes = [each.shape for each in planned.weights.values()]
        rows = drawn.rows(planned.examples, text.bos, shapes)
    else:
        text = models.text_of(own, config.model.tokenizer)
        rows, n_truncated, first = _rows(planned, text)
    _check_lengths(planned, rows)
    known = dict(planned.known)
    if needs_schedule_length(config, own):
        if planned.drawn:
            lengths = drawn.schedule_lengths(rows, config.max_new_tokens)
        else:
            lengths = schedule_lengths(tokenise(planned.task, text, own.shape.max_positions))
        known["schedule_length"] = lengths[config.method.params.clock]
    return Prepared(
        planned=planned,
        device=presence.resolve(planned.profile),
        params=resolve_params(config, own, known),
        text=text,
        rows=rows,
        n_truncated=n_truncated,
        first_prompt=first,
    )


def prompt_room(planned: Planned) -> int:
    """Most tokens of a prompt that leave positions for all new ones, in every leg's model."""
    most = min(each.shape.max_positions for each in planned.weights.values())
    return most - planned.config.max_new_tokens


def _rows(planned: Planned, text: Text) -> tuple[list[list[int]], int, str]:
    """Prompt ids of all examples, how many lost something, and the first prompt's text."""
    rows, texts, room = list[list[int]](), list[str](), prompt_room(planned)
    for example in planned.examples:
        if example.parts is None:
            row, prompt = text.prompt(example.prompt), example.prompt
        else:
            row, kept = fitted(example.parts, text, room)
            prompt = kept.text()
        rows.append(row)
        texts.append(prompt)
    cut = sum(p != each.prompt for p, each in zip(texts, planned.examples, strict=True))
    return rows, cut, texts[0]


def _check_scores(planned: Planned) -> None:
    """Refuses a score that could not be made in the end."""
    for name in planned.task.scores:
        score = lookup.find("bench.scores", name, "score")
        if isinstance(score, HasNeeds):
            score.check()


def _check_lengths(planned: Planned, rows: Sequence[Sequence[int]]) -> None:
    """Refuses prompts that could run past a position table."""
    new, room = planned.config.max_new_tokens, prompt_room(planned)
    longest = max(range(len(rows)), key=lambda index: len(rows[index]))
    if len(rows[longest]) > room:
        raise InputError(
            "A prompt does not fit the model's positions",
            got=f"example {planned.examples[longest].id}: {len(rows[longest])} tokens + {new} new",
            allowed=f"{room + new} in all",
            where="decode.max_new_tokens, task.split",
        )
