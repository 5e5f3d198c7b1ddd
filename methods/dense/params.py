"""Settings of the dense baseline: there are none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from methods.contract import Abilities, Source
from methods.engine.shape import Shape

SOURCE = Source(paper="1706.03762", followed="autoregressive decoding with a key-value cache")
ABILITIES = Abilities(lossless=True, trains=True)


@dataclass(frozen=True, slots=True)
class Params:
    """No settings."""


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Nothing to complete."""
    return params
