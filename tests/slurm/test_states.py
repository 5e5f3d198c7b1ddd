"""How a run stands follows from its records, the job's journal and SLURM, in this order."""

import pytest

from bench.schema import SCHEMA_VERSION, Header
from slurm import commands, states, sweeps
from slurm.commands import Accounted, Held
from slurm.sweeps import RunEntry, Submission

SLURM_ID, JOB = "12_0", "1-0-0"


@pytest.fixture
def stands(monkeypatch, tmp_path):
    """``stands(events, held, accounted, output, done)``: how the one run stands."""
    sweep = sweeps.make(tmp_path)
    entry = RunEntry("seed=0", "dense", "0123456789ab", 1, str(tmp_path))
    sweep.write_about("python -m bench", [entry])
    sweep.add([Submission(JOB, (0,), SLURM_ID)])

    def make(events=(), held=None, accounted=None, output=b"", *, done=False):
        for what, facts in events:
            sweep.journal(JOB).note(what, **facts)
        sweep.output(SLURM_ID).write_bytes(output)
        if done:
            entry.records.folder.mkdir(parents=True)
            entry.records.write_header(Header(SCHEMA_VERSION, {}, 0, "now"))
        known = {} if held is None else {SLURM_ID: held}
        monkeypatch.setattr(commands, "held", lambda ids: known)
        found = {} if accounted is None else {SLURM_ID: accounted}
        monkeypatch.setattr(commands, "accounted", lambda ids: dict(found))
        [state] = states.of_sweep(sweep)
        return state

    return make


STARTED = ("started", {"slurm_id": SLURM_ID})
BEGAN = ("run began", {"run": 0, "batches": 8})
LIMIT = ("stopped", {"why": "time limit"})
OVER = b"slurmstepd: error: Job 12 exceeded memory limit (9 > 8), being killed\n"
KILLED = Accounted("FAILED", 0, 9, 5)

CASES = {
    "queued": ({"held": Held("PENDING", "Resources")}, "queued", ""),
    "queued for a reason that a user can mend": (
        {"held": Held("PENDING", "AssocGrpGRES")},
        "queued",
        "AssocGrpGRES",
    ),
    "running": ({"held": Held("RUNNING"), "events": [STARTED, BEGAN]}, "running", ""),
    "ending": ({"held": Held("COMPLETING"), "events": [STARTED, BEGAN]}, "running", ""),
    "behind another run of its job": ({"held": Held("RUNNING"), "events": [STARTED]}, "queued", ""),
    "done, whatever SLURM says": ({"done": True, "accounted": KILLED}, "done", ""),
    "failed while its job goes on with another run": (
        {
            "held": Held("RUNNING"),
            "events": [STARTED, BEGAN, ("run failed", {"run": 0, "error": "boom\nat x"})],
        },
        "failed",
        "boom",
    ),
    "no memory to be had": (
        {"events": [STARTED, BEGAN, ("run failed", {"run": 0, "error": "x", "memory": True})]},
        "out of memory",
        "x",
    ),
    "killed": ({"events": [STARTED, BEGAN], "accounted": KILLED}, "failed", "failed, signal 9: "),
    "killed, as a shell tells it": (
        {"events": [STARTED, BEGAN], "accounted": Accounted("FAILED", 137, 0, 5)},
        "failed",
        "failed, signal 9: ",
    ),
    "killed by polling its memory": (
        {"events": [STARTED, BEGAN], "accounted": KILLED, "output": OVER},
        "out of memory",
        "over its memory",
    ),
    "killed by its control group": (
        {"events": [STARTED, BEGAN], "accounted": Accounted("OUT_OF_MEMORY", 0, 125, 5)},
        "out of memory",
        "launch.slurm.memory_gb",
    ),
    "behind a run that was over the memory": (
        {"events": [STARTED, ("run began", {"run": 1})], "accounted": KILLED, "output": OVER},
        "not started",
        "",
    ),
    "cancelled": ({"accounted": Accounted("CANCELLED", 0, 0, 0)}, "cancelled", "cancelled"),
    "timed out": (
        {"events": [STARTED, BEGAN], "accounted": Accounted("TIMEOUT", 0, 0, 60)},
        "timed out",
        "timeout",
    ),
    "not queued again": (
        {
            "events": [STARTED, BEGAN, LIMIT, ("not requeued", {"why": "too often"})],
            "accounted": Accounted("FAILED", 75, 0, 60),
        },
        "timed out",
        "too often",
    ),
    "preempted for good": (
        {"events": [STARTED, BEGAN], "accounted": Accounted("PREEMPTED", 0, 0, 60)},
        "preempted",
        "preempted",
    ),
    "a lost node": (
        {"events": [STARTED, BEGAN], "accounted": Accounted("NODE_FAIL", 0, 0, 60)},
        "failed",
        "node fail",
    ),
    "a job that ended well without a result": (
        {"events": [STARTED], "accounted": Accounted("COMPLETED", 0, 0, 60)},
        "lost",
        "left no result",
    ),
    "a job that nobody knows": ({"events": [STARTED]}, "lost", "SLURM knows nothing"),
    "accounting behind the controller": (
        {
            "held": Held("CANCELLED"),
            "events": [STARTED, BEGAN],
            "accounted": Accounted("RUNNING", 0, 0, 60),
        },
        "cancelled",
        "cancelled",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_stands_as_it_does(name, stands):
    given, status, note = CASES[name]
    state = stands(**given)
    assert state.status == status
    assert note in state.note
    assert bool(note) or not state.note or status == "not started"


def test_restarts_are_told_apart_by_what_came_before(stands):
    preempted = ("stopped", {"why": "preempted"})
    events = [STARTED, BEGAN, LIMIT, STARTED, BEGAN, preempted, STARTED, BEGAN, STARTED, BEGAN]
    state = stands(events, Held("RUNNING"))
    # The last one gave no notice.
    assert (state.timeouts, state.preempted) == (1, 2)
    assert (state.batches_done, state.batches) == (0, 8)


def test_a_stop_counts_as_soon_as_its_job_is_queued_again_and_not_if_it_never_is(stands):
    state = stands([STARTED, BEGAN, LIMIT], Held("PENDING", "BeginTime"))
    assert (state.status, state.timeouts, state.preempted) == ("queued", 1, 0)
    # SLURM tells a job that is cancelled nothing else than one that is preempted.
    state = stands(accounted=Accounted("CANCELLED", 0, 0, 1))
    assert (state.status, state.timeouts, state.preempted) == ("cancelled", 0, 0)


def test_sweeps_made_at_once_share_no_folder(tmp_path):
    numbers = [sweeps.make(tmp_path).number for _ in range(3)]
    assert numbers == [1, 2, 3]
    # None of them was made to the end.
    assert sweeps.known(tmp_path) == []
