"""What tests of drafting methods share: ways to run one, and what it is compared with.

The law of plain sampling is written without the engine's own drawing and slots.
"""

import itertools

import numpy as np
import torch

from bench.decoding import StopRule, decode
from bench.meters.device import CpuDevice
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy

PROMPTS, NEW = [1, 7, 32, 3, 12], 13


class LateDevice(CpuDevice):
    """Reads back one round late, as a GPU with its queue."""

    lag = 1


def bind(transformer, **options):
    """In inference form, in the dtype of its weights, with a cache that refuses holes."""
    dtype = transformer.head_weight.dtype
    return InferenceModel(
        transformer, Options(**{"packed": False, "checked_cache": True, "dtype": dtype} | options)
    )


def decode_until(method, transformer, prompts, stop_ids=(), device=None):
    """Through the driver, with its stop rule."""
    model, rule = bind(transformer), StopRule(NEW, tuple(stop_ids))
    return decode(method, model, Prompts.of(prompts), rule, Greedy(), device or CpuDevice())


class Noting(Greedy):
    """Greedy, and notes each draft's own probability of its token: by round, step and row."""

    def __init__(self):
        super().__init__()
        self.likely = [[]]

    def draft(self, logits, index):
        self.likely[-1].append(logits.softmax(dim=-1).amax(dim=-1)[:, 0].tolist())
        return super().draft(logits, index)

    def verify(self, *given):
        self.likely.append([])
        return super().verify(*given)


def columns(rounds, name):
    """Per row, a quantity of each round behind the prompt's."""
    return list(zip(*(getattr(each, name).tolist() for each in rounds[1:]), strict=True))


def total(rounds, name):
    """Of all rows and rounds."""
    return sum(map(sum, columns(rounds, name)))


def rooms(accepted, most, new=NEW):
    """Room for a row's drafts in each round, from what was accepted; 0 once it is finished."""
    made, room = 1, []
    for kept in accepted:
        room.append(max(0, min(most, new - made - 1)))
        made += kept + 1
    return room


@torch.no_grad()
def agreeing(transformer, scale, first=1):
    """Shrinks what layers from ``first`` on add to the residual stream; 0 for nothing at all."""
    for layer, block in enumerate(transformer.blocks):
        for part in (block.out, block.down) if layer >= first else ():
            part.weight.mul_(scale)
            if part.bias is not None:
                part.bias.mul_(scale)
    return transformer


def count_writes(model):
    """Tokens whose keys and values each layer writes from now on, counted at the cache."""
    tokens, new_cache = [0] * model.shape.num_layers, model.new_cache

    def counted(write):
        def note(layer, kv, *rest):
            tokens[layer] += kv.shape[1] * kv.shape[3]
            write(layer, kv, *rest)

        return note

    def make(*given):
        cache = new_cache(*given)
        cache.write, cache.write_prompt = counted(cache.write), counted(cache.write_prompt)
        return cache

    model.new_cache = make
    return tokens


def _warped(logits, temperature, top_p):
    """The law by definition: temperature, then the likeliest that hold ``top_p``; (V,)."""
    p = (logits.double() / temperature).softmax(dim=0).tolist()
    ranked = sorted(range(len(p)), key=lambda each: -p[each])
    sizes = itertools.accumulate(p[each] for each in ranked)
    kept = ranked[: 1 + next(i for i, held in enumerate(sizes) if held >= top_p)]
    return np.array([p[each] * (each in kept) for each in range(len(p))]) / sum(
        p[each] for each in kept
    )


@torch.no_grad()
def plain_law(transformer, prompt, tokens, temperature, top_p):
    """Law of the first tokens of plain sampling, (V,) * tokens, from full passes."""
    vocab = transformer.shape.vocab_size
    law = np.ones(())
    for length in range(tokens):
        ids = [[*prompt, *rest] for rest in itertools.product(range(vocab), repeat=length)]
        last = transformer(torch.tensor(ids))[:, -1]
        after = np.array([_warped(each, temperature, top_p) for each in last])
        law = law[..., None] * after.reshape((*law.shape, vocab))
    return law


def may_follow(rows, law):
    """Whether rows of tokens lie as near to a law as 99.9 % of its own samples do.

    By total variation: of the whole law, and of the law of the tokens before the last.
    """
    found = np.zeros(law.shape)
    np.add.at(found, tuple(np.array(rows).T), 1 / len(rows))
    laws = [(found.ravel(), law.ravel()), (found.sum(axis=-1).ravel(), law.sum(axis=-1).ravel())]
    return all(_near(seen, expected, len(rows)) for seen, expected in laws)


def _near(seen, law, rows):
    by_chance = np.random.default_rng(0).multinomial(rows, law, size=4000) / rows
    bound = np.quantile(np.abs(by_chance - law).sum(axis=1), 0.999)
    return bool(np.abs(seen - law).sum() <= bound)
