"""Drawn prompts: what a run is whose task has lengths alone, no text and no score.

Apart, because such prompts need no tokenizer, must be the same in any batch and on any machine, and
bear on how many examples there are, when they end, and how long a schedule is. Free of torch. Not
here: which lengths (``tasks/synthetic.py``), the numbers that sampling draws
(``methods/engine/drawing.py``).
"""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from bench import lookup
from bench.config import RunConfig
from bench.errors import InputError
from bench.tasks.contract import Drawn, Example, Task
from methods.engine.shape import Shape

# Vocabularies have their special, reserved and unused ids at either end; a 64th part holds those of
# all families here, whether or not a tokenizer is there to name them.
_EDGES = 64
# Sampling counts from 0 under keys of the same kind; what is drawn from here on is no number of it.
_COUNTER = (0, 0, 0, 1)


def limit(config: RunConfig) -> int | None:
    """How many examples a run decodes; without a score no more than it times, unless asked to."""
    task: Task = lookup.find("bench.tasks", config.task.name, "task").Task(config.task.params)
    if config.task.limit is None and not task.scores:
        return config.meter.batch_size * config.meter.timed_batches
    return config.task.limit


def check_length(config: RunConfig, examples: Sequence[Example]) -> None:
    """Refuses a stop that means nothing.

    Raises:
        InputError: for drawn prompts up to EOS.
    """
    if examples[0].drawn is not None and config.decode.length != "fixed":
        raise InputError(
            "The prompts are random ids: where a model ends behind them says nothing",
            got=f"task={config.task.name} with decode.length={config.decode.length}",
            allowed="decode=fixed, which this task chooses where nothing else is said",
            where="decode=NAME, decode.length",
        )


def rows(examples: Sequence[Example], bos: int | None, shapes: Sequence[Shape]) -> list[list[int]]:
    """Prompt ids of drawn examples: BOS, then plain ids.

    Args:
        examples: all drawn.
        bos: that the model's prompts begin with; None without one.
        shapes: of all legs: each must know an id, and take it for a plain one.
    """
    start, allowed = [] if bos is None else [bos], plain_ids(shapes)
    prompts = [each.drawn for each in examples if each.drawn is not None]
    return [[*start, *_draw(each, allowed)][: each.tokens] for each in prompts]


def plain_ids(shapes: Sequence[Shape]) -> list[int]:
    """Ids that stand for text in each of these vocabularies, by their shapes alone.

    Raises:
        InputError: if there is none.
    """
    size = min(shape.vocab_size for shape in shapes)
    edge = -(-size // _EDGES)
    special = {
        token
        for shape in shapes
        for token in (shape.bos_token_id, shape.pad_token_id, *shape.eos_token_ids)
    }
    found = [token for token in range(edge, size - edge) if token not in special]
    if not found:
        raise InputError(
            "The vocabulary has no ids to draw prompts from",
            got=f"vocab_size={size}",
            allowed="some ids besides the special ones and those at either end",
            where="model.shape.vocab_size",
        )
    return found


def schedule_lengths(rows: Sequence[Sequence[int]], new_tokens: int) -> Mapping[str, int]:
    """S for each clock, as ``examples.schedule_lengths`` has it of texts: all end at the limit."""
    prompt = statistics.median(map(len, rows))
    return {"generated": new_tokens, "position": round(prompt + new_tokens)}


def _draw(prompt: Drawn, allowed: Sequence[int]) -> list[int]:
    """As many ids as the prompt is long, all allowed ones equally likely."""
    key = np.array([prompt.stream, prompt.number], dtype=np.uint64)
    counter = np.array(_COUNTER, dtype=np.uint64)
    # The raw stream is what numpy promises never to change.
    raw = np.random.Philox(key=key, counter=counter).random_raw(prompt.tokens)
    return [allowed[int(number) * len(allowed) >> 64] for number in raw]
