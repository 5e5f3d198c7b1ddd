"""Watching a decode from outside: layers, logits and caches as the engine saw them."""

from dataclasses import dataclass, field

import pytest
import torch

from methods.contract import Batch
from methods.engine.bound import Options
from methods.engine.inference import InferenceModel


@dataclass
class Watched:
    """A model whose primitives note what they are asked for.

    Attributes:
        layers: per step, the layers run; the prompt pass is no step.
        logits: per step, (B, T, V), the prompt pass first.
        positions: per step, the positions of its tokens, (B, T).
        cache: the cache of the last decode.
    """

    model: InferenceModel
    layers: list = field(default_factory=list)
    logits: list = field(default_factory=list)
    positions: list = field(default_factory=list)
    cache: object = None


@pytest.fixture
def watch():
    """``watch(transformer)``: a Watched model with a cache that refuses holes."""

    def make(transformer, **options):
        settings = {"packed": False, "checked_cache": True} | options
        watched = Watched(InferenceModel(transformer, Options(**settings)))
        model = watched.model
        block, head, embed, new_cache = model.block, model.head, model.embed, model.new_cache

        def watched_block(layer, *rest, **named):
            watched.layers[-1].append(layer)
            return block(layer, *rest, **named)

        def watched_head(*given):
            watched.logits.append(head(*given))
            return watched.logits[-1]

        def watched_embed(ids, positions):
            watched.layers.append([])
            watched.positions.append(positions.ids)
            return embed(ids, positions)

        def watched_cache(*given):
            watched.cache = new_cache(*given)
            return watched.cache

        model.block, model.head, model.embed = watched_block, watched_head, watched_embed
        model.new_cache = watched_cache
        return watched

    return make


@pytest.fixture
def make_batch():
    """``make_batch(rows, prompt_lengths)``: a right-padded training batch."""

    def make(rows, prompt_lengths):
        longest = max(map(len, rows))
        padded = [row + [1] * (longest - len(row)) for row in rows]
        lengths = torch.tensor(list(map(len, rows)))
        return Batch(torch.tensor(padded), torch.tensor(prompt_lengths), lengths)

    return make
