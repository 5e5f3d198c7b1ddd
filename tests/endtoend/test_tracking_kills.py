"""Killed at any moment, run or W&B, a run loses and doubles nothing, and W&B gets it whole."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from tests.tracked_runs import DEAD, Runs, descendants, warnings

MOMENTS = 20
LONGER = ("decode.max_new_tokens=48",)
pytestmark = pytest.mark.slow


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "runs")


def seconds_of(runs):
    """Of a whole run, here and now."""
    began = time.perf_counter()
    assert runs.call(*LONGER).code == 0
    return time.perf_counter() - began


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_ended_at_any_moment_is_one_whole_run_in_the_end(number, tmp_path):
    draw = random.Random(int(number))
    whole_s = seconds_of(Runs(tmp_path / "measured"))
    ended = at = 0
    while ended < MOMENTS:
        runs = Runs(tmp_path / f"runs{at}")
        at += 1
        while True:
            process = runs.start(*LONGER)
            wait_s = draw.uniform(0.2, 1.1 * whole_s) if ended < MOMENTS else 180
            try:
                process.communicate(timeout=wait_s)
            except subprocess.TimeoutExpired:
                process.send_signal(number)
                process.communicate(timeout=60)
                ended += 1
            else:
                break
        # What is left to do after the last start is nothing, or done now.
        last = runs.call(*LONGER)
        assert (last.code, warnings(last.err)) == (0, [])
        runs.check_records()
        runs.check_one_whole_run()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_w_and_b_killed_at_any_moment_does_not_end_a_run(number, tmp_path):
    """Online, against an address where nobody answers."""
    draw = random.Random(int(number))
    whole_s = seconds_of(Runs(tmp_path / "measured"))
    for at in range(MOMENTS):
        runs = Runs(tmp_path / f"runs{at}")
        process = runs.start(*LONGER, "tracking=online", "tracking.wait_s=3", **DEAD)
        with suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0.2, whole_s))
        # The one that reads the records, W&B's own beneath it, or both.
        there = sorted(descendants(process.pid))
        for pid in draw.sample(there, draw.randint(min(1, len(there)), len(there))):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        assert len(warnings(err)) == 1
        runs.check_records()
        # What could not be sent is built, to be sent later.
        assert runs.call("action=export-wandb").code == 0
        runs.check_one_whole_run()
