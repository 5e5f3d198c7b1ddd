"""Is the engine at the machine's limit? An OPT of 1.3B's shape, random weights, 32 new tokens.

Float32 and packed bfloat16: `dense` against transformers' generate; its share of the roofline that
the read bandwidth of the same run gives; what batches gain; SkipDecode's speed-up over its promise;
LayerSkip's at planted acceptance over its latency model, with a pass over d + 1 tokens as measured.
Alternating legs, medians of paired ratios, prompt pass excluded. On 2 cores some 20 minutes and 12
GB. Run: python tests/benchmarks/at_size.py [repeats]
"""

import sys
from collections.abc import Callable
from functools import partial

import legs
import torch
from judged import Results, ratio, spread
from planted import Planted
from theirs import Generate, to_transformers

from methods.engine.transformer import Transformer

SHAPE = legs.opt(24, 2048, 32)
PRESETS = ("2x", "4x")
# LayerSkip: E, d and the shares of drafts that are accepted.
EXIT_LAYER, DRAFTS, ACCEPTED = SHAPE.num_layers // 4, 4, (1.0, 0.8, 0.5)
OVER_TRANSFORMERS = {torch.float32: 1.15, torch.bfloat16: 1.3}
OF_ROOFLINE = {torch.float32: 0.85, torch.bfloat16: 0.5}
# Tokens/s over those of batch 1. At 32 rows products take longer than the weights' way from memory,
# unless the CPU multiplies matrices in one instruction.
OVER_BATCH_1, OVER_BATCH_1_BY_MATRIX_INSTRUCTIONS = {8: 5.0}, {32: 14.0}
OF_PROMISE, OF_LATENCY_MODEL = 0.95, 0.9
UNEQUAL_MAY_LOSE = 0.1
BATCHES = {torch.bfloat16: (1, 8, 32), torch.float32: (1, 8)}
LARGE_BATCH, LARGE_BATCH_REPEATS = 32, 2

Times = dict[str, list[float]]


def told(dtype: torch.dtype, rows: int) -> str:
    """The part of a name that says which case it is."""
    kind = "packed bf16" if dtype == torch.bfloat16 else "fp32"
    return f"OPT-1.3B shape, {kind}, batch {rows}"


