"""The contract of a decoding method: a generator over rounds.

Apart, and without torch when imported, so that settings can be checked on a login node. A method
never cuts, counts or clocks: ``bench/decoding.py`` does, for all methods and the baseline. Not
here: how a method is found (``registry.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, device

    from methods.engine.cache import Prompts
    from methods.engine.hf import HfModel, Request
    from methods.engine.inference import InferenceModel
    from methods.engine.sampling import Chooser
    from methods.engine.shape import Shape
    from methods.engine.transformer import Transformer

# Which rows are still live, (B,) bool, one round late; None where nothing is read back. Where
# finished rows leave the batch, those that are kept (``engine.dropping.Kept``).
LiveRows = Any


@dataclass(frozen=True, slots=True)
class Source:
    """Where a method comes from.

    Attributes:
        paper: arXiv id or other stable name.
        followed: the sections, equations or tables that the code follows.
        reference: reference code at a commit; None if none is known.
    """

    paper: str
    followed: str
    reference: str | None = None


def _needs_nothing(_: object) -> None:
    """Most methods have no companion."""


def _runs_all(_: Shape) -> None:
    """Every method on our own engine runs every model."""


@dataclass(frozen=True, slots=True)
class CompanionStage:
    """A training that makes a companion and leaves the weights as they are.

    Attributes:
        setting: of the method, with which it is asked for.
        value: of that setting.
        companion: the name of what it makes.
    """

    setting: str
    value: str
    companion: str


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a method declares of itself; the runner asks here and never for a name.

    Attributes:
        lossless: greedy ids equal those of the dense model on the same weights.
        trains: the method has a training objective of its own.
        needs_training: used on weights that were not trained for it, its quality says nothing.
        schedule_length: the method has a schedule whose length is set by the data it trains on.
        whole_prompt: the prompt pass runs every layer.
        realisable: False for a method that looks ahead without paying: its time is not measured.
        companion: from its settings, the name of what it needs beside the checkpoint, trained on
            those very weights; None where it needs nothing. Its method is a ``HasCompanion``.
        companion_stage: the training that makes it; None where there is none.
        trained_settings: settings that bear on training: run with others than those, weights are
            not what they were trained for. None for all.
        calibrates: the setting that a calibration chooses: a number in 0..1, the lower the sooner
            a token leaves, ``never``, or ``calibrated`` for what was found, which ``resolve`` finds
            in ``trained`` as ``calibrated_<setting>``. None where there is none.
        latency_model: from settings, shape, tokens and drafts of a verification, the speed-up that
            they promise; None for a method that has no such model.
        engine: whose code decodes: ours, or the transformers library's own ``generate``; then the
            method is a ``Peer``.
        max_batch: rows that it can decode at once; None for any number. Only a peer may have one.
        unsupported: from a shape, why the method cannot run such a model; None where it can.
    """

    lossless: bool = False
    trains: bool = False
    needs_training: bool = False
    schedule_length: bool = False
    whole_prompt: bool = True
    realisable: bool = True
    companion: Callable[[Any], str | None] = _needs_nothing
    companion_stage: CompanionStage | None = None
    trained_settings: tuple[str, ...] | None = None
    calibrates: str | None = None
    latency_model: Callable[[Any, Shape, float, float], float] | None = None
    engine: Literal["own", "transformers"] = "own"
    max_batch: int | None = None
    unsupported: Callable[[Shape], str | None] = _runs_all


