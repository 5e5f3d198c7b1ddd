"""Settings of static exit, their checks, and what the method declares of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from methods.contract import Abilities, Source
from methods.engine.shape import Shape

SOURCE = Source(
    paper="2207.07061",
    followed="section 5: the static baseline; LayerSkip's unverified early exit (2404.16710, 4.1)",
    reference=None,
)
ABILITIES = Abilities(needs_training=True, whole_prompt=False)


@dataclass(frozen=True, slots=True)
class Params:
    """As in ``conf/method/static.yaml``, where each is explained."""

    exit_layer: int | None = None


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Complete settings: half of the layers by default.

    Raises:
        ValueError: naming the setting, what was got and what is allowed.
    """
    half = max(1, shape.num_layers // 2)
    layer = half if params.exit_layer is None else params.exit_layer
    if not 1 <= layer <= shape.num_layers:
        raise ValueError(f"exit_layer={layer}: allowed 1..{shape.num_layers}")
    return replace(params, exit_layer=layer)
