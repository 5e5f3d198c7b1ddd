"""Settings of CALM, their checks, and what the method declares of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from methods.contract import Abilities, CompanionStage, Source
from methods.engine.shape import Shape

SOURCE = Source(
    paper="2207.07061",
    followed="sections 3.1 to 3.4: measures, decaying threshold, state copying, weighted loss",
    # Read for what the paper leaves open; where the two differ, the paper is followed.
    reference="google-research/t5x cc342d4, google/flaxformer 399ea3a",
)

Measure = Literal["softmax", "state", "classifier"]


@dataclass(frozen=True, slots=True)
class Params:
    """As in ``conf/method/calm.yaml``, where each is explained."""

    measure: Measure = "softmax"
    threshold: float | Literal["never", "calibrated"] = 0.9
    decay: float | None = None
    decay_form: Literal["paper", "official"] = "paper"
    min_layer: int = 1
    check_every: int = 1
    batch_policy: Literal["rows", "all"] = "rows"
    stage: Literal["backbone", "classifier"] = "backbone"


ABILITIES = Abilities(
    trains=True,
    needs_training=True,
    companion=lambda params: "exit_classifier" if params.measure == "classifier" else None,
    companion_stage=CompanionStage("stage", "classifier", "exit_classifier"),
    # The backbone's losses are of all layers, whatever the exit rule.
    trained_settings=(),
    calibrates="threshold",
)


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Complete settings.

    Args:
        params: as configured.
        shape: the model's.
        trained: ``calibrated_threshold`` where a calibration gave one (a number or ``never``).

    Raises:
        ValueError: naming the setting, what was got and what is allowed.
    """
    layers, first = shape.num_layers, params.min_layer
    if not 1 <= first <= layers:
        raise ValueError(f"min_layer={first}: allowed 1..{layers}")
    if params.check_every < 1:
        raise ValueError(f"check_every={params.check_every}: allowed 1 and up")
    if params.decay is not None and params.decay < 0:
        raise ValueError(f"decay={params.decay}: allowed null, or 0 and up")
    threshold = params.threshold
    if threshold == "calibrated":
        threshold = trained.get("calibrated_threshold", threshold)
    elif not isinstance(threshold, str) and not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold}: allowed 0..1, never, calibrated")
    if params.measure == "state":
        # Layer 1 has no layer before it to compare with.
        first = max(first, 2)
    return replace(params, threshold=threshold, min_layer=first)


def exit_layers(params: Params, num_layers: int) -> frozenset[int]:
    """Layers, 1-based, behind which a token may leave; empty where it never may."""
    if params.threshold == "never":
        return frozenset()
    return frozenset(range(params.min_layer, num_layers, params.check_every))
