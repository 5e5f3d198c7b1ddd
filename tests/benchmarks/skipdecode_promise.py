"""Does skipping pay on a small model? SkipDecode's decode speed-up over its promise in FLOPs.

OPT-125m shape, random weights, fp32, 32 new tokens, presets 2x and 4x, batch 1 and 8. The larger
model is in ``at_size.py``. Run: python tests/benchmarks/skipdecode_promise.py [repeats]
"""

import sys

import legs
from judged import Results, ratio

WANTED = 0.9


def cases(results: Results, repeats: int) -> None:
    """All rows."""
    shape = legs.opt(12, 768, 12)
    transformer = legs.drawn(shape)
    for rows in (1, 8):
        model, batch = legs.engine(transformer, rows), legs.prompts(rows)
        dense = legs.Decode(legs.method("dense", shape), model, batch)
        for preset in ("2x", "4x"):
            method = legs.method(
                "skipdecode", shape, preset=preset, schedule_length=legs.NEW_TOKENS
            )
            skip = legs.Decode(method, model, batch)
            times = legs.alternate({"dense": dense, "skip": skip}, repeats)
            promise = dense.flops() / skip.flops()
            results.add(
                f"skipdecode {preset}, speed-up / promise of {promise:.2f} by FLOPs, "
                f"OPT-125m shape, fp32, batch {rows}",
                tuple(value / promise for value in ratio(times["dense"], times["skip"])),
                WANTED,
            )


def main(repeats: int) -> int:
    results = Results()
    cases(results, repeats)
    return results.exit_code()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
