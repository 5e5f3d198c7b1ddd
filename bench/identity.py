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
    return {
        "identity_version": IDENTITY_VERSION,
        "method": {"name": config.method.name, **resolved},
        "weights": dict(weights),
        "task": {"name": config.task.name, "split": config.task.split, "examples": examples},
        "decode": asdict(config.decode) | {"max_new_tokens": config.max_new_tokens},
        "meter": asdict(config.meter),
        "engine": asdict(config.engine),
        "gpu": device,
        "seed": config.seed,
    }
