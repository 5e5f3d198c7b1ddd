"""Settings of LayerSkip, their checks, and what the method declares of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from methods.contract import Abilities, Source
from methods.engine.shape import Shape
from methods.layerskip.recipe import PUBLISHED, Curriculum, DropoutTime, Recipe

SOURCE = Source(
    paper="2404.16710",
    followed="section 4: layer dropout, early-exit loss, self-speculative decoding",
    # Described in public; its licence is non-commercial, and not a line of it is used.
    reference="facebookresearch/LayerSkip f42c669",
)
DEFAULT_RECIPE = "llama2-7b"


@dataclass(frozen=True, slots=True)
class Params:
    """As in ``conf/method/layerskip.yaml``, where each is explained."""

    exit_layer: int | None = None
    num_speculations: int | None = None
    stop_confidence: float | None = None
    recipe: str | None = None
    max_dropout: float | None = None
    dropout_time: DropoutTime | None = None
    early_exit_scale: float | None = None
    curriculum: Curriculum | None = None
    rotation: int | None = None
    last_layer: bool = True
    checkpoint_layers: bool = False


def predicted_speedup(
    params: Params, shape: Shape, given: float, drafted: float, verification: float = 1.0
) -> float:
    """The latency model: passes of single layers, each as long as any other.

    A round runs E layers for each draft, all layers once (early for the last draft, late for the
    verification), and the head for each of these; the baseline all layers and the head for a token.

    Args:
        params: resolved settings.
        shape: the model's; the head costs as its weights do, against those of a layer.
        given: tokens of a round, the one behind the drafts included.
        drafted: tokens that a round drafts.
        verification: time of a pass over all tokens of a round, over that of a pass over one; 1
            where reading the weights is all that takes time, more on a CPU.
    """
    layer = shape.width * (2 * shape.query_width + 2 * shape.kv_width)
    layer += (3 if shape.gated_mlp else 2) * shape.width * shape.ffn_width
    head = shape.vocab_size * shape.embed_width / layer
    early = params.exit_layer or 1
    cost = drafted * (early + head) + early + verification * (shape.num_layers - early + head)
    return given * (shape.num_layers + head) / cost


# Lossless on any weights: on those that were not trained for it, drafts are rarely accepted.
ABILITIES = Abilities(
    lossless=True,
    trains=True,
    needs_training=False,
    trained_settings=("recipe", *(field.name for field in fields(Recipe)), "last_layer"),
    latency_model=predicted_speedup,
)


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Complete settings: E, and the recipe's values.

    Args:
        params: as configured.
        shape: the model's.
        trained: ``settings`` of a checkpoint trained with this method, and ``published``, what the
            paper of the model used on the task.

    Raises:
        ValueError: naming the setting, what was got and what is allowed.
    """
    own = trained.get("settings", {}) if trained.get("method") == "layerskip" else {}
    params = _with_recipe(params, {**own, **trained})
    layers, published = shape.num_layers, trained.get("published", {})
    defaults = {"exit_layer": max(1, layers // 4), "num_speculations": 6}
    exit_layer, drafts = (
        given if given is not None else published.get(name, own.get(name, defaults[name]))
        for name, given in (
            ("exit_layer", params.exit_layer),
            ("num_speculations", params.num_speculations),
        )
    )
    allowed = f"1..{layers - 1}" if layers > 1 else "none: a model of one layer drafts nothing"
    if not 1 <= exit_layer < layers:
        raise ValueError(f"exit_layer={exit_layer}: allowed {allowed}")
    if drafts < 1:
        raise ValueError(f"num_speculations={drafts}: allowed 1 and up")
    if params.stop_confidence is not None and not 0 <= params.stop_confidence <= 1:
        raise ValueError(f"stop_confidence={params.stop_confidence}: allowed null, or 0..1")
    _check_recipe(params)
    return replace(params, exit_layer=exit_layer, num_speculations=drafts)


def _with_recipe(params: Params, trained: Mapping[str, Any]) -> Params:
    """What is given wins; then what a checkpoint was trained with; then the published row."""
    name = params.recipe or trained.get("recipe") or DEFAULT_RECIPE
    if name not in PUBLISHED:
        raise ValueError(f"recipe={name}: allowed {', '.join(PUBLISHED)}")
    # A row that is asked for by name is not mixed with that of the checkpoint.
    known = trained if params.recipe is None else {}
    completed = {}
    for field in fields(Recipe):
        value = getattr(params, field.name)
        if value is None:
            value = known.get(field.name, getattr(PUBLISHED[name], field.name))
        completed[field.name] = value
    return replace(params, recipe=name, **completed)


def _check_recipe(params: Params) -> None:
    """Refuses what is out of range, and what the row does not state."""
    gap = f"(not stated for recipe={params.recipe})"
    for name in ("max_dropout", "early_exit_scale"):
        value = getattr(params, name)
        if value is None or not 0 <= value <= 1:
            raise ValueError(f"{name}={value}: allowed 0..1{f' {gap}' if value is None else ''}")
    if params.dropout_time is None:
        raise ValueError(f"dropout_time=None: allowed constant, exponential {gap}")
    if params.curriculum is None:
        raise ValueError(f"curriculum=None: allowed rotational, gradual, all {gap}")
    rotation = params.rotation
    if rotation is None and params.curriculum == "rotational":
        raise ValueError(f"rotation=None: allowed 1 and up {gap}")
    if rotation is not None and rotation < 1:
        raise ValueError(f"rotation={rotation}: allowed 1 and up")
