"""The oracle: each token leaves at the first layer whose choice is the last layer's.

It bounds what any rule of confidence can save under state copying. It cannot be real: it looks at
the last layer first. That look is not charged, so its costs are those of a rule that knew; its time
is nobody's, and is not measured.
"""

from collections.abc import Generator, Sequence
from itertools import count

import torch
from torch import Tensor

from methods.contract import Limits, LiveRows, Round
from methods.engine.cache import KVCache, Positions, Prompts
from methods.engine.early_exit import Answer, leave_singly
from methods.engine.inference import InferenceModel
from methods.engine.lockstep import Lockstep
from methods.engine.shape import Shape
from methods.oracle.params import Params


class Method:
    """Exit by hindsight, row by row."""

    def __init__(self, params: Params, shape: Shape) -> None:
        self.params = params
        self.num_layers = shape.num_layers

    def decode(
        self, model: InferenceModel, prompts: Prompts, limits: Limits
    ) -> Generator[Round, LiveRows, None]:
        """One token a round; skipped layers hold keys and values of the copied state."""
        cache = model.new_cache(prompts, limits.max_new_tokens)
        ids = limits.chooser.choose(model.head(model.prefill(prompts, cache)), 0)
        live = yield Round(ids, self.num_layers)
        step = Lockstep(model, cache)
        for index in count(1):
            positions = step.advance(live)
            ids = step.kept(ids)
            with model.uncharged():
                first = self._first_agreeing(model, model.embed(ids, positions), positions, cache)

            def rule(
                depth: int,
                x: Tensor,
                before: Tensor,
                at: Positions,
                rows: Sequence[int],
                first: Tensor = first,
            ) -> Answer:
                return Answer(first[list(rows)] <= depth)

            # Overwrites what the look ahead wrote.
            x = model.embed(ids, positions)
            left = leave_singly(model, x, positions, cache, rule)
            ids = limits.chooser.choose(left.logits, index)
            run = torch.tensor(left.run)[:, None]
            live = yield Round(ids, run, layers_needed=left.depths)

    def _first_agreeing(
        self, model: InferenceModel, x: Tensor, positions: Positions, cache: KVCache
    ) -> Tensor:
        """(B,) the first layer, from 1, whose argmax is the last layer's."""
        choices = []
        for layer in range(self.num_layers):
            x = model.block(layer, x, positions, cache)
            choices.append(model.head(x, positions).argmax(dim=-1)[:, 0])
        agree = torch.stack(choices) == choices[-1]
        agree[: self.params.min_layer - 1] = False
        # Of equal values argmax gives the first.
        return agree.int().argmax(dim=0) + 1
