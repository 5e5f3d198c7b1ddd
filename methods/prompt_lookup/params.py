"""Settings of prompt lookup, their checks, and what the method declares of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from methods.contract import Abilities, Source
from methods.engine.shape import Shape
from methods.prompt_lookup.history import Match

SOURCE = Source(
    # Prompt lookup has no paper of its own; this is the one that copies spans before it.
    paper="2304.04487",
    followed="spans of the row's own context, found by its newest tokens, copied and verified at "
    "once; known from transformers as prompt_lookup_num_tokens",
    reference=None,
)
ABILITIES = Abilities(lossless=True)


@dataclass(frozen=True, slots=True)
class Params:
    """As in ``conf/method/prompt_lookup.yaml``, where each is explained."""

    num_speculations: int = 10
    max_ngram: int = 2
    min_ngram: int = 1
    match: Match = "latest"


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Settings as given.

    Raises:
        ValueError: naming the setting, what was got and what is allowed.
    """
    if params.num_speculations < 1:
        raise ValueError(f"num_speculations={params.num_speculations}: allowed 1 and up")
    if params.min_ngram < 1:
        raise ValueError(f"min_ngram={params.min_ngram}: allowed 1 and up")
    if params.max_ngram < params.min_ngram:
        raise ValueError(
            f"max_ngram={params.max_ngram}: allowed {params.min_ngram} (min_ngram) and up"
        )
    return params
