"""Settings of the oracle (there are few), and what it declares of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from methods.contract import Abilities, Source
from methods.engine.shape import Shape

SOURCE = Source(
    paper="2207.07061",
    followed="section 4: exit at the first layer whose argmax is the last layer's, state copying",
    reference=None,
)
ABILITIES = Abilities(needs_training=True, realisable=False)


@dataclass(frozen=True, slots=True)
class Params:
    """As in ``conf/method/oracle.yaml``, where each is explained."""

    min_layer: int = 1


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Settings as given.

    Raises:
        ValueError: naming the setting, what was got and what is allowed.
    """
    if not 1 <= params.min_layer <= shape.num_layers:
        raise ValueError(f"min_layer={params.min_layer}: allowed 1..{shape.num_layers}")
    return params
