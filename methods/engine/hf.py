"""Models of the transformers library, and its ``generate``, for the peers that run on them.

Apart, because what that library does behind its public calls (5.24) is known here and nowhere
else. Not here: what a run of it costs (``hf_ledger.py``), clock, cut and count.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging as library_logging

from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.checkpoint import hub_tensors
from methods.engine.families import FAMILIES, config_of_shape
from methods.engine.files import CheckpointError, read_shape
from methods.engine.shape import Shape
from methods.engine.transformer import Transformer

# Its drafts call generate with a config and arguments, of which it warns its own users.
_OF_ITS_OWN_DRAFTS = "Passing `generation_config` together with"


@dataclass(frozen=True, slots=True)
class Request:
    """What ``generate`` is asked for, in the form that it wants: prompts padded on the left.

    Attributes:
        ids: (B, T).
        mask: (B, T), 1 at tokens, 0 at pads.
        lengths: tokens of each row.
        max_new_tokens: limit of each row.
        stop_ids: ids that end a row; empty for none.
        pad: the id of pads, before a prompt and behind a row's end.
    """

    ids: Tensor
    mask: Tensor
    lengths: tuple[int, ...]
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    pad: int

    @classmethod
    def of(
        cls, prompts: Prompts, max_new_tokens: int, stop_ids: tuple[int, ...], shape: Shape
    ) -> "Request":
        """Pads anew."""
        pad = shape.pad_token_id
        if pad is None:
            pad = shape.eos_token_ids[0] if shape.eos_token_ids else 0
        ids = torch.full_like(prompts.ids, pad)
        mask = torch.zeros_like(prompts.ids)
        for row, length in enumerate(prompts.lengths):
            ids[row, ids.shape[1] - length :] = prompts.ids[row, :length]
            mask[row, ids.shape[1] - length :] = 1
        return cls(ids, mask, prompts.lengths, max_new_tokens, stop_ids, pad)


class HfModel:
    """A causal language model of transformers, as that library runs it.

    Args:
        model: in evaluation mode, on its device.
        shape: its architecture.
        options: dtype and device; no other applies.

    Attributes:
        forms_made: see ``InferenceModel``.
    """

    forms_made = 0

    def __init__(self, model: Any, shape: Shape, options: Options) -> None:  # noqa: ANN401  # the library types its classes loosely
        self.model, self.shape, self.options = model, shape, options
        self.decoder: Any = model.get_decoder()

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder's layers."""
        layers: nn.ModuleList = self.decoder.layers
        return layers

    @property
    def head(self) -> nn.Module:
        """The LM head."""
        head: nn.Module = self.model.get_output_embeddings()
        return head

    def generate(
        self,
        request: Request,
        step: Callable[[int], None],
        *,
        mode: Mapping[str, Any] | None = None,
        drafts: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Greedy decoding; the checkpoint's own generation settings do not apply.

        Args:
            request: prompts and limits.
            step: told after each step how many columns there are.
            mode: fields of a GenerationConfig that choose how to decode.
            drafts: those which the library reads from ``model.generation_config`` alone, whatever
                a call is given: ``num_assistant_tokens`` and its like.

        Returns:
            Ids, (B, columns), pads and prompts included.
        """
        config = _generation_config(
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            eos_token_id=list(request.stop_ids) or None,
            pad_token_id=request.pad,
            **(mode or {}),
        )
        with self._left_as_found(), _silent_of_its_own_drafts():
            self.model.generation_config = _generation_config(**(drafts or {}))
            ids: Tensor = self.model.generate(
                request.ids,
                attention_mask=request.mask,
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([_Steps(step)]),
            )
        return ids

    @contextmanager
    def _left_as_found(self) -> Iterator[None]:
        """Restores what a decode changes, after an exception too.

        For each early-exit draft the library overwrites the number of layers in the model's own
        config, and an exception inside the draft leaves it so: the model stays cut.
        """
        held, layers = self.model.generation_config, self.decoder.config.num_hidden_layers
        try:
            yield
        finally:
            self.model.generation_config = held
            self.decoder.config.num_hidden_layers = layers


def _generation_config(**fields: Any) -> GenerationConfig:  # noqa: ANN401  # the library's fields
    """Of these fields alone, whatever a checkpoint's file says."""
    return GenerationConfig(**fields)  # type: ignore[no-untyped-call]  # the library leaves it untyped


class _Steps(StoppingCriteria):
    """Tells of each step; never stops."""

    def __init__(self, step: Callable[[int], None]) -> None:
        self._step = step

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:  # noqa: ANN401  # as the library has it
        self._step(input_ids.shape[1])
        return False


def from_folder(folder: Path, options: Options) -> HfModel:
    """Opens a checkpoint folder as that library's users do; no network is asked.

    Raises:
        CheckpointError: for files that it cannot read, and for tensors that it would make up.
        UnsupportedError: for an architecture that the suite does not have.
    """
    shape = read_shape(folder)
    try:
        return _opened(str(folder), shape, options, local_files_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"transformers cannot read {folder}: {error}") from error


def from_transformer(transformer: Transformer, options: Options) -> HfModel:
    """The same weights in that library's own model, without files."""
    shape = transformer.shape
    written = config_of_shape(shape, str(options.dtype).removeprefix("torch."))
    return _opened(
        None,
        shape,
        options,
        config=transformers.AutoConfig.for_model(**written),
        state_dict=hub_tensors(transformer, options.dtype),
    )


def _opened(source: str | None, shape: Shape, options: Options, **more: Any) -> HfModel:  # noqa: ANN401  # the library's arguments
    kind = getattr(transformers, FAMILIES[shape.family].architecture)
    with _without_bars():
        model, info = kind.from_pretrained(
            source,
            dtype=options.dtype,
            attn_implementation="sdpa",
            output_loading_info=True,
            **more,
        )
    made_up = sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"]))
    if made_up:
        raise CheckpointError(
            f"{len(made_up)} tensors are not there or of another shape, such as {made_up[0]}"
        )
    return HfModel(model.eval().to(options.device), shape, options)


@contextmanager
def _without_bars() -> Iterator[None]:
    """The library's progress bars off; the suite has its own."""
    shown = library_logging.is_progress_bar_enabled()
    library_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # likewise
    try:
        yield
    finally:
        if shown:
            library_logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # likewise


@contextmanager
def _silent_of_its_own_drafts() -> Iterator[None]:
    """Drops one warning that the library's drafting gives to itself."""
    logger = logging.getLogger("transformers.generation.utils")

    def keep(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_OF_ITS_OWN_DRAFTS)

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