class Case:
    """One batch size on weights that are held already: its legs, their times, and the rows of both.

    Args:
        transformer: the weights, at their dtype.
        theirs: the same ones in transformers.
        rows: of the batch.
        one: dense decoding at batch 1, to compare with; None for the case that is that.
    """

    def __init__(
        self, transformer: Transformer, theirs: torch.nn.Module, rows: int, one: legs.Decode | None
    ) -> None:
        self.dtype, self.rows, self.theirs, self.one = (
            transformer.embedding.weight.dtype,
            rows,
            theirs,
            one,
        )
        self.shape = transformer.shape
        self.name = told(self.dtype, rows)
        self.model = legs.engine(transformer, rows)
        self.batch = legs.prompts(rows)
        self.dense = legs.Decode(legs.method("dense", self.shape), self.model, self.batch)
        self.skipping = {preset: self._skipping(preset) for preset in PRESETS}
        self.drafting: dict[float, legs.Decode] = {}
        self.read = legs.Read() if rows == 1 else None
        if rows == 1 and self.dtype == torch.bfloat16:
            self.drafting = {accepted: self._drafting(accepted) for accepted in ACCEPTED}

    def _skipping(self, preset: str) -> legs.Decode:
        method = legs.method(
            "skipdecode", self.shape, preset=preset, schedule_length=legs.NEW_TOKENS
        )
        return legs.Decode(method, self.model, self.batch)

    def _drafting(self, accepted: float) -> legs.Decode:
        method = legs.method(
            "layerskip", self.shape, exit_layer=EXIT_LAYER, num_speculations=DRAFTS
        )
        return legs.Decode(method, self.model, self.batch, chooser=partial(Planted, accepted))

    def equal(self, results: Results, repeats: int) -> None:
        """Everything that is measured with prompts of one length, in one alternation."""
        passes: dict[str, Callable[[], float]] = {
            "theirs": Generate(self.theirs, self.batch, legs.NEW_TOKENS),
            "dense": self.dense,
            **self.skipping,
            **{f"accepted {accepted}": leg for accepted, leg in self.drafting.items()},
        }
        if self.read is not None:
            passes["read"] = self.read
        if self.one is not None:
            passes["one"] = self.one
        if self.drafting:
            for new in (1, DRAFTS + 1):
                passes[f"late {new}"] = legs.LatePass(self.model, self.batch, EXIT_LAYER, new)
        times = legs.alternate(passes, repeats, [self._warm_up])
        self._over_transformers(results, times, "equal prompts")
        self._limits(results, times)
        self._skipped(results, times)
        self._drafted(results, times)

    def unequal(self, results: Results, repeats: int) -> None:
        """Dense against transformers with prompts of 16..128 tokens."""
        batch = legs.prompts(self.rows, equal=False)
        passes = {
            "theirs": Generate(self.theirs, batch, legs.NEW_TOKENS),
            "dense": legs.Decode(self.dense.method, self.model, batch),
        }
        times = legs.alternate(passes, repeats, [passes["dense"].warm_up])
        self._over_transformers(results, times, "unequal prompts", 1 - UNEQUAL_MAY_LOSE)

    def _warm_up(self) -> None:
        short = legs.Prompts(self.batch.ids[:, :4], (4,) * self.rows)
        Generate(self.theirs, short, 4)()
        for leg in (self.dense, *self.skipping.values(), *self.drafting.values()):
            leg.warm_up()

    def _over_transformers(
        self, results: Results, times: Times, prompts: str, share: float = 1.0
    ) -> None:
        name = f"dense / transformers.generate, {self.name}, {prompts}"
        wanted = share * OVER_TRANSFORMERS[self.dtype]
        results.add(name, ratio(times["theirs"], times["dense"]), wanted)

    def _limits(self, results: Results, times: Times) -> None:
        if self.read is not None:
            share = self.dense.bytes() / self.read.num_bytes
            roofline_s = [share * seconds for seconds in times["read"]]
            name = f"dense, share of the read bandwidth's roofline, {self.name}"
            results.add(name, ratio(roofline_s, times["dense"]), OF_ROOFLINE[self.dtype])
        if self.one is None:
            return
        over_one = [self.rows * seconds for seconds in times["one"]]
        by_matrices = self.rows in OVER_BATCH_1_BY_MATRIX_INSTRUCTIONS
        results.add(
            f"dense, tokens/s over those of batch 1, {self.name}",
            ratio(over_one, times["dense"]),
            (OVER_BATCH_1 | OVER_BATCH_1_BY_MATRIX_INSTRUCTIONS)[self.rows],
            needs_matrix_instructions=by_matrices,
        )

    def _skipped(self, results: Results, times: Times) -> None:
        for preset, leg in self.skipping.items():
            # At batch 1 weights are waited for, at larger ones products.
            if self.rows == 1:
                promise, of = self.dense.bytes() / leg.bytes(), "bytes"
            else:
                promise, of = self.dense.flops() / leg.flops(), "FLOPs"
            name = f"skipdecode {preset}, speed-up / promise of {promise:.2f} by {of}, {self.name}"
            values = ratio(times["dense"], times[preset])
            results.add(name, tuple(value / promise for value in values), OF_PROMISE)

    def _drafted(self, results: Results, times: Times) -> None:
        for accepted, leg in self.drafting.items():
            passes = zip(times[f"late {DRAFTS + 1}"], times["late 1"], strict=True)
            models = [legs.predicted(leg, long / short) for long, short in passes]
            speedups = zip(times["dense"], times[f"accepted {accepted}"], strict=True)
            values = [a / b / model for (a, b), model in zip(speedups, models, strict=True)]
            name = (
                f"layerskip, speed-up / latency model's of {spread(models)[0]:.2f}, "
                f"acceptance {accepted:g}, {self.name}"
            )
            results.add(name, spread(values), OF_LATENCY_MODEL)


def cases(results: Results, repeats: int) -> None:
    """All rows."""
    for dtype, batches in BATCHES.items():
        transformer = legs.drawn(SHAPE, dtype)
        theirs = to_transformers(transformer)
        one: legs.Decode | None = None
        for rows in batches:
            case = Case(transformer, theirs, rows, one)
            times = min(repeats, LARGE_BATCH_REPEATS) if rows >= LARGE_BATCH else repeats
            case.equal(results, times)
            if rows > 1:
                case.unequal(results, times)
            elif dtype == torch.bfloat16:
                one = case.dense
            # Its packed weights, before the next ones are laid out.
            del case


def main(repeats: int) -> int:
    results = Results()
    cases(results, repeats)
    return results.exit_code()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
