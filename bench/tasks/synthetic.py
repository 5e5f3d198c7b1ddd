"""Synthetic: prompts of given lengths and so many new tokens; no text, no references, no score.

Apart, because it is one task: for speed alone, with random weights, at any model's shape. The
lengths of a range are spread evenly by whole-number steps of the golden ratio: any first N of them,
and so every batch, cover the whole range. Neither batch size nor the seed of a run changes a
prompt. Not here: the ids, which depend on a model's vocabulary (``bench/drawn.py``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from bench.errors import InputError
from bench.tasks.contract import Drawn, Example, Split

NUM_EXAMPLES = 16384
_STREAMS: Mapping[Split, int] = {"train": 201, "validation": 202, "test": 203}
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
# 2**64 divided by the golden ratio: its multiples divide a circle as evenly as can be.
_STEP, _CIRCLE = 0x9E3779B97F4A7C15, 2**64


@dataclass(frozen=True, slots=True)
class Params:
    """Settings of the task.

    Attributes:
        prompt_lengths: tokens of every prompt, BOS included; or ``low..high``.
    """

    prompt_lengths: int | str

    def __post_init__(self) -> None:
        low, high = self.ends()
        if not 1 <= low <= high:
            self._refuse()

    def ends(self) -> tuple[int, int]:
        """The shortest and the longest length, in tokens."""
        given = self.prompt_lengths
        if isinstance(given, int):
            return given, given
        found = _RANGE.fullmatch(given)
        if found is None:
            self._refuse()
        return int(found[1]), int(found[2])

    def _refuse(self) -> NoReturn:
        raise InputError(
            "Cannot make prompts of these lengths",
            got=self.prompt_lengths,
            allowed="tokens of every prompt, such as 64; or a range from 1 up, such as 16..128",
            where="task.prompt_lengths",
        )


class Task:
    """Prompts that are nothing but long."""

    scores: tuple[str, ...] = ()
    calibration_score: str | None = None

    def __init__(self, params: Params) -> None:
        self._low, self._high = params.ends()

    def examples(self, split: Split) -> Sequence[Example]:
        """The first is the longest, so that what does not fit shows at once."""
        return [
            Example(str(n), "", (), drawn=Drawn(_STREAMS[split], n, self._length(n)))
            for n in range(NUM_EXAMPLES)
        ]

    def training_pairs(self) -> NoReturn:
        """There is nothing to learn."""
        raise InputError(
            "The task has no texts to train on",
            got="task=synthetic",
            allowed="a task with texts",
            where="task=NAME",
        )

    def _length(self, number: int) -> int:
        lengths = self._high - self._low + 1
        return self._high - number * _STEP % _CIRCLE * lengths // _CIRCLE
