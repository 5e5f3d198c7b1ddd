"""What went wrong is told as it was; the others are done; a retry runs only what is not."""

import os
import signal

import pytest

pytestmark = pytest.mark.slurm

FAILED, KILLED, EATER, CANCELLED = 1, 2, 3, 4
WRONG = {
    FAILED: ("failed", "planted"),
    KILLED: ("failed", "signal 9"),
    EATER: ("out of memory", "over its memory"),
    CANCELLED: ("cancelled", "cancelled"),
}


@pytest.fixture
def five(handed):
    """A sweep of five runs, of which four are planted to come to grief; waited for."""
    made = handed()
    for what in (f"fail-{FAILED}", f"hold-{KILLED}", f"eat-{EATER}", f"hold-{CANCELLED}"):
        made.plant(what)
    process = made.start("gpu=lab_a", "seed=0,1,2,3,4")
    made.lab.until(lambda: made.has(f"held-{KILLED}") and made.has(f"held-{CANCELLED}"))
    os.kill(made.journal(KILLED)[0]["pid"], signal.SIGKILL)
    made.lab.call("scancel", made.states()[CANCELLED]["slurm_id"])
    return made, made.end(process, 0)


def test_each_state_is_what_it_was_and_a_retry_runs_only_what_is_not_done(five):
    made, ended = five
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == "4 of 5 runs failed"
    states = made.states()
    assert states[0]["status"] == "done"
    for seed, (status, words) in WRONG.items():
        assert states[seed]["status"] == status, states[seed]
        assert words in states[seed]["note"].lower()
        assert states[seed]["status"] in ended.out
    failure = made.results / states[FAILED]["run_id"] / "1" / "failure.txt"
    assert failure.read_text().rstrip().endswith("RuntimeError: planted")
    assert str(failure) in states[FAILED]["note"]
    [[_, state, code]] = made.lab.accounted([states[FAILED]["slurm_id"]], "State", "ExitCode")
    assert (state, code) == ("FAILED", "1:0")
    assert made.slurm("status", "1", "--watch").code == 1

    for path in made.planted.iterdir():
        path.unlink()
    before = made.header(states[0])
    ended = made.slurm("retry", "1", "launch.slurm.memory_gb=2")
    assert ended.out == "sweep 1: 4 runs handed in, 4 jobs\n", ended.err
    assert made.slurm("status", "1", "--watch").code == 0
    again = made.states()
    assert [state["status"] for state in again] == ["done"] * 5
    assert again[0]["slurm_id"] == states[0]["slurm_id"]
    assert made.header(again[0]) == before
    ids = [state["slurm_id"] for state in again[1:]]
    assert not set(ids) & {state["slurm_id"] for state in states}
    assert all("mem=2G" in row[1] for row in made.lab.accounted(ids, "AllocTRES"))


def test_a_cancelled_sweep_is_cancelled_and_the_same_command_does_not_hand_in_twice(handed):
    made = handed()
    made.plant("hold-0")
    first = made.call("gpu=lab_a", "launch.wait=false")
    assert first.code == 0, first.err
    made.lab.until(lambda: made.has("held-0"))
    second = made.call("gpu=lab_a", "launch.wait=false")
    assert second.code == 0, second.err
    assert "queued before" in second.out
    assert not (made.results / "sweeps" / "2").exists()
    ended = made.slurm("cancel", "1")
    assert ended.out == "sweep 1: 1 jobs cancelled\n", ended.err
    made.lab.until(lambda: made.states()[0]["status"] == "cancelled")
    assert made.slurm("cancel", "1").out == "sweep 1: 0 jobs cancelled\n"


def test_stopping_to_wait_leaves_the_jobs_and_says_how_to_come_back(handed):
    made = handed()
    made.plant("hold-0")
    process = made.start("gpu=lab_a")
    made.lab.until(lambda: made.has("held-0"))
    process.send_signal(signal.SIGINT)
    ended = made.end(process, 0)
    assert ended.code == 130
    assert "the jobs go on; python -m slurm status 1 --results" in ended.err
    assert "Traceback" not in ended.err
    made.uproot("hold-0")
    assert made.slurm("status", "1", "--watch").code == 0


def test_at_the_first_failure_the_others_are_ended_if_asked(handed):
    made = handed()
    for what in ("fail-0", "hold-1"):
        made.plant(what)
    ended = made.call("gpu=lab_a", "seed=0,1", "launch.fail_fast=true")
    assert ended.code == 1
    assert "stopped at the first failure (launch.fail_fast=true)" in ended.err
    made.lab.until(lambda: made.states()[1]["status"] == "cancelled")
    assert made.states()[0]["status"] == "failed"


def test_what_slurm_refuses_leaves_nothing_in_the_queue(handed):
    made = handed()
    ended = made.call("gpu=lab_a,lab_b", "++gpu.slurm.gres=gpu:9", "launch.wait=false")
    assert ended.code == 2
    assert "SLURM refuses a job; none is left in the queue" in ended.err
    assert "gpu:9" in ended.err
    assert "Traceback" not in ended.err
    assert made.lab.call("squeue", "-h") == ""
