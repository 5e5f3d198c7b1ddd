"""The contract of a decoding method: a generator over rounds.

Apart, and without torch when imported, so that settings can be checked on a login node. A method
never cuts, counts or clocks: ``bench/decoding.py`` does, for all methods and the baseline. Not
here: how a method is found (``registry.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from methods.engine.cache import Prompts
    from methods.engine.inference import InferenceModel
    from methods.engine.sampling import Chooser
    from methods.engine.shape import Shape
    from methods.engine.transformer import Transformer

# Which rows are still live, (B,) bool, one round late; None where nothing is read back.
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


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a method declares of itself; the runner asks here and never for a name.

    Attributes:
        lossless: greedy ids equal those of the dense model on the same weights.
        trains: the method has a training objective of its own.
        needs_training: used on weights that were not trained for it, its quality says nothing.
        schedule_length: the method has a schedule whose length is set by the data it trains on.
    """

    lossless: bool = False
    trains: bool = False
    needs_training: bool = False
    schedule_length: bool = False


@dataclass(slots=True)
class Round:
    """What one step of a method gave, for the whole batch.

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
class Loss:
    """A training loss, summed over the tokens it judges."""

    total: Tensor


class Method(Protocol):
    """One way to spend the layers of a transformer. Made as ``Method(params, shape)``."""

    def decode(
        self, model: InferenceModel, prompts: Prompts, limits: Limits
    ) -> Generator[Round, LiveRows, None]:
        """Yields rounds without end: first one token per row from the prompt pass, then steps.

        ``send`` gives the live rows, one round late. No context may stay open across a yield.
        """
        ...

    def objective(self, model: Transformer, batch: Batch, progress: float) -> Loss:
        """The training loss of a batch; ``progress`` is the share of steps done, 0..1."""
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
