"""A task's training split as ids, and the schedule lengths that follow from it.

Apart from ``training.py``, because a run needs S too, without the Trainer. Not here: evaluation
prompts (``run.py``).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench import prompts
from bench.errors import InputError
from bench.tasks.contract import Parts, Task
from bench.text import Text


@dataclass(frozen=True, slots=True)
class Tokens:
    """One training example: prompt (BOS first), then target and EOS."""

    ids: tuple[int, ...]
    prompt_length: int


def tokenise(task: Task, text: Text, max_positions: int) -> list[Tokens]:
    """The training split as ids.

    Raises:
        InputError: if there is none, or some texts do not fit the position table.
    """
    examples = []
    for pair in task.training_pairs():
        prompt, target = text.prompt(pair.prompt), text.target(pair.target)
        if pair.parts is not None:
            prompt, _ = fitted(pair.parts, text, max_positions - len(target))
        examples.append(Tokens((*prompt, *target), len(prompt)))
    too_long = sum(len(example.ids) > max_positions for example in examples)
    if too_long or not examples:
        raise InputError(
            "The training texts do not fit the model",
            got=f"{too_long} of {len(examples)} texts have more than {max_positions} tokens",
            allowed=f"up to {max_positions} tokens",
            where="model.shape.max_positions",
        )
    return examples


def fitted(parts: Parts, text: Text, room: int) -> tuple[list[int], Parts]:
    """Ids of the longest prompt of these parts that fits, and its parts."""
    kept = prompts.fit(parts, lambda whole: len(text.prompt(whole)), room)
    return text.prompt(kept.text()), kept


def schedule_lengths(examples: Sequence[Tokens]) -> dict[str, int]:
    """S for each clock: median length of the targets (EOS included), and of whole texts."""
    return {
        "generated": round(statistics.median(len(e.ids) - e.prompt_length for e in examples)),
        "position": round(statistics.median(len(e.ids) for e in examples)),
    }
