"""What tracking costs a run: wall time of the same command with tracking off and offline.

Run: python tests/benchmarks/tracking_cost.py [PAIRS] [OVERRIDE ...]; the runs alternate.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def seconds(tracking: str, overrides: list[str]) -> float:
    """Of one whole process."""
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
        return time.perf_counter() - began


def main(pairs: int, overrides: list[str]) -> None:
    """Prints each pair and the medians."""
    found: dict[str, list[float]] = {"off": [], "offline": []}
    for pair in range(pairs):
        for tracking in ("off", "offline")[:: 1 if pair % 2 else -1]:
            found[tracking].append(seconds(tracking, overrides))
        now = {name: round(each[-1], 2) for name, each in found.items()}
        sys.stdout.write(f"{pair}: {now}\n")
        sys.stdout.flush()
    off, offline = (statistics.median(each) for each in found.values())
    more_s, share = offline - off, offline / off - 1
    sys.stdout.write(f"off {off:.2f} s, offline {offline:.2f} s: {more_s:+.2f} s, {share:+.1%}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:] or ["+method=skipdecode"])
