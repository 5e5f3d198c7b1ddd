"""Jobs of one sweep ask for different things, and give what the same runs give here."""

import pytest

pytestmark = pytest.mark.slurm

ASKED = {"lab_a": ("gres/gpu=1", "mem=1.50G"), "lab_b": ("gres/gpu=2", "mem=2G")}
# What a machine's speed does not bear on.
SAME = ("status", "tokens", "examples", "layers_per_token", "setting")


def exact(header):
    """Quality, FLOPs and counts of a run."""
    return {
        name: value
        for name, value in header["columns"].items()
        if name in SAME or name.startswith(("score.", "dense.rouge", "diff.", "flops_"))
    }


def test_each_job_gets_what_its_gpu_asks_for_and_gives_what_a_local_run_gives(handed):
    made = handed()
    ended = made.call("gpu=lab_a,lab_b", method="dense,skipdecode")
    assert ended.code == 0, ended.err
    states = made.states()
    assert [state["status"] for state in states] == ["done"] * 4
    # One array for each device.
    assert len({state["slurm_id"].partition("_")[0] for state in states}) == 2
    for state in states:
        [[_, given, code]] = made.lab.accounted([state["slurm_id"]], "AllocTRES", "ExitCode")
        gpu = made.header(state)["columns"]["gpu"]
        assert set(ASKED[gpu]) <= set(given.split(","))
        assert "cpu=1" in given.split(",")
        assert code == "0:0"
    here = handed(results=made.results.with_name("here"))
    local = here.call("gpu=lab_a", "hydra/launcher=local", method="dense,skipdecode")
    assert local.code == 0, local.err
    same = [state for state in states if (here.results / state["run_id"]).exists()]
    assert len(same) == 2
    for state in same:
        assert exact(made.header(state)) == exact(here.header(state))
        assert len(exact(made.header(state))) > 8


def test_runs_that_share_a_job_load_their_model_once(handed):
    made = handed()
    ended = made.call("gpu=lab_a", "seed=0,1,2", "launch.runs_per_job=2", "launch.slurm.minutes=9")
    assert ended.code == 0, ended.err
    states = made.states()
    assert [state["status"] for state in states] == ["done"] * 3
    assert states[0]["slurm_id"] == states[1]["slurm_id"] != states[2]["slurm_id"]
    [[_, limit]] = made.lab.accounted([states[0]["slurm_id"]], "TimelimitRaw")
    assert limit == "18"
    logs = [
        (made.results / state["run_id"] / "1" / "log.txt").read_text().count("INFO loading ")
        for state in states
    ]
    assert logs == [1, 0, 1]
    segments = [made.lines(state, "segments") for state in states]
    assert all(len(found) == 1 for found in segments)
    job = segments[0][0]["provenance"]["job"]
    assert job == {"slurm_id": states[0]["slurm_id"], "restarts": 0, "code_changed": []}
