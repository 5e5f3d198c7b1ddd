"""What tracking costs a run: the same command with tracking off and offline, in turn.

Run: python tests/benchmarks/tracking_cost.py [PAIRS] [OVERRIDE ...] on a machine with nothing else
to do. Of each pair: the ratio of the whole processes' times, and that of the timed passes alone.
Wanted: under 2 % of a run's time.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from judged import Results, ratio

ROOT = Path(__file__).resolve().parents[2]
OVERRIDES = ("+method=skipdecode",)
WANTED = 1 / 1.02


def measured(tracking: str, overrides: Sequence[str]) -> tuple[float, float]:
    """Seconds of one whole process, and of its timed passes."""
    with tempfile.TemporaryDirectory() as results:
        given = [f"tracking={tracking}", f"results_dir={results}", "verbosity=quiet", *overrides]
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "bench", *given],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "WANDB_MODE"},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        whole = time.perf_counter() - began
        [path] = Path(results).glob("*/1/batches.jsonl")
        batches = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    legs = [leg for batch in batches for leg in batch["legs"].values()]
    passes = [timing for leg in legs for timing in leg["timings"]]
    return whole, sum(each["ttft_s"] + each["decode_s"] for each in passes)


def cases(results: Results, pairs: int, overrides: Sequence[str] = OVERRIDES) -> None:
    """All rows; each pair is shown, too."""
    times: dict[str, list[tuple[float, float]]] = {"off": [], "offline": []}
    for pair in range(pairs):
        for tracking in ("off", "offline")[:: 1 if pair % 2 else -1]:
            times[tracking].append(measured(tracking, overrides))
        (off, off_timed), (offline, offline_timed) = times["off"][-1], times["offline"][-1]
        sys.stdout.write(
            f"{pair}: off {off:.2f} s, offline {offline:.2f} s; "
            f"timed {off_timed:.2f} s, {offline_timed:.2f} s\n"
        )
        sys.stdout.flush()
    for part, name in enumerate(("the whole run", "its timed passes")):
        pairs_of_times = ([each[part] for each in times[leg]] for leg in ("off", "offline"))
        results.add(f"tracking off / offline, {name}", ratio(*pairs_of_times), WANTED)


def main(pairs: int, overrides: Sequence[str]) -> int:
    results = Results()
    cases(results, pairs, overrides)
    return results.exit_code()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or OVERRIDES))
