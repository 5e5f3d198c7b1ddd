"""Settings of SkipDecode, their checks, and what the method declares of itself."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from methods.contract import Abilities, Source
from methods.engine.shape import Shape
from methods.skipdecode.schedule import Schedule, preset_budgets

SOURCE = Source(
    paper="2307.02628",
    followed="unified exit point per column, monotone linear schedule, warm-up layers",
    # No official code is known.
    reference=None,
)
ABILITIES = Abilities(lossless=False, trains=True, needs_training=True, schedule_length=True)


@dataclass(frozen=True, slots=True)
class Params:
    """As in ``conf/method/skipdecode.yaml``, where each is explained."""

    preset: str | None = "2x"
    max_layers: int | None = None
    min_layers: int | None = None
    warmup_layers: int = 1
    schedule_length: int | None = None
    decay: Literal["linear", "power"] = "linear"
    power: float = 1.0
    clock: Literal["generated", "position"] = "generated"
    mode: Literal["skip", "terminate"] = "skip"


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Complete settings: the budgets of a preset, and S.

    Args:
        params: as configured.
        shape: the model's.
        trained: ``schedule_length`` where the checkpoint or the task gives one.

    Raises:
        ValueError: naming the setting, what was got and what is allowed.
    """
    layers, warmup = shape.num_layers, params.warmup_layers
    if not 0 <= warmup < layers:
        raise ValueError(f"warmup_layers={warmup}: allowed 0..{layers - 1}")
    high, low = params.max_layers, params.min_layers
    if params.preset is not None:
        if high is not None or low is not None:
            raise ValueError(
                f"preset={params.preset} and max_layers={high}, min_layers={low}: allowed one of "
                "the two; set preset=null to give layers"
            )
        high, low = _preset(params.preset, layers, warmup)
    if high is None or low is None:
        raise ValueError(f"max_layers={high}, min_layers={low}: both are needed without a preset")
    if not warmup + 1 <= low <= high <= layers:
        raise ValueError(
            f"max_layers={high}, min_layers={low}: allowed "
            f"{warmup + 1} (warm-up + 1) <= min_layers <= max_layers <= {layers}"
        )
    if params.power <= 0:
        raise ValueError(f"power={params.power}: allowed above 0")
    length = params.schedule_length
    if length is None:
        length = trained.get("schedule_length")
    if length is None or length < 1:
        raise ValueError(f"schedule_length={length}: allowed 1 and up (none came with the weights)")
    return replace(params, max_layers=high, min_layers=low, schedule_length=length)


def schedule_of(params: Params, shape: Shape) -> Schedule:
    """The schedule of resolved settings."""
    resolved = (params.max_layers, params.min_layers, params.schedule_length)
    assert None not in resolved, f"settings are not resolved: {params}"
    high, low, length = resolved
    return Schedule(
        num_layers=shape.num_layers,
        max_layers=high or 0,
        min_layers=low or 0,
        warmup_layers=params.warmup_layers,
        length=length or 0,
        decay=params.decay,
        power=params.power,
        mode=params.mode,
    )


def _preset(preset: str, num_layers: int, warmup_layers: int) -> tuple[int, int]:
    """Budgets of a preset such as ``2x``; one that this many layers cannot give is refused."""
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)x", preset)
    speedup = float(matched[1]) if matched else 0.0
    if speedup > 1:
        high, low = preset_budgets(speedup, num_layers, warmup_layers)
        if abs((high + low) / 2 - num_layers / speedup) <= 0.5:
            return high, low
    most = num_layers / (warmup_layers + 0.5)
    raise ValueError(
        f"preset={preset}: allowed a target such as 2x or 4x, from about 1.3x to {most:.1f}x with "
        f"{num_layers} layers of which {warmup_layers} always run"
    )
