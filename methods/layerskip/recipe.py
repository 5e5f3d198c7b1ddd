"""LayerSkip's training recipe as numbers: dropout rates, loss weights, curricula, published rows.

arXiv 2404.16710, section 4.1. Apart and free of torch, so that each formula is checked by hand sums
and settings are completed on a login node. Not here: dropping rows, losses (``objective.py``).
Layers are 0-based here: layer l is the one behind which l + 1 layers have run.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from methods.contract import Progress

DropoutTime = Literal["constant", "exponential"]
Curriculum = Literal["rotational", "gradual", "all"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One row of the paper's hyper-parameters; None where the paper does not state a value.

    Attributes:
        max_dropout: p_max, the rate of the last layer once the time scale is 1.
        dropout_time: S(t).
        early_exit_scale: e_scale.
        curriculum: C(t, l).
        rotation: R of the rotational curriculum.
    """

    max_dropout: float | None = None
    dropout_time: DropoutTime | None = None
    early_exit_scale: float | None = None
    curriculum: Curriculum | None = None
    rotation: int | None = None


# Learning rate, batch and steps of each row stand in conf/train/layerskip-<row>.yaml.
PUBLISHED: Mapping[str, Recipe] = MappingProxyType(
    {
        "llama2-7b": Recipe(0.1, "constant", 0.2, "rotational", 8),
        "llama2-13b": Recipe(0.1, "constant", 0.1, "rotational", 39),
        "llama3-8b": Recipe(0.1, "constant", 0.1, "rotational", 8),
        "llama3.2-1b": Recipe(0.1, "constant", 0.1, "rotational", 8),
        # Known from the vendor's blog alone.
        "llama2-70b": Recipe(),
        "llama1.5b-scratch": Recipe(0.1, "exponential", 0.2, "rotational", 23),
        "llama2-7b-scratch": Recipe(0.2, "exponential", 0.2, "rotational", 31),
        "llama1-7b-code": Recipe(0.1, "constant", 1.0, "rotational", 16),
        "llama1.5b-topv2": Recipe(0.2, "constant", 1.0, "gradual", None),
    }
)


def dropout_rates(num_layers: int, max_dropout: float) -> list[float]:
    """D(l) * p_max with D(l) = exp(l ln2 / (L - 1)) - 1: from 0 at the first layer to p_max."""
    last = max(num_layers - 1, 1)
    return [(2.0 ** (layer / last) - 1) * max_dropout for layer in range(num_layers)]


def time_scale(kind: DropoutTime, progress: Progress) -> float:
    """S(t): 1 throughout, or exp(t ln2 / (T - 1)) - 1: from 0 at the first step to 1."""
    if kind == "constant":
        return 1.0
    scale: float = 2.0 ** (progress.step / max(progress.steps - 1, 1)) - 1
    return scale


def loss_scales(num_layers: int, early_exit_scale: float) -> list[float]:
    """e(l): grows with the square of depth; 0 at the first layer, L - 1 more at the last."""
    last = num_layers - 1
    scales = [early_exit_scale * layer * (layer + 1) / 2 for layer in range(last)]
    return [*scales, last + early_exit_scale * last * (last - 1) / 2]


def enabled_layers(
    num_layers: int, curriculum: Curriculum, rotation: int | None, progress: Progress
) -> set[int]:
    """The layers with C(t, l) = 1.

    Rotational: every R-th layer, one further up at each step. Gradual: the last layer alone, then
    one more from above at each T / 2L steps, all of them from T / 2 on.
    """
    if curriculum == "rotational":
        assert rotation is not None, "the rotational curriculum needs R"
        return set(range(progress.step % rotation, num_layers, rotation))
    if curriculum == "gradual":
        lowest = num_layers - 1 - 2 * num_layers * progress.step // progress.steps
        return set(range(max(lowest, 0), num_layers))
    return set(range(num_layers))


def loss_weights(scales: list[float], enabled: Collection[int], *, last: bool) -> dict[int, float]:
    """w(t, l): the scales of the enabled layers, divided by their sum; layers of weight 0 left out.

    Args:
        scales: e(l) of every layer.
        enabled: layers of this step.
        last: the last layer is enabled at every step. Where nothing enabled has a scale above 0, it
            is enabled anyhow: a step must have a loss.
    """
    top = len(scales) - 1
    chosen = {layer: scales[layer] for layer in {*enabled, *([top] if last else [])}}
    whole = sum(chosen.values())
    if not whole:
        return {top: 1.0}
    return {layer: scale / whole for layer, scale in sorted(chosen.items()) if scale}
