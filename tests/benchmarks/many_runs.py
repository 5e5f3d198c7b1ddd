"""How long does the table of many runs take, and how much memory? Seconds and peak of each format.

Each is one process as a user starts it, imports included. Wanted for 10,000 runs: under 5 s and
under 1 GB; on a machine with other work, processor time is what can be compared, so that is
judged; a row is what is allowed over what is measured. Run: python tests/benchmarks/many_runs.py
[runs]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from judged import Results

from bench import columns
from bench.schema import SCHEMA_VERSION, Header, Start, plain

ROOT = Path(__file__).resolve().parents[2]
ASKED = {
    "table": [],
    "csv": ["--format", "csv"],
    "json": ["--format", "json"],
    "means over seeds": ["--group", "seed"],
    "one method": ["--where", "method==calm", "--columns", "run_id,speedup"],
}
SEEDS = 5
RUNS, MOST_S, MOST_MB = 10_000, 5.0, 1000.0


def make(results: Path, count: int) -> None:
    """Complete runs, written without waiting for the disk."""
    names = columns.names(["bleu", "rouge_l"])
    unknown = {column.name for column in columns.COLUMNS if not column.unit}
    for number in range(count):
        setting, seed = divmod(number, SEEDS)
        run_id = f"{number:012x}"
        row = {name: number / 7 + at for at, name in enumerate(names) if name not in unknown}
        row |= {"run_id": run_id, "status": "done", "setting": f"target={setting}", "seed": seed}
        row |= {"method": ("calm", "skipdecode")[setting % 2], "attempt": 1, "batch_size": 8}
        row = dict.fromkeys(names) | row
        start = Start(
            schema_version=SCHEMA_VERSION,
            run_id=run_id,
            attempt=1,
            identity={"setting": setting, "seed": seed},
            config={},
            columns=row,
            shapes={},
            started_at="2026-01-01T00:00:00+00:00",
        )
        folder = results / run_id / "1"
        folder.mkdir(parents=True)
        for name, record in (
            ("start", start),
            ("header", Header(SCHEMA_VERSION, row, 1, start.started_at)),
        ):
            text = json.dumps(record, indent=1, default=plain)
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
        (folder / "lock").touch()
        # Larger than any row of the table: what reads it without need is found out.
        (folder / "batches.jsonl").write_text("no record\n" * 1000, encoding="utf-8")


def measured(results: Path, arguments: list[str]) -> tuple[float, float, float]:
    """Seconds, seconds of processor time and MB of one listing."""
    command = [sys.executable, "-m", "analysis", "runs", "--results", str(results), *arguments]
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def cases(results: Results, count: int = RUNS) -> None:
    """All rows; what is allowed is for ``RUNS``."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), count)
        for name, arguments in ASKED.items():
            seconds, busy, peak = measured(Path(folder), arguments)
            told = f"{seconds:.2f} s, {busy:.2f} s of processor time, {peak:.0f} MB"
            sys.stdout.write(f"{count} runs, {name}: {told}\n")
            results.add(f"{MOST_S:.0f} s / time of {count} runs, {name}", (MOST_S / busy,) * 3, 1.0)
            results.add(
                f"{MOST_MB:.0f} MB / peak of {count} runs, {name}", (MOST_MB / peak,) * 3, 1.0
            )


def main(count: int) -> int:
    results = Results()
    cases(results, count)
    return results.exit_code()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS))
