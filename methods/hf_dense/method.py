"""Plain greedy decoding by transformers' own ``generate``: a step is one token of every row."""

from collections.abc import Callable

from torch import Tensor

from methods.engine.hf import HfModel, Request
from methods.engine.shape import Shape
from methods.hf_dense.params import Params


class Method:
    """A peer: its defaults but for the stop rule, which is the suite's."""

    drafts = False

    def __init__(self, params: Params, shape: Shape) -> None:
        """Nothing to keep."""

    def generate(self, model: HfModel, request: Request, step: Callable[[int], None]) -> Tensor:
        """See ``contract.Peer``."""
        return model.generate(request, step)