@dataclass(slots=True)
class Round:
    """What one step of a method gave, for all rows that the batch holds.

    Attributes:
        ids: new ids, (B, n).
        layers_run: layers run for each new token; one number for all, or (B, n).
        counts: how many of the n belong to each row, (B,); None if all do.
        layers_needed: layers that each row's own rule asked for, one number a row; None if as run.
        drafted: tokens drafted per row, (B,); None for a method that does not draft.
        accepted: drafted tokens accepted per row, (B,).
    """

    ids: Tensor
    layers_run: int | Tensor
    counts: Tensor | None = None
    layers_needed: Sequence[int] | None = None
    drafted: Tensor | None = None
    accepted: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a decode.

    Attributes:
        max_new_tokens: cache room; a method may overshoot a stop, never this by more than a draft.
        chooser: turns logits into ids.
    """

    max_new_tokens: int
    chooser: Chooser


@dataclass(frozen=True, slots=True)
class Batch:
    """One training batch, right-padded.

    Attributes:
        ids: (B, T), prompt, target and EOS of each row, BOS first.
        prompt_lengths: (B,) tokens before the target, BOS included.
        lengths: (B,) tokens in all, without pads.
    """

    ids: Tensor
    prompt_lengths: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is: which pass of it an objective is asked for, in every process alike.

    With the batch this is all that an objective may depend on. What it draws at random follows from
    here, so that processes stay in step, and a resumed training draws what it would have drawn.

    Attributes:
        step: optimiser steps done, 0-based.
        steps: optimiser steps in all.
        micro_batch: passes done within this step, 0-based; more than one under accumulation.
        seed: the training's.
    """

    step: int
    steps: int
    micro_batch: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Loss:
    """A training loss, summed over the tokens it judges."""

    total: Tensor


class Method(Protocol):
    """One way to spend the layers of a transformer. Made as ``Method(params, shape)``."""

    def decode(
        self, model: InferenceModel, prompts: Prompts, limits: Limits
    ) -> Generator[Round, LiveRows, None]:
        """Yields rounds without end: first one token per row from the prompt pass, then steps.

        ``send`` gives the live rows, one round late; whoever counts positions (``Lockstep``,
        ``Ragged``) takes it. No context may stay open across a yield.
        """
        ...

    def objective(self, model: Transformer, batch: Batch, progress: Progress) -> Loss:
        """The training loss of a batch; draws nothing at random unless ``model.training``."""
        ...


class Companion(Protocol):
    """An ``nn.Module`` of few parameters, trained on the frozen weights of one model."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Its parameters as they are saved, and as ``attach`` takes them."""
        ...


@runtime_checkable
class HasCompanion(Protocol):
    """What a method has beside ``Method`` if its abilities name a companion."""

    def companion(self) -> Companion | None:
        """What its objective trains in place of the model; None if it trains the model."""
        ...

    def attach(self, tensors: Mapping[str, Tensor], device: device) -> None:
        """Takes the companion that was trained on the model's weights, before decoding."""
        ...


class Peer(Protocol):
    """What users would otherwise pick, run as its own library runs it: no rounds, one call.

    Made as ``Method(params, shape)``. The driver makes Rounds of the steps that it was told of.

    Attributes:
        drafts: whether its steps verify drafted tokens.
    """

    drafts: bool

    def generate(self, model: HfModel, request: Request, step: Callable[[int], None]) -> Tensor:
        """Decodes to the end.

        Args:
            model: the library's own model.
            request: prompts and limits.
            step: to be called after each step with the columns that then are there, pads and
                prompts included.

        Returns:
            Ids, (B, columns), pads and prompts included.
        """
        ...


class MethodModule(Protocol):
    """What ``methods.<name>.method`` defines."""

    Method: Callable[[Any, Shape], Method]


class ParamsModule(Protocol):
    """What ``methods.<name>.params`` defines; imports nothing heavy.

    Attributes:
        SOURCE: where the method comes from.
        ABILITIES: what it declares.
        Params: frozen dataclass of its settings, as in ``conf/method/<name>.yaml``.
        resolve: checks the settings against a shape and completes them; raises ValueError, its
            text naming the setting, what was got and what is allowed.
    """

    SOURCE: Source
    ABILITIES: Abilities
    Params: type[Any]

    def resolve(self, params: Any, shape: Shape, trained: Mapping[str, Any]) -> Any:  # noqa: ANN401  # each method has its own type of params
        """Complete settings for a shape; ``trained`` holds what the checkpoint was trained for."""
        ...
