"""The last checks before weights are read: tokenizer, lengths in tokens, the method's settings.

Apart from ``planning.py``, because tokenizers are heavy to import. Not here: measuring.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench import drawn, models
from bench.errors import InputError
from bench.examples import schedule_lengths, tokenise
from bench.meters import device as devices
from bench.planning import Planned, needs_schedule_length, resolve_params
from bench.summary import METHOD
from bench.text import Text


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that was checked and may start.

    Attributes:
        planned: what runs.
        device: where.
        params: the method's complete settings.
        text: the tokenizer; none is needed where prompts are drawn.
        rows: prompt ids of the examples.
    """

    planned: Planned
    device: torch.device
    params: Any
    text: Text
    rows: Sequence[Sequence[int]]


def prepare(planned: Planned) -> Prepared:
    """Checks what only tokens can tell, before any weight is read.

    Raises:
        InputError: for a missing tokenizer or device, or prompts that are too long.
    """
    own, config = planned.weights[METHOD], planned.config
    if planned.drawn:
        text = Text(None, own.shape)
        shapes = [each.shape for each in planned.weights.values()]
        rows = drawn.rows(planned.examples, text.bos, shapes)
    else:
        text = models.text_of(own, config.model.tokenizer)
        rows = [text.prompt(example.prompt) for example in planned.examples]
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
        device=devices.resolve(planned.profile),
        params=resolve_params(config, own, known),
        text=text,
        rows=rows,
    )


def _check_lengths(planned: Planned, rows: Sequence[Sequence[int]]) -> None:
    """Refuses prompts that could run past a position table."""
    new = planned.config.max_new_tokens
    room = min(each.shape.max_positions for each in planned.weights.values())
    longest = max(range(len(rows)), key=lambda index: len(rows[index]))
    if len(rows[longest]) + new > room:
        raise InputError(
            "A prompt does not fit the model's positions",
            got=f"example {planned.examples[longest].id}: {len(rows[longest])} tokens + {new} new",
            allowed=f"{room} in all",
            where="decode.max_new_tokens, task.split",
        )
