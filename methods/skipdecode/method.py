"""SkipDecode decoding (arXiv 2307.02628): at step t every row runs the layers A(t), and no others.

Differs from the reference: there is none; what the paper leaves open is a setting, named in
``conf/method/skipdecode.yaml``. The prompt runs at full depth.
"""

from collections.abc import Generator
from itertools import count

import torch

from methods.contract import Batch, Limits, LiveRows, Loss, Progress, Round
from methods.engine.cache import KVCache, Positions, Prompts
from methods.engine.inference import InferenceModel
from methods.engine.lockstep import Lockstep
from methods.engine.shape import Shape
from methods.engine.transformer import Transformer
from methods.skipdecode.objective import scheduled_pass
from methods.skipdecode.params import Params, schedule_of


class Method:
    """Position-scheduled layer skipping."""

    def __init__(self, params: Params, shape: Shape) -> None:
        self.params = params
        self.schedule = schedule_of(params, shape)
        self.num_layers = shape.num_layers

    def decode(
        self, model: InferenceModel, prompts: Prompts, limits: Limits
    ) -> Generator[Round, LiveRows, None]:
        """One token a round. Skipped layers are the identity and write nothing to the cache."""
        cache = model.new_cache(prompts, limits.max_new_tokens)
        ids = limits.chooser.choose(model.head(model.prefill(prompts, cache)), 0)
        live = yield Round(ids, self.num_layers)
        step = Lockstep(model, cache)
        for index in count(1):
            positions = step.advance(live)
            x = model.embed(step.kept(ids), positions)
            # The schedule's clock of each row, at its first decode step and now.
            starts = cache.lengths if self.params.clock == "position" else (0,) * len(x)
            times = [start + index - 1 for start in starts]
            layers = self.schedule.layers(min(times))
            if min(times) == max(times):
                needed = None
                for layer in layers:
                    x = model.block(layer, x, positions, cache)
            else:
                needed = [self.schedule.budget(t) for t in times]
                x = self._uneven_step(model, x, positions, cache, times)
            ids = limits.chooser.choose(model.head(x, positions), index)
            live = yield Round(ids, len(layers), layers_needed=needed)

    def _uneven_step(
        self,
        model: InferenceModel,
        x: torch.Tensor,
        positions: Positions,
        cache: KVCache,
        times: list[int],
    ) -> torch.Tensor:
        """Rows at different t: the union of their layers, the identity where a row's own is off.

        The sets are nested, so the union is the set of the row with the smallest t; what a row
        writes in a layer that it has left is never read by it again.
        """
        active = [set(self.schedule.layers(t)) for t in times]
        for layer in self.schedule.layers(min(times)):
            runs = [layer in own for own in active]
            y = model.block(layer, x, positions, cache)
            x = y if all(runs) else torch.where(_column(runs, x), y, x)
        return x

    def objective(self, model: Transformer, batch: Batch, progress: Progress) -> Loss:
        """Next-token cross-entropy of the last layer, each position under its own budget."""
        from_prompt = self.params.clock == "generated"
        x = scheduled_pass(model, batch, self.schedule, from_prompt=from_prompt)
        return Loss(model.target_loss(x, batch.ids, batch.prompt_lengths, batch.lengths))


def _column(runs: list[bool], x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(runs, device=x.device)[:, None, None]
