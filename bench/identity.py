"""What makes two runs the same run: an explicit list of all that bears on a number.

Apart, because adding a field must be a decision: it states the value that old runs had, and is
left out when equal. Free of torch. Not here: code version, device, libraries; they stand in the
header.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.config import RunConfig

IDENTITY_VERSION = 1
# Of a task's own settings, those that bear on a number and on no prompt.
TASK_SETTINGS = ("scores", "stop", "train_rows")
# Fields that came later, by their path such as ``meter.energy``, each with the value that runs
# before it had: equal to that it is left out, so that those runs keep their ids.
ADDED_LATER: Mapping[str, Any] = {
    "meter.profile": False,
    "meter.energy": False,
    "decode.sample": None,
    "engine.attention": "auto",
    "engine.compile": False,
    "engine.cuda_graphs": False,
    "engine.drop_finished": False,
    "method.mode": "skip",
    **{f"task.{name}": None for name in TASK_SETTINGS},
}


def digest(content: Mapping[str, Any]) -> str:
    """A short hash of plain data, independent of the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def identity(
    config: RunConfig,
    *,
    device: str,
    weights: Mapping[str, str],
    resolved: Mapping[str, Any],
    examples: str,
) -> dict[str, Any]:
    """The fields whose hash is the run's id.

    Args:
        config: the run.
        device: resolved gpu profile name.
        weights: fingerprint of each leg's weights.
        resolved: the method's complete settings.
        examples: hash of the prompts and references that are decoded.
    """
    decode, meter = config.decode, config.meter
    names = {
        "identity_version": IDENTITY_VERSION,
        "method": {"name": config.method.name, **resolved},
        "weights": dict(weights),
        "task": _task(config) | {"examples": examples},
        "decode": {
            "length": decode.length,
            "max_new_tokens": config.max_new_tokens,
            "choose": decode.choose,
            "sample": _sample(config),
        },
        "meter": {
            "batch_size": meter.batch_size,
            "warmups": meter.warmups,
            "repeats": meter.repeats,
            "timed_batches": meter.timed_batches,
            "baseline": meter.baseline,
            "own_dense": meter.own_dense,
            "profile": meter.profile,
            "energy": meter.energy,
        },
        "engine": asdict(config.engine),
        "gpu": device,
        "seed": config.seed,
    }
    return without_added(names, ADDED_LATER)


def _task(config: RunConfig) -> dict[str, Any]:
    """The task, and those of its own settings that its prompts do not show."""
    task = config.task
    own = {name: getattr(task.params, name, None) or None for name in TASK_SETTINGS}
    return {"name": task.name, "split": task.split, **own}


def _sample(config: RunConfig) -> dict[str, Any] | None:
    """How tokens are drawn; None where none is."""
    decode = config.decode
    if decode.choose == "greedy":
        return None
    return {name: getattr(decode, name) for name in ("temperature", "top_k", "top_p")}


def without_added(names: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """``names`` without those fields of ``added`` (path -> old value) that have their old value."""
    kept = dict(names)
    for path, old in added.items():
        group, _, rest = path.partition(".")
        if not rest:
            if group in kept and kept[group] == old:
                del kept[group]
        elif group in kept:
            kept[group] = without_added(kept[group], {rest: old})
    return kept
