"""Settings of transformers' plain generate: there are none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from methods.contract import Abilities, Source
from methods.engine.shape import Shape

SOURCE = Source(
    paper="1910.03771",
    followed="transformers: generate(do_sample=False), dynamic cache, sdpa attention",
)
ABILITIES = Abilities(lossless=True, engine="transformers")


@dataclass(frozen=True, slots=True)
class Params:
    """No settings."""


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Nothing to complete."""
    return params
