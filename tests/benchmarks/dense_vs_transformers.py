"""Is the baseline fast on small models too? Dense decoding against transformers' generate.

Same weights, greedy, 32 new tokens, fp32, prompt pass excluded, alternating legs. The larger model
is in ``at_size.py``. Run: python tests/benchmarks/dense_vs_transformers.py [repeats]
"""

import sys

import legs
from judged import Results, ratio
from theirs import Generate, to_transformers

SHAPES = (
    ("24 layers, width 512", legs.opt(24, 512, 8), 1.2),
    ("OPT-125m shape", legs.opt(12, 768, 12), 1.0),
)


def cases(results: Results, repeats: int) -> None:
    """All rows."""
    for label, shape, wanted in SHAPES:
        transformer = legs.drawn(shape)
        theirs, dense = to_transformers(transformer), legs.method("dense", shape)
        for rows in (1, 8):
            ours = legs.engine(transformer, rows)
            for equal in (True, False) if rows > 1 else (True,):
                batch = legs.prompts(rows, equal=equal)
                passes = {
                    "theirs": Generate(theirs, batch, legs.NEW_TOKENS),
                    "ours": legs.Decode(dense, ours, batch),
                }
                times = legs.alternate(passes, repeats)
                kind = "equal" if equal else "unequal"
                results.add(
                    f"dense / transformers.generate, {label}, fp32, batch {rows}, {kind} prompts",
                    ratio(times["theirs"], times["ours"]),
                    wanted,
                )


def main(repeats: int) -> int:
    results = Results()
    cases(results, repeats)
    return results.exit_code()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
