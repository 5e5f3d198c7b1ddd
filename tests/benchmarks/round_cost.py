"""What does measuring cost? Ledger, driver and record per Round, in microseconds and as a share.

The bookkeeping is timed by itself: the same number of charges, driver steps, sums and record
lines as one decode makes, with a method that computes nothing. Wanted: at most 50 us a Round at
batch 1, and at most 5 % of the decode time of the embedded model; a row is what is allowed over
what is measured. Run: python tests/benchmarks/round_cost.py [repeats]
"""

import json
import sys
import time

import legs
import torch
from judged import Results, ratio, spread

from bench.decoding import Decoded, StopRule, decode
from bench.meters.device import CpuDevice
from bench.schema import Leg, plain
from methods.contract import Round
from methods.engine.cache import KVCache, Prompts
from methods.engine.sampling import Greedy
from methods.engine.shape import Shape, complete_fields
from methods.engine.transformer import Transformer

ROUNDS = 48
MOST_US, MOST_SHARE = 50.0, 0.05


class Bookkeeping:
    """Charges what a dense step charges, and computes nothing."""

    def __init__(self, shape: Shape, batch: Prompts) -> None:
        self.shape = shape
        # Made once: allocating it belongs to decoding, not to the books.
        self.cache = KVCache(shape, batch, ROUNDS, torch.float32)

    def decode(self, model, prompts, limits):
        cache = self.cache
        ids = torch.zeros(len(prompts.lengths), 1, dtype=torch.long) + 5
        charge = model.ledger.charge
        slot = max(prompts.lengths)
        for layer in range(self.shape.num_layers):
            charge("block", layer, cache.prompt_extent)
        yield Round(ids, self.shape.num_layers)
        while True:
            *_, extent = cache.together(ids, slot)
            slot += 1
            charge("embed", -1, extent)
            for layer in range(self.shape.num_layers):
                charge("block", layer, extent)
            charge("head", -1, extent)
            yield Round(ids, self.shape.num_layers)


def record(decoded: Decoded) -> str:
    """The line that the decode leaves in the records."""
    leg = Leg(
        ids=decoded.ids,
        texts=["a text of some words"] * len(decoded.ids),
        layers=decoded.layers,
        statistics={},
        scores={},
        timings=[decoded.timing],
        rounds=decoded.rounds,
        prompt_executed=decoded.prompt_executed,
        decode_executed=decoded.decode_executed,
        decode_required=decoded.decode_required,
    )
    return json.dumps(leg, default=plain)


def bookkeeping_s(model, books: Bookkeeping, batch: Prompts) -> float:
    """Seconds of one decode that computes nothing, its sums and its record."""
    start = time.perf_counter()
    done = decode(books, model, batch, StopRule(ROUNDS, (2,)), Greedy(), CpuDevice())
    record(done)
    return time.perf_counter() - start


def cases(results: Results, repeats: int) -> None:
    """All rows."""
    sizes = {"num_layers": 12, "width": 128, "num_heads": 4, "ffn_width": 512, "vocab_size": 768}
    fields = {"family": "opt", "max_positions": 2048, "eos_token_ids": (2,), **sizes}
    shape = Shape(**complete_fields(fields))
    transformer = Transformer(shape).initialise(0)
    dense = legs.method("dense", shape)
    for rows in (1, 8):
        model = legs.engine(transformer, rows)
        batch = Prompts.of([[2, *range(4, 28)]] * rows)
        books = Bookkeeping(shape, batch)
        times = legs.alternate(
            {
                "books": lambda m=model, k=books, b=batch: bookkeeping_s(m, k, b),
                "decode": lambda m=model, b=batch: legs.decode_s(dense, m, b, ROUNDS),
            },
            repeats,
        )
        if rows == 1:
            headroom = [MOST_US * ROUNDS / (1e6 * seconds) for seconds in times["books"]]
            name = f"{MOST_US:.0f} us / what measuring a Round costs, batch {rows}"
            results.add(name, spread(headroom), 1.0)
        allowed = [MOST_SHARE * seconds for seconds in times["decode"]]
        results.add(
            f"{MOST_SHARE:.0%} of decoding the tiny shape / what measuring costs, batch {rows}",
            ratio(allowed, times["books"]),
            1.0,
        )


def main(repeats: int) -> int:
    results = Results()
    cases(results, repeats)
    return results.exit_code()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 21))
