"""Prompt lookup by transformers' own ``generate(prompt_lookup_num_tokens=K)``.

What followed the first earlier occurrence of the last N tokens, or else of fewer, is the draft; a
step without one is a plain step.
"""

from collections.abc import Callable

from torch import Tensor

from methods.engine.hf import HfModel, Request
from methods.engine.shape import Shape
from methods.hf_prompt_lookup.params import Params


class Method:
    """A peer: draft from the text so far, verify with the model."""

    drafts = True

    def __init__(self, params: Params, shape: Shape) -> None:
        self.params = params

    def generate(self, model: HfModel, request: Request, step: Callable[[int], None]) -> Tensor:
        """See ``contract.Peer``; the first step drafts and verifies already."""
        mode = {
            "prompt_lookup_num_tokens": self.params.num_speculations,
            "max_matching_ngram_size": self.params.max_ngram,
        }
        return model.generate(request, step, mode=mode)
