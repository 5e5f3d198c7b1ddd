"""Self-speculative decoding of LayerSkip (arXiv 2404.16710, section 4), exact for any batch.

The first E layers draft, the others verify: one cache, and the states behind layer E and the early
keys and values are used again, so that no layer sees a token twice. Differs from the official code:
batches of any size, whose rows accept different numbers of tokens; the cache is never cropped
(stale slots are overwritten before they become visible); the law of drafts and target is one.
"""

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from methods.contract import Batch, Limits, LiveRows, Loss, Progress, Round
from methods.engine.cache import KVCache, Prompts, upload
from methods.engine.inference import InferenceModel
from methods.engine.ragged import Ragged, drafting, layers_run
from methods.engine.sampling import Chooser, Draft
from methods.engine.shape import Shape
from methods.engine.transformer import Transformer
from methods.layerskip.objective import recipe_loss
from methods.layerskip.params import Params


class Method:
    """Draft with the first layers, verify with the rest."""

    def __init__(self, params: Params, shape: Shape) -> None:
        self.params = params
        self.num_layers = shape.num_layers
        self.exit_layer = params.exit_layer or 1
        self.num_drafts = params.num_speculations or 1

    def decode(
        self, model: InferenceModel, prompts: Prompts, limits: Limits
    ) -> Generator[Round, LiveRows, None]:
        """A round is one verification: up to d accepted drafts and one token more, row by row."""
        cache = model.new_cache(prompts, limits.max_new_tokens)
        ids = limits.chooser.choose(model.head(model.prefill(prompts, cache)), 0)
        live = yield Round(ids, self.num_layers)
        rows, newest = Ragged(model, cache, limits.max_new_tokens), ids
        given = torch.ones(len(ids), dtype=torch.long, device=ids.device)
        while True:
            rows.advance(given, live)
            index = rows.index()
            drafts, states, drafted = self._draft(
                model, cache, rows, rows.kept(newest), limits.chooser
            )
            counts = upload(drafted, model.device)
            logits = self._finish(model, cache, rows, states, drafted)
            verified = limits.chooser.verify(drafts, logits, counts, index)
            given = verified.accepted + 1
            newest = verified.ids.gather(1, verified.accepted[:, None])
            live = yield Round(
                verified.ids,
                layers_run(verified.ids, verified.accepted, counts, self.num_layers),
                counts=given,
                drafted=counts,
                accepted=verified.accepted,
            )

    def _draft(
        self,
        model: InferenceModel,
        cache: KVCache,
        rows: Ragged,
        newest: Tensor,
        chooser: Chooser,
    ) -> tuple[list[Draft], list[Tensor], list[int]]:
        """Early passes over each row's newest token and its drafts, the last one included.

        Returns:
            The drafts, the states behind layer E of all tokens, and how many each row drafted.
        """
        drafted, first = rows.room(self.num_drafts), rows.index()
        drafts: list[Draft] = []
        states: list[Tensor] = []
        token, step = newest, 0
        while True:
            positions = rows.at(step, 1, drafted)
            x = model.embed(token, positions)
            for layer in range(self.exit_layer):
                x = model.block(layer, x, positions, cache)
            states.append(x)
            if step == max(drafted):
                return drafts, states, drafted
            logits = model.head(x, drafting(positions, step, drafted))
            drafts.append(chooser.draft(logits, first + step))
            token, step = drafts[-1].ids, step + 1
            if self.params.stop_confidence is not None:
                sure = _probability(logits, token) >= self.params.stop_confidence
                drafted = _stopped(drafted, sure.tolist(), step)

    def _finish(
        self,
        model: InferenceModel,
        cache: KVCache,
        rows: Ragged,
        states: Sequence[Tensor],
        drafted: Sequence[int],
    ) -> Tensor:
        """The late layers over all states at once: the target's logits, (B, d + 1, V)."""
        positions = rows.at(0, len(states), drafted)
        x = torch.cat(list(states), dim=1)
        for layer in range(self.exit_layer, self.num_layers):
            x = model.block(layer, x, positions, cache)
        return model.head(x, positions)

    def objective(self, model: Transformer, batch: Batch, progress: Progress) -> Loss:
        """Layer dropout and the weighted losses of early exits."""
        return Loss(recipe_loss(model, batch, self.params, progress))


def _probability(logits: Tensor, token: Tensor) -> Tensor:
    """The draft's own probability of the tokens that it chose, (B,)."""
    return logits.float().softmax(dim=-1).gather(-1, token[..., None])[:, 0, 0]


def _stopped(drafted: Sequence[int], sure: Sequence[bool], step: int) -> list[int]:
    """A row whose newest draft is not confident enough drafts no further; that draft is kept.

    Throwing it away would make the draft's law depend on what was drawn, and the output with it.
    """
    return [
        count if goes_on else min(count, step) for count, goes_on in zip(drafted, sure, strict=True)
    ]
