"""The dense baseline: every layer for every token, with a key-value cache."""

from collections.abc import Generator
from itertools import count

from methods.contract import Batch, Limits, LiveRows, Loss, Progress, Round
from methods.dense.params import Params
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.lockstep import Lockstep
from methods.engine.shape import Shape
from methods.engine.transformer import Transformer


class Method:
    """Autoregressive decoding."""

    def __init__(self, params: Params, shape: Shape) -> None:
        self.layers = range(shape.num_layers)

    def decode(
        self, model: InferenceModel, prompts: Prompts, limits: Limits
    ) -> Generator[Round, LiveRows, None]:
        """One token a round."""
        cache = model.new_cache(prompts, limits.max_new_tokens)
        ids = limits.chooser.choose(model.head(model.prefill(prompts, cache)), 0)
        live = yield Round(ids, len(self.layers))
        step = Lockstep(model, cache)
        for index in count(1):
            positions = step.advance(live)
            x = model.embed(step.kept(ids), positions)
            for layer in self.layers:
                x = model.block(layer, x, positions, cache)
            ids = limits.chooser.choose(model.head(x, positions), index)
            live = yield Round(ids, len(self.layers))

    def objective(self, model: Transformer, batch: Batch, progress: Progress) -> Loss:
        """Next-token cross-entropy of the target with every layer."""
        x, rope = model.embed(batch.ids), model.rope(batch.ids.shape[1])
        for block in model.blocks:
            x = block(x, rope)
        return Loss(model.target_loss(x, batch.ids, batch.prompt_lengths, batch.lengths))
