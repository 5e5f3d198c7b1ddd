"""``make gpu-check``: is the suite right and fast on this GPU? One script, under 8 minutes.

Random weights of a tiny and of the OPT-1.3B shape: ids equal to transformers' own, how often the
host waits in a step, `dense` against transformers' generate, SkipDecode's presets, LayerSkip at
planted acceptance, and every option of the engine. Needs torch >= 2.6 and transformers >= 4.45, and
nothing that the rest of the suite installs. Writes ``results/published/gpu_check.csv``; ends with 1
if a case failed or came out wrong, with 2 without a GPU. Times are shown, not judged.
Run, in the root of the repository: PYTHONPATH=. python tests/benchmarks/gpu_check.py
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import legs
import torch
from gpu_cases import Held, Sizes, called, equal_ids, option, speeds, variants, waits_of_methods
from gpu_rows import Found, Table

from methods.engine.shape import Shape

FILE = Path(__file__).resolve().parents[2] / "results" / "published" / "gpu_check.csv"
# Of the 8 minutes; what comes later is left out, and said to be.
SECONDS = 420.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        device: where.
        shapes: by name; the last is the one whose speed is asked for with every option.
        dtypes: the first likewise.
        batches: rows.
        sizes: of each case.
    """

    device: torch.device
    shapes: Mapping[str, Shape] = field(
        default_factory=lambda: {
            "tiny": legs.opt(12, 128, 4, vocab_size=768),
            "OPT-1.3B shape": legs.opt(24, 2048, 32),
        }
    )
    dtypes: Sequence[torch.dtype] = (torch.bfloat16, torch.float32, torch.float16)
    batches: Sequence[int] = (1, 8, 32)
    sizes: Sizes = field(default_factory=Sizes)

    def held(self, name: str, dtype: torch.dtype) -> Held:
        return Held(name, self.shapes[name], dtype, self.device, self.sizes)


Case = tuple[str, Callable[[], Iterator[Found]]]


def cases(plan: Plan) -> Iterator[Case]:
    """Each with its name: what is right, then speed, then every option, then the other dtypes.

    Weights are drawn when their first case runs, and let go before the next ones are drawn.
    """
    *small, large = plan.shapes
    first, *others = plan.dtypes
    for name in plan.shapes:
        held = plan.held(name, torch.float32)
        yield f"{held.name}, ids", partial(equal_ids, held, plan.batches)
        yield f"{held.name}, waits", partial(waits_of_methods, held)
        for changes in variants(plan.device) if name in small else ():
            yield _option(held, max(plan.batches[:2]), changes)
        held.let_go()
    held = plan.held(large, first)
    yield from _speeds(held, plan.batches)
    for rows in plan.batches:
        for changes in variants(plan.device):
            yield _option(held, rows, changes)
    held.let_go()
    rest = [(name, first) for name in small] + [(large, dtype) for dtype in others]
    for name, dtype in rest + [(name, dtype) for name in small for dtype in others]:
        held = plan.held(name, dtype)
        yield from _speeds(held, plan.batches)
        held.let_go()


def _speeds(held: Held, batches: Sequence[int]) -> Iterator[Case]:
    for rows in batches:
        yield f"{held.name}, batch {rows}", partial(speeds, held, rows)


def _option(held: Held, rows: int, changes: Mapping[str, object]) -> Case:
    return f"{called(changes)}, {held.name}, batch {rows}", partial(option, held, rows, changes)


def check(plan: Plan, path: Path, seconds: float = SECONDS) -> int:
    """Runs all cases; the exit code."""
    table = Table(path, plan.device)
    end = time.perf_counter() + seconds
    for name, case in cases(plan):
        if time.perf_counter() > end:
            table.add(Found(name, note=f"left out: {seconds:.0f} s were over"))
            continue
        try:
            for found in case():
                table.add(found)
        # A case that fails must not cost the others, whatever it fails of.
        except Exception as error:  # noqa: BLE001
            first_line = str(error).partition("\n")[0]
            table.add(Found(name, note=f"failed: {type(error).__name__}: {first_line}", wrong=True))
    return int(table.anything_wrong)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=FILE, help="the file of rows (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit (%(default).0f)")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.stderr.write(f"torch {torch.__version__} sees no GPU: nothing was measured\n")
        return 2
    return check(Plan(torch.device("cuda")), asked.out, asked.seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
