"""Settings of transformers' prompt lookup, their checks, and what the peer declares."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from methods.contract import Abilities, Source
from methods.engine.shape import Shape

SOURCE = Source(
    paper="2304.04487",
    followed="transformers: generate(prompt_lookup_num_tokens=K, max_matching_ngram_size=N)",
)
ABILITIES = Abilities(lossless=True, engine="transformers", max_batch=1)


@dataclass(frozen=True, slots=True)
class Params:
    """As in ``conf/method/hf_prompt_lookup.yaml``, where each is explained."""

    num_speculations: int = 10
    max_ngram: int = 2


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Checks the settings.

    Raises:
        ValueError: naming the setting, what was got and what is allowed.
    """
    for name in ("num_speculations", "max_ngram"):
        if getattr(params, name) < 1:
            raise ValueError(f"{name}={getattr(params, name)}: allowed 1 and up")
    return params
