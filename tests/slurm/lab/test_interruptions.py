"""Told to end, a job ends between two batches, is queued again, and its run goes on."""

import platform

import pytest

pytestmark = pytest.mark.slurm

BATCHES = 6


def check_whole(made, state, *, segments):
    """Every batch is there once, in the segments that were stated, and the run is one."""
    batches = made.lines(state, "batches")
    assert [each["index"] for each in batches] == list(range(BATCHES))
    assert len(made.lines(state, "segments")) == segments
    assert {each["segment"] for each in batches} == set(range(segments))
    assert made.header(state)["num_batches"] == BATCHES
    assert len([path for path in made.results.iterdir() if path.name != "sweeps"]) == 1
    restarts = [each["provenance"]["job"]["restarts"] for each in made.lines(state, "segments")]
    assert restarts == list(range(segments))


def kinds(journal):
    return [event["what"] for event in journal]


def paused(made, *arguments):
    """A sweep of one run that waits behind its second batch until its job is told to end."""
    made.plant("pause-0")
    ended = made.call("gpu=lab_a", "launch.wait=false", "launch.margin_s=1", *arguments)
    assert ended.code == 0, ended.err
    made.lab.until(lambda: made.has("paused-0"))
    [state] = made.states()
    assert state["status"] == "running"
    assert (state["batches_done"], state["batches"]) == (2, BATCHES)
    return state["slurm_id"]


def until_ended(made, code=0):
    ended = made.slurm("status", "1", "--watch")
    assert ended.code == code, ended.out + ended.err
    [state] = made.states()
    return state


def test_preempted_by_a_better_partition_it_goes_on_afterwards(handed):
    made = handed()
    slurm_id = paused(made, "launch.slurm.partition=preempt")
    made.lab.call("sbatch", "-p", "debug", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    state = until_ended(made)
    assert state["status"] == "done"
    assert (state["preempted"], state["timeouts"]) == (1, 0)
    assert state["slurm_id"] == slurm_id
    check_whole(made, state, segments=2)
    assert "stopped" in kinds(made.journal(0))


def test_told_by_term_it_is_queued_again(handed):
    made = handed()
    made.lab.call("scancel", "--signal=TERM", paused(made))
    state = until_ended(made)
    assert (state["status"], state["preempted"]) == ("done", 1)
    check_whole(made, state, segments=2)
    assert kinds(made.journal(0))[3:6] == ["stopped", "requeued", "started"]


def test_requeued_by_hand_it_does_not_queue_itself(handed):
    made = handed()
    made.lab.call("scontrol", "requeue", paused(made))
    state = until_ended(made)
    assert (state["status"], state["preempted"]) == ("done", 1)
    check_whole(made, state, segments=2)
    assert "requeued" not in kinds(made.journal(0))


def test_after_its_node_was_lost_it_goes_on(handed):
    made, node = handed(), f"nodename={platform.node().partition('.')[0]}"
    slurm_id = paused(made)
    made.lab.call("scontrol", "update", node, "state=down", "reason=test")
    made.lab.until(lambda: made.lab.is_up(node))
    state = until_ended(made)
    assert (state["status"], state["slurm_id"]) == ("done", slurm_id)
    check_whole(made, state, segments=2)
    states = [row[1] for row in made.lab.accounted([slurm_id], "State")]
    assert states == ["NODE_FAIL", "COMPLETED"]


def test_where_requeues_are_not_wanted_it_is_preempted_and_can_be_retried(handed):
    made = handed()
    made.lab.call("scancel", "--signal=USR2", paused(made, "launch.requeue=false"))
    state = until_ended(made, code=1)
    assert (state["status"], state["note"]) == ("preempted", "launch.requeue=false")
    ended = made.slurm("retry", "1")
    assert ended.code == 0, ended.err
    assert ended.out == "sweep 1: 1 runs handed in, 1 jobs\n"
    state = until_ended(made)
    assert (state["status"], state["preempted"]) == ("done", 0)
    assert [each["index"] for each in made.lines(state, "batches")] == list(range(BATCHES))


@pytest.mark.slurm_long
def test_at_its_time_limit_it_goes_on_in_a_new_one(handed):
    made = handed()
    paused(made, "launch.slurm.minutes=2", "launch.notice_s=30")
    state = until_ended(made)
    assert (state["status"], state["preempted"], state["timeouts"]) == ("done", 0, 1)
    check_whole(made, state, segments=2)


@pytest.mark.slurm_long
def test_a_run_of_which_no_batch_fits_the_time_limit_is_not_queued_for_ever(handed):
    made = handed()
    made.plant("hold-0")
    limits = ("launch.slurm.minutes=2", "launch.notice_s=30", "launch.margin_s=29")
    ended = made.call("gpu=lab_a", *limits)
    assert ended.code == 1
    [state] = made.states()
    assert state["status"] == "timed out"
