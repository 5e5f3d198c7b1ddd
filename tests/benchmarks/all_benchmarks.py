"""``make benchmark``: every benchmark of this folder, one table, one verdict.

Writes ``results/benchmarks.csv`` and ends with 1 if a judged ratio falls short. Under 25 minutes on
2 cores, if nothing else is at work; parts that would not fit must be asked for by name. Apart,
because each benchmark runs alone too. Run: python tests/benchmarks/all_benchmarks.py [part ...]
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import at_size
import dense_vs_transformers
import drop_finished
import many_runs
import peers
import round_cost
import skipdecode_promise
import torch
import tracking_cost
from judged import Results

FILE = Path(__file__).resolve().parents[2] / "results" / "benchmarks.csv"
THREADS = 2
PARTS: Mapping[str, Callable[[Results], None]] = {
    "at_size": partial(at_size.cases, repeats=3),
    "dense_vs_transformers": partial(dense_vs_transformers.cases, repeats=3),
    "skipdecode_promise": partial(skipdecode_promise.cases, repeats=5),
    "peers": partial(peers.cases, repeats=3),
    "round_cost": partial(round_cost.cases, repeats=21),
    "drop_finished": partial(drop_finished.cases, repeats=3),
    "many_runs": many_runs.cases,
    "tracking_cost": partial(tracking_cost.cases, pairs=5),
}
# 5 pairs of whole runs.
ONLY_BY_NAME = {"tracking_cost"}


def main(names: Sequence[str], path: Path = FILE) -> int:
    """Runs the parts that are named, or all that fit."""
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        sys.stderr.write(f"no part {', '.join(unknown)}; parts: {', '.join(PARTS)}\n")
        return 2
    torch.set_num_threads(THREADS)
    results = Results()
    start = time.perf_counter()
    for name in names or [part for part in PARTS if part not in ONLY_BY_NAME]:
        PARTS[name](results)
        # After each part: an interrupted run leaves what it has.
        results.write(path)
        sys.stdout.write(f"--- {name}: {(time.perf_counter() - start) / 60:.1f} min so far\n")
    code = results.exit_code()
    short = [row.name for row in results.rows if row.judged and not row.reached]
    sys.stdout.write("".join(f"FALLS SHORT: {name}\n" for name in short) + f"{path}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
