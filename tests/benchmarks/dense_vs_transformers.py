"""Is the baseline fast? Dense decoding against transformers' generate on the same weights.

Greedy, 128 new tokens, fp32, prompt pass excluded, alternating legs.
Run: python tests/benchmarks/dense_vs_transformers.py [repeats]
"""

import sys
import time

import legs
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from methods.engine.cache import Prompts
from methods.engine.transformer import Transformer


class FirstToken(StoppingCriteria):
    """Notes when the first token was there; never stops."""

    def __init__(self) -> None:
        self.at_s: float | None = None

    def __call__(self, input_ids, scores, **kwargs):
        if self.at_s is None:
            self.at_s = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def generate_s(model: torch.nn.Module, batch: Prompts) -> float:
    """Seconds from the first token to the last of transformers' own loop."""
    longest = max(batch.lengths)
    ids = torch.ones(len(batch.lengths), longest, dtype=torch.long)
    for row, length in enumerate(batch.lengths):
        ids[row, longest - length :] = batch.ids[row, :length]
    mask = torch.arange(longest) >= longest - torch.tensor(batch.lengths)[:, None]
    first = FirstToken()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=mask.long(),
            max_new_tokens=legs.NEW_TOKENS,
            min_new_tokens=None,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=1,
            stopping_criteria=StoppingCriteriaList([first]),
        )
    end = time.perf_counter()
    assert out.shape[1] == longest + legs.NEW_TOKENS
    return end - first.at_s


def main(repeats: int) -> None:
    results = legs.Results("dense / transformers.generate, speed of decoding, fp32")
    for label, shape, wanted in (
        ("24 layers, width 512", legs.opt(24, 512, 8), 1.2),
        ("OPT-125m shape", legs.opt(12, 768, 12), 1.0),
    ):
        transformer = Transformer(shape).initialise(0)
        theirs = legs.to_transformers(transformer)
        dense = legs.method("dense", shape)
        for rows in (1, 8):
            ours = legs.engine(transformer, rows)
            for equal in (True, False) if rows > 1 else (True,):
                batch = legs.prompts(rows, equal=equal)
                times = legs.alternate(
                    {
                        "theirs": lambda b=batch, m=theirs: generate_s(m, b),
                        "ours": lambda b=batch, m=ours, d=dense: legs.decode_s(
                            d, m, b, legs.NEW_TOKENS
                        ),
                    },
                    repeats,
                )
                kind = "equal" if equal else "unequal"
                case = f"{label}, batch {rows}, {kind} prompts"
                results.add(case, legs.ratio(times["theirs"], times["ours"]), wanted)
    results.show()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
