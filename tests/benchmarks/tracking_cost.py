"""What tracking costs a run: the same command with tracking off and offline, in turn.

Run: python tests/benchmarks/tracking_cost.py [PAIRS] [OVERRIDE ...] on a machine with nothing else
to do. Of each pair: the ratio of the whole processes' times, and that of the timed passes alone.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def measured(tracking: str, overrides: list[str]) -> tuple[float, float]:
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


def main(pairs: int, overrides: list[str]) -> None:
    """Prints each pair and the medians."""
    ratios: list[tuple[float, float]] = []
    more_s: list[float] = []
    for pair in range(pairs):
        found = {}
        for tracking in ("off", "offline")[:: 1 if pair % 2 else -1]:
            found[tracking] = measured(tracking, overrides)
        (off, off_timed), (offline, offline_timed) = found["off"], found["offline"]
        ratios.append((offline / off, offline_timed / off_timed))
        more_s.append(offline - off)
        sys.stdout.write(
            f"{pair}: off {off:.2f} s, offline {offline:.2f} s, ratio {offline / off:.3f}; "
            f"timed {off_timed:.2f} s, {offline_timed:.2f} s, ratio {ratios[-1][1]:.3f}\n"
        )
        sys.stdout.flush()
    whole, timed = (statistics.median(each) for each in zip(*ratios, strict=True))
    sys.stdout.write(
        f"medians: {statistics.median(more_s):+.2f} s, ratio {whole:.3f}; timed ratio {timed:.3f}\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or ["+method=skipdecode"])
