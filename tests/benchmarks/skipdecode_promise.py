"""Does skipping pay in time what it promises in FLOPs? SkipDecode's decode speed-up / its promise.

OPT-125m shape, random weights, fp32, 128 new tokens, presets 2x and 4x, batch 1 and 8.
Run: python tests/benchmarks/skipdecode_promise.py [repeats]
"""

import sys
from functools import reduce
from operator import add

import legs

from bench.costs import flops
from methods.contract import Method
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.transformer import Transformer


def executed(method: Method, model: InferenceModel, batch: Prompts) -> int:
    """Decode FLOPs of one pass, by the ledger."""
    legs.decode_s(method, model, batch, legs.NEW_TOKENS)
    return flops(reduce(add, model.ledger.executed()[1:]), model.shape)


def main(repeats: int) -> None:
    results = legs.Results("SkipDecode: measured speed-up / promised by executed FLOPs")
    shape = legs.opt(12, 768, 12)
    transformer = Transformer(shape).initialise(0)
    dense = legs.method("dense", shape)
    for rows in (1, 8):
        model = legs.engine(transformer, rows)
        batch = legs.prompts(rows, equal=True)
        for preset in ("2x", "4x"):
            skip = legs.method("skipdecode", shape, preset=preset, schedule_length=legs.NEW_TOKENS)
            promise = executed(dense, model, batch) / executed(skip, model, batch)
            times = legs.alternate(
                {
                    "dense": lambda b=batch, m=model: legs.decode_s(dense, m, b, legs.NEW_TOKENS),
                    "skip": lambda b=batch, m=model, s=skip: legs.decode_s(
                        s, m, b, legs.NEW_TOKENS
                    ),
                },
                repeats,
            )
            speedup = legs.ratio(times["dense"], times["skip"])
            case = f"{preset}, batch {rows} ({speedup[0]:.2f}x of {promise:.2f}x)"
            results.add(case, tuple(value / promise for value in speedup), 0.9)
    results.show()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
