"""Transformers' own ``generate`` on our weights, as a leg.

Apart from ``methods/engine/hf.py``, which is of one version of the library: this uses what all have
had since 4.45, so that it runs on a machine that has no more than that and torch.
"""

import time

import torch
from transformers import OPTConfig, OPTForCausalLM, StoppingCriteria, StoppingCriteriaList

from bench.meters import device as devices
from methods.engine.cache import Prompts
from methods.engine.checkpoint import tensor_names
from methods.engine.families import config_of_shape
from methods.engine.transformer import Transformer


def to_transformers(transformer: Transformer) -> OPTForCausalLM:
    """The very same weights in the library's own OPT; nothing is copied."""
    shape, dtype = transformer.shape, transformer.embedding.weight.dtype
    assert shape.family == "opt", f"no such model here: {shape.family}"
    written = config_of_shape(shape, str(dtype).removeprefix("torch."))
    with torch.device("meta"):
        model = OPTForCausalLM(OPTConfig(**written))
    weights = {}
    for ours, names in tensor_names(shape):
        # An OPT's stacked q, k and v are of one height.
        parts = transformer.get_parameter(ours).detach().chunk(len(names))
        weights |= dict(zip(names, parts, strict=True))
    missing, unknown = model.load_state_dict(weights, strict=False, assign=True)
    assert set(missing) <= {"lm_head.weight"}, f"not loaded: {missing}"
    assert not unknown, f"not known to transformers: {unknown}"
    model.tie_weights()
    # What a config says of the end of a text must not end it.
    model.generation_config.eos_token_id = None
    return model.eval()


class _FirstToken(StoppingCriteria):
    """Notes when the first token was there; never stops."""

    def __init__(self, device: devices.AnyDevice) -> None:
        self._device = device
        self.at_s: float | None = None

    def __call__(self, input_ids, scores, **kwargs):
        if self.at_s is None:
            self._device.synchronise()
            self.at_s = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Generate:
    """A leg: seconds from the first token to the last of transformers' own loop, greedy.

    Attributes:
        ids: new ids of the latest pass, (B, N).
    """

    def __init__(self, model: OPTForCausalLM, batch: Prompts, new_tokens: int) -> None:
        self.model, self.new_tokens = model, new_tokens
        self.device = devices.of(batch.ids.device)
        longest = max(batch.lengths)
        self.padded = torch.ones_like(batch.ids)
        self.mask = torch.zeros_like(batch.ids)
        for row, length in enumerate(batch.lengths):
            self.padded[row, longest - length :] = batch.ids[row, :length]
            self.mask[row, longest - length :] = 1
        self.ids: torch.Tensor | None = None

    def __call__(self) -> float:
        first = _FirstToken(self.device)
        with torch.inference_mode():
            out = self.model.generate(
                self.padded,
                attention_mask=self.mask,
                max_new_tokens=self.new_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=1,
                stopping_criteria=StoppingCriteriaList([first]),
            )
        self.device.synchronise()
        end = time.perf_counter()
        self.ids = out[:, self.padded.shape[1] :]
        assert self.ids.shape[1] == self.new_tokens, f"ended after {self.ids.shape[1]} tokens"
        return end - first.at_s
