"""Legs of a benchmark: shapes, weights, decodes and alternating timing, shared by this folder.

Ratios of legs that alternate in one process are what these scripts give; absolute times on a shared
machine mean nothing. Needs nothing but torch. Not here: transformers' leg (``theirs.py``), what a
ratio should reach (``judged.py``).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch

from bench.costs import bytes_moved, flops
from bench.decoding import Decoded, StopRule, decode
from bench.meters import device as devices
from bench.meters.clock import elapsed
from methods.contract import Method
from methods.engine.bound import Options, best_attention
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Chooser, Greedy
from methods.engine.shape import Shape, complete_fields
from methods.engine.transformer import Transformer
from methods.layerskip.params import predicted_speedup
from methods.registry import find_method, find_params

NEW_TOKENS = 32
CPU = torch.device("cpu")
READ_BYTES = 2**30
# Deviations of what is looked up; matrices have 1 / sqrt(inputs).
_EMBEDDINGS = {"embedding.weight": 0.1, "position_embedding.weight": 1.0}


def opt(num_layers: int, width: int, num_heads: int, vocab_size: int = 50272) -> Shape:
    """An OPT of the usual proportions."""
    fields = complete_fields(
        {
            "family": "opt",
            "num_layers": num_layers,
            "width": width,
            "num_heads": num_heads,
            "ffn_width": 4 * width,
            "vocab_size": vocab_size,
            "max_positions": 2048,
            "bos_token_id": 2,
            "eos_token_ids": (2,),
            "pad_token_id": 1,
        }
    )
    return Shape(**fields)


@torch.no_grad()
def drawn(
    shape: Shape, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> Transformer:
    """Random weights, drawn cheaply where they lie, whose greedy ids do not repeat for ever.

    As large as keeps a layer's output near its input's size; an OPT's usual ones are so small that
    it says one token again and again, and equal ids would show nothing.
    """
    with torch.device("meta"):
        transformer = Transformer(shape)
    transformer = transformer.to(dtype).to_empty(device=device)
    draw = torch.Generator(device).manual_seed(0)
    for name, parameter in transformer.named_parameters():
        if parameter.dim() < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        deviation = _EMBEDDINGS.get(name, parameter.shape[1] ** -0.5)
        width = 3**0.5 * deviation
        parameter.uniform_(-width, width, generator=draw)
        if name.endswith("down.weight"):
            # What a ReLU lets through has a mean, which would drown the token.
            parameter.sub_(parameter.mean(dim=1, keepdim=True))
    return transformer


def prompts(
    rows: int, *, equal: bool = True, vocab_size: int = 50000, device: torch.device = CPU
) -> Prompts:
    """Random prompts: 64 tokens each, or 16..128 tokens evenly spread."""
    draw = torch.Generator().manual_seed(0)
    lengths = [64] * rows if equal else [16 + 112 * row // max(rows - 1, 1) for row in range(rows)]
    ids = [torch.randint(4, vocab_size, (each,), generator=draw).tolist() for each in lengths]
    return Prompts.of(ids, device)


def method(name: str, shape: Shape, **settings: object) -> Method:
    """A method with its settings resolved."""
    module = find_params(name)
    params = module.resolve(module.Params(**settings), shape, {})
    return find_method(name).Method(params, shape)


def engine(transformer: Transformer, rows: int, **changes: object) -> InferenceModel:
    """The inference form that a run of so many rows uses where the weights lie."""
    weight = transformer.embedding.weight
    attention = best_attention(weight.device.type, weight.dtype, rows)
    options = Options(weight.dtype, str(weight.device), packed=True, rows=rows, attention=attention)
    return InferenceModel(transformer, replace(options, **changes))


class Decode:
    """A leg: decode seconds of one pass at fixed length, the prompt pass excluded.

    Attributes:
        latest: the latest pass.
    """

    def __init__(
        self,
        method: Method,
        model: InferenceModel,
        batch: Prompts,
        new_tokens: int = NEW_TOKENS,
        chooser: Callable[[], Chooser] = Greedy,
    ) -> None:
        self.method, self.model, self.batch = method, model, batch
        self.new_tokens, self.chooser = new_tokens, chooser
        self.device = devices.of(model.device)
        self.latest: Decoded | None = None

    def __call__(self) -> float:
        return self._pass(self.batch, self.new_tokens).timing.decode_s

    def warm_up(self) -> None:
        """A pass of short prompts and few tokens: what is set up at first is set up by that."""
        rows = len(self.batch.lengths)
        short = Prompts(self.batch.ids[:, :4], (4,) * rows)
        self._pass(short, min(self.new_tokens, 8))

    def _pass(self, batch: Prompts, new_tokens: int) -> Decoded:
        rule = StopRule(new_tokens, ())
        self.latest = decode(self.method, self.model, batch, rule, self.chooser(), self.device)
        return self.latest

    def flops(self) -> int:
        """Executed by the latest pass, in decoding."""
        return flops(self.latest.decode_executed, self.model.shape)

    def bytes(self) -> int:
        """Moved by the latest pass, in decoding."""
        dtype = str(self.model.options.dtype).removeprefix("torch.")
        return bytes_moved(self.latest.decode_traffic, self.model.shape, dtype)


def decode_s(method: Method, model: InferenceModel, batch: Prompts, new_tokens: int) -> float:
    """Decode seconds of one pass."""
    return Decode(method, model, batch, new_tokens)()


class Read:
    """A leg: seconds to read so many bytes, as a sum does; a mean, as a decode's time is one."""

    def __init__(self, device: torch.device = CPU, num_bytes: int = READ_BYTES) -> None:
        self.num_bytes, self.device = num_bytes, devices.of(device)
        # Not zeros: pages that nobody wrote to may all be one.
        self.values = torch.ones(num_bytes // 4, device=device)

    def __call__(self) -> float:
        passes = 5
        return sum(elapsed(self.device, self.values.sum) for _ in range(passes)) / passes


class LatePass:
    """A leg: seconds of the layers from ``first`` on and the head, over so many tokens of a row."""

    def __init__(self, model: InferenceModel, batch: Prompts, first: int, new: int) -> None:
        self.model, self.first, self.new = model, first, new
        self.cache = model.new_cache(batch, new)
        self.slot = max(batch.lengths)
        self.device = devices.of(model.device)

    def __call__(self) -> float:
        model, rows = self.model, len(self.cache.lengths)
        at = torch.arange(self.slot, self.slot + self.new, device=model.device)
        positions = model.at(self.cache, at.expand(rows, -1), self.slot)
        shape = (rows, self.new, model.shape.width)
        states = torch.ones(shape, dtype=model.options.dtype, device=model.device)

        @torch.inference_mode()
        def run() -> None:
            x = states
            for layer in range(self.first, model.shape.num_layers):
                x = model.block(layer, x, positions, self.cache)
            model.head(x, positions)

        with model.uncharged():
            return min(elapsed(self.device, run) for _ in range(3))


def predicted(drafting: Decode, verification: float) -> float:
    """LayerSkip's latency model, of the acceptance that the leg had.

    Args:
        drafting: a leg of that method, decoded once.
        verification: measured time of a pass over d + 1 tokens, over that of one; a round that
            drafts less (there is no room behind the last) takes as much less.
    """
    counts, drafts = drafting.latest.speculation, drafting.method.num_drafts
    kept = sum(len(row) - 1 for row in drafting.latest.ids)
    drafted = counts.drafted / counts.verifications
    return predicted_speedup(
        drafting.method.params,
        drafting.model.shape,
        given=kept / counts.verifications,
        drafted=drafted,
        verification=1 + (verification - 1) * drafted / drafts,
    )


def alternate(
    legs: Mapping[str, Callable[[], float]],
    repeats: int,
    warm_ups: Iterable[Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each leg, order reversed in every other repeat.

    Args:
        legs: by name; a call is a pass and gives its seconds.
        repeats: timed passes of each.
        warm_ups: what is run before; None for one untimed pass of each leg.
    """
    times: dict[str, list[float]] = {name: [] for name in legs}
    for leg in legs.values() if warm_ups is None else warm_ups:
        leg()
    for repeat in range(repeats):
        names = list(legs)
        for name in names if repeat % 2 else reversed(names):
            times[name].append(legs[name]())
    return times
