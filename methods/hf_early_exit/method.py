"""Self-speculative decoding by transformers' own ``generate(assistant_early_exit=E)``.

Each draft is a nested ``generate`` of the model cut to its first layers, with a cache of its own:
weights are shared with the verification, neither keys and values nor computation are. The
library's defaults differ: 20 drafted tokens, and a draft that stops where it is less than 0.4 sure.
Here d is as set, and the threshold is 0, so that the pair (E, d) is that of ``layerskip``.
"""

from collections.abc import Callable

from torch import Tensor

from methods.engine.hf import HfModel, Request
from methods.engine.shape import Shape
from methods.hf_early_exit.params import Params


class Method:
    """A peer: draft with the first layers, verify with all."""

    drafts = True

    def __init__(self, params: Params, shape: Shape) -> None:
        self.params = params

    def generate(self, model: HfModel, request: Request, step: Callable[[int], None]) -> Tensor:
        """See ``contract.Peer``; the first step drafts and verifies already."""
        return model.generate(
            request,
            step,
            mode={"assistant_early_exit": self.params.exit_layer},
            drafts={
                "num_assistant_tokens": self.params.num_speculations,
                "num_assistant_tokens_schedule": "constant",
                "assistant_confidence_threshold": 0.0,
            },
        )
