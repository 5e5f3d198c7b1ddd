"""Settings of transformers' early-exit assistance, their checks, and what the peer declares."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from methods.contract import Abilities, Source
from methods.engine.shape import Shape

SOURCE = Source(
    paper="2404.16710",
    followed="transformers: generate(assistant_early_exit=E), huggingface/transformers PR 34240",
)


# Their decoders run as many layers as the config says, and look there at every call.
_CUT_BY_CONFIG = ("llama", "qwen2")


def unsupported(shape: Shape) -> str | None:
    """A draft is the model with a smaller ``num_hidden_layers``, where its decoder heeds that."""
    if shape.family in _CUT_BY_CONFIG:
        return None
    return (
        "transformers drafts by setting num_hidden_layers for a while; the decoder of family "
        f"{shape.family} runs all its layers all the same, and fails on the draft's shorter cache"
    )


ABILITIES = Abilities(lossless=True, engine="transformers", max_batch=1, unsupported=unsupported)


@dataclass(frozen=True, slots=True)
class Params:
    """As in ``conf/method/hf_early_exit.yaml``, where each is explained."""

    exit_layer: int | None = None
    num_speculations: int | None = None


def resolve(params: Params, shape: Shape, trained: Mapping[str, Any]) -> Params:
    """Complete settings: E.

    Args:
        params: as configured.
        shape: the model's.
        trained: ``settings`` of a checkpoint, and ``published`` ones of its paper, may name both.

    Raises:
        ValueError: naming the setting, what was got and what is allowed.
    """
    layers, exit_layer, drafts = shape.num_layers, params.exit_layer, params.num_speculations
    known = {"exit_layer": max(1, layers // 4), "num_speculations": 6}
    known |= {k: v for k, v in trained.get("settings", {}).items() if k in known and v}
    known |= trained.get("published", {})
    exit_layer = known["exit_layer"] if exit_layer is None else exit_layer
    drafts = known["num_speculations"] if drafts is None else drafts
    allowed = f"1..{layers - 1}" if layers > 1 else "none: a model of one layer drafts nothing"
    if not 1 <= exit_layer < layers:
        raise ValueError(f"exit_layer={exit_layer}: allowed {allowed}")
    if drafts < 1:
        raise ValueError(f"num_speculations={drafts}: allowed 1 and up")
    return replace(params, exit_layer=exit_layer, num_speculations=drafts)
