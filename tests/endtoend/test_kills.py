"""Killed at any moment, a run and a sweep lose no record, double none, and end like others."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS, BATCHES, RUNS = 30, 24, 3
COMMAND = (
    "model.weights=random",
    "gpu=cpu",
    f"task.limit={2 * BATCHES}",
    "meter.batch_size=2",
    "meter.repeats=1",
    "meter.warmups=0",
    "decode=fixed",
    "decode.max_new_tokens=48",
)
BENCH = (sys.executable, "-m", "bench")
SWEEP = (f"seed=range(0,{RUNS})", "-m")
pytestmark = pytest.mark.slow


def start(results_dir, *more):
    return subprocess.Popen(
        [*BENCH, "+method=dense", *COMMAND, f"results_dir={results_dir}", *more],
        cwd=ROOT,
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def whole_lines(results_dir):
    """Every run's recorded batches: all that must survive."""
    found = {}
    for path in results_dir.glob("*/1/batches.jsonl"):
        data = path.read_bytes()
        found[path] = data[: data.rfind(b"\n") + 1]
    return found


def killed_until_done(results_dir, more, draw, left):
    """Starts and kills, at most ``left`` times, until a start ends by itself; counts kills."""
    kills, startup_s = 0, first_record_s(results_dir, more)
    while True:
        before = whole_lines(results_dir)
        process = start(results_dir, *more)
        # From the first import to the last batch, wherever that falls.
        wait_s = draw.uniform(0.3, 1.3 * startup_s) if kills < left else 600
        try:
            out, _ = process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
        else:
            assert process.returncode == 0, out
            return kills
        after = whole_lines(results_dir)
        assert all(after[path].startswith(lines) for path, lines in before.items())


def first_record_s(results_dir, more):
    """Seconds from a start to its first record here and now; the process is then killed."""
    process, began = start(results_dir, *more), time.perf_counter()
    while not any(whole_lines(results_dir).values()) and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return time.perf_counter() - began


@pytest.mark.parametrize("more", [(), SWEEP], ids=["a run", "a sweep"])
def test_no_record_is_lost_or_doubled(more, tmp_path):
    kills, draw = 0, random.Random(7)
    while kills < KILLS:
        results_dir = tmp_path / f"after-{kills}-kills"
        kills += killed_until_done(results_dir, more, draw, KILLS - kills)
        check_whole(results_dir, RUNS if more else 1)
    lines = whole_lines(results_dir)
    out, _ = start(results_dir, *more).communicate(timeout=60)
    assert "already done" in out
    assert whole_lines(results_dir) == lines


def check_whole(results_dir, num_runs):
    """Every batch of every run is there once, and nothing else."""
    runs = list(results_dir.glob("*"))
    assert len(runs) == num_runs
    for run in runs:
        lines = (run / "1" / "batches.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["index"] for line in lines] == list(range(BATCHES))
        assert json.loads((run / "1" / "header.json").read_text())["num_batches"] == BATCHES
        assert not (run / "2").exists()
