"""Prompt lookup: a row's draft is what followed its newest n-gram before, in prompt or output.

Nothing is trained, and drafting costs no layer: one pass of the whole model verifies. Differs from
transformers' prompt_lookup_num_tokens: batches of any size, whose rows draft and accept different
numbers of tokens; the latest earlier place is copied from, since what a text repeats it repeats
soon (``match``), and a copy goes on with what it has written. A draft is not cut at EOS, which is
the driver's to know.
"""

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from methods.contract import Limits, LiveRows, Round
from methods.engine.cache import KVCache, Prompts, upload
from methods.engine.inference import InferenceModel
from methods.engine.ragged import Ragged, layers_run
from methods.engine.sampling import Draft
from methods.engine.shape import Shape
from methods.prompt_lookup.history import History
from methods.prompt_lookup.params import Params


class Method:
    """Draft by looking up, verify with every layer."""

    def __init__(self, params: Params, shape: Shape) -> None:
        self.params = params
        self.num_layers = shape.num_layers
        self.sizes = range(params.max_ngram, params.min_ngram - 1, -1)

    def decode(
        self, model: InferenceModel, prompts: Prompts, limits: Limits
    ) -> Generator[Round, LiveRows, None]:
        """A round is one verification: a plain step for a row that found nothing to copy."""
        # Before anything is queued on the device, so that nothing is waited for.
        texts = prompts.ids.tolist()
        cache = model.new_cache(prompts, limits.max_new_tokens)
        logits = model.head(model.prefill(prompts, cache))
        # While a GPU computes the prompts.
        histories = self._histories(texts, prompts.lengths)
        ids = limits.chooser.choose(logits, 0)
        live = yield Round(ids, self.num_layers)
        rows = Ragged(model, cache, limits.max_new_tokens)
        given = torch.ones(len(ids), dtype=torch.long, device=ids.device)
        while True:
            tokens = rows.advance(given, live, ids)
            histories = rows.kept(histories)
            for history, new in zip(histories, tokens, strict=True):
                history.extend(new)
            room = rows.room(self.params.num_speculations)
            drafts = [each.draft(most) for each, most in zip(histories, room, strict=True)]
            drafted = list(map(len, drafts))
            counts = upload(drafted, model.device)
            fed = upload(_padded(histories, drafts), model.device)
            logits = self._pass(model, cache, rows, fed, drafted)
            verified = limits.chooser.verify([Draft(fed[:, 1:])], logits, counts, rows.index())
            ids, given = verified.ids, verified.accepted + 1
            live = yield Round(
                ids,
                layers_run(ids, verified.accepted, counts, self.num_layers),
                counts=given,
                drafted=counts,
                accepted=verified.accepted,
            )

    def _histories(self, texts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[History]:
        """What each row holds before its first new token; pads left out."""
        histories = []
        for text, length in zip(texts, lengths, strict=True):
            histories.append(History(self.sizes, self.params.match))
            histories[-1].extend(text[:length])
        return histories

    def _pass(
        self,
        model: InferenceModel,
        cache: KVCache,
        rows: Ragged,
        fed: Tensor,
        drafted: Sequence[int],
    ) -> Tensor:
        """Every layer over each row's newest token and its drafts: logits, (B, d + 1, V)."""
        positions = rows.at(0, fed.shape[1], drafted)
        x = model.embed(fed, positions)
        for layer in range(self.num_layers):
            x = model.block(layer, x, positions, cache)
        return model.head(x, positions)


def _padded(histories: Sequence[History], drafts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each row's newest token, its draft, and padding that is a valid id; all of one length."""
    longest = max(map(len, drafts))
    rows = []
    for history, draft in zip(histories, drafts, strict=True):
        newest = history.ids[-1]
        rows.append([newest, *draft, *[newest] * (longest - len(draft))])
    return rows
