"""Static exit: every token, the prompt's too, leaves behind the same layer.

What remains is a smaller model with its own cache: the layers above neither run nor hold anything.
"""

from collections.abc import Generator
from itertools import count

from methods.contract import Limits, LiveRows, Round
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.lockstep import Lockstep
from methods.engine.shape import Shape
from methods.static.params import Params


class Method:
    """The first ``exit_layer`` layers and the exit head."""

    def __init__(self, params: Params, shape: Shape) -> None:
        self.layers = range(params.exit_layer or shape.num_layers)

    def decode(
        self, model: InferenceModel, prompts: Prompts, limits: Limits
    ) -> Generator[Round, LiveRows, None]:
        """One token a round."""
        depth = len(self.layers)
        cache = model.new_cache(prompts, limits.max_new_tokens)
        x = model.prefill(prompts, cache, layers=depth)
        ids = limits.chooser.choose(model.head(x), 0)
        live = yield Round(ids, depth)
        step = Lockstep(model, cache)
        for index in count(1):
            positions = step.advance(live)
            x = model.embed(step.kept(ids), positions)
            for layer in self.layers:
                x = model.block(layer, x, positions, cache)
            ids = limits.chooser.choose(model.head(x, positions), index)
            live = yield Round(ids, depth)
