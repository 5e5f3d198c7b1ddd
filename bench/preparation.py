"""What a run needs, found and checked before any weight is read.

Apart from ``run.py``, because a check must be possible without running. Not here: measuring.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench import lookup, models
from bench.config import DENSE, RunConfig
from bench.errors import InputError
from bench.examples import schedule_lengths, tokenise
from bench.meters import device as devices
from bench.models import Weights
from bench.summary import BASELINE, METHOD, OWN_DENSE
from bench.tasks.contract import Example, Task
from bench.text import Text
from methods.registry import find_params


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that was checked and may start.

    Attributes:
        config: as given.
        device: where it runs.
        weights: leg -> weights.
        params: the method's complete settings.
        text: the tokenizer.
        examples: those that are decoded.
        rows: their prompt ids.
        task: for the names of its scores.
        own_reference: the leg that is dense on the method's own weights.
    """

    config: RunConfig
    device: torch.device
    weights: Mapping[str, Weights]
    params: Any
    text: Text
    examples: Sequence[Example]
    rows: Sequence[Sequence[int]]
    task: Task
    own_reference: str | None


def prepare(config: RunConfig) -> Prepared:
    """Finds and checks everything, before any weight is read.

    Raises:
        InputError: for settings, weights, tokenizer or examples that do not go together.
    """
    own = models.method_weights(config.model, config.method.name, config.seed)
    weights = {METHOD: own}
    if _wants_baseline(config):
        weights[BASELINE] = models.baseline_weights(
            config.model, config.method.name, config.meter, own, config.seed
        )
    own_reference = None
    if BASELINE in weights and weights[BASELINE].fingerprint == own.fingerprint:
        own_reference = BASELINE
    elif _wants_own_dense(config):
        weights[OWN_DENSE], own_reference = own, OWN_DENSE
    text = own.text(config.model.tokenizer)
    task: Task = lookup.find("bench.tasks", config.task.name, "task").Task(config.task.params)
    examples = list(task.examples(config.task.split))[: config.task.limit]
    rows = [text.prompt(example.prompt) for example in examples]
    _check_lengths(config, examples, rows, weights)
    return Prepared(
        config=config,
        device=devices.resolve(config.gpu.name),
        weights=weights,
        params=_resolve_params(config, own, task, text),
        text=text,
        examples=examples,
        rows=rows,
        task=task,
        own_reference=own_reference,
    )


def _wants_baseline(config: RunConfig) -> bool:
    wanted = config.meter.baseline
    return wanted in ("dense", "own") or (wanted == "auto" and config.method.name != DENSE)


def _wants_own_dense(config: RunConfig) -> bool:
    lossless = find_params(config.method.name).ABILITIES.lossless
    wanted = config.meter.own_dense
    return wanted == "always" or (wanted == "auto" and lossless and config.method.name != DENSE)


def _resolve_params(config: RunConfig, own: Weights, task: Task, text: Text) -> Any:  # noqa: ANN401  # each method has its own type
    """Complete settings; S from the checkpoint, else from the task's training split."""
    module = find_params(config.method.name)
    known = dict(own.trained)
    unset = getattr(config.method.params, "schedule_length", 0) is None
    if module.ABILITIES.schedule_length and unset and known.get("schedule_length") is None:
        lengths = schedule_lengths(tokenise(task, text, own.shape.max_positions))
        known["schedule_length"] = lengths[config.method.params.clock]
    try:
        return module.resolve(config.method.params, own.shape, known)
    except ValueError as error:
        setting = str(error).split("=", 1)[0]
        raise InputError(
            f"Method {config.method.name} does not fit the model",
            got=error,
            allowed="see the range above",
            where=f"method.{setting}",
        ) from error


def _check_lengths(
    config: RunConfig,
    examples: Sequence[Example],
    rows: Sequence[Sequence[int]],
    weights: Mapping[str, Weights],
) -> None:
    """Refuses prompts that could run past a position table, and a task without examples."""
    if not rows:
        raise InputError(
            "The task has no examples", got=config.task.split, allowed="a split", where="task.split"
        )
    room = min(each.shape.max_positions for each in weights.values()) - config.max_new_tokens
    longest = max(range(len(rows)), key=lambda index: len(rows[index]))
    if len(rows[longest]) > room:
        raise InputError(
            "A prompt does not fit the model's positions",
            got=f"example {examples[longest].id}: {len(rows[longest])} tokens + "
            f"{config.max_new_tokens} new",
            allowed=f"{room + config.max_new_tokens} in all",
            where="decode.max_new_tokens, task.split",
        )


def examples_hash(examples: Sequence[Example]) -> str:
    total = hashlib.sha256()
    for example in examples:
        total.update(repr((example.id, example.prompt, example.references)).encode())
    return total.hexdigest()[:16]
