"""Does it pay that finished rows leave? Decode time without engine.drop_finished / with it.

Width 256, 12 layers, OPT's vocabulary, random weights, fp32, batch 32, outputs of 10..48 tokens,
evenly spread, about as E2E's are.
Run: python tests/benchmarks/drop_finished.py [repeats]
"""

import sys

import legs
import torch
from judged import Results, ratio
from torch import Tensor

from bench.costs import flops
from bench.decoding import Decoded, StopRule, decode
from bench.meters.device import CpuDevice
from methods.contract import Method
from methods.engine.cache import Prompts
from methods.engine.dropping import select
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy

ROWS, SHORTEST, LONGEST, EOS = 32, 10, 48, 2


class Ending(Greedy):
    """Greedy, but each row ends at a length of its own and nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        spread = torch.linspace(SHORTEST, LONGEST, ROWS).long()
        self.lengths = spread[torch.randperm(ROWS, generator=draw)][:, None]

    def choose(self, logits: Tensor, index: int | Tensor) -> Tensor:
        ids = super().choose(logits, index)
        ids = ids.masked_fill(ids == EOS, EOS + 1)
        return ids.masked_fill(self.lengths == index + 1, EOS)

    def keep(self, rows: list[int]) -> None:
        self.lengths = select(self.lengths, rows)
        super().keep(rows)


def decoded(method: Method, model: InferenceModel, batch: Prompts, *, drop: bool) -> Decoded:
    """One pass."""
    rule = StopRule(LONGEST, (EOS,), drop_finished=drop)
    return decode(method, model, batch, rule, Ending(), CpuDevice())


def cases(results: Results, repeats: int) -> None:
    """All rows."""
    shape = legs.opt(12, 256, 4)
    model = legs.engine(legs.drawn(shape), ROWS)
    batch = legs.prompts(ROWS, equal=False)
    for name, settings in (("dense", {}), ("skipdecode", {"schedule_length": LONGEST})):
        method = legs.method(name, shape, **settings)
        stay, leave = (decoded(method, model, batch, drop=drop) for drop in (False, True))
        assert stay.ids == leave.ids
        fewer = flops(stay.decode_executed, shape) / flops(leave.decode_executed, shape)
        least = flops(stay.decode_executed, shape) / flops(stay.decode_required, shape)
        times = legs.alternate(
            {
                drop: lambda m=method, d=drop: (
                    decoded(m, model, batch, drop=d == "leave").timing.decode_s
                )
                for drop in ("stay", "leave")
            },
            repeats,
        )
        case = (
            f"{name}, time if finished rows stay / if they leave, batch {ROWS}, "
            f"{fewer:.2f}x fewer FLOPs run, {least:.2f}x at most"
        )
        results.add(case, ratio(times["stay"], times["leave"]), 1.0)


def main(repeats: int) -> int:
    results = Results()
    cases(results, repeats)
    return results.exit_code()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
