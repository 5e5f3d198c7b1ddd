"""More jobs than an array may have: all run, no more at once than allowed, and none is lost."""

import json
from datetime import datetime

import pytest

pytestmark = pytest.mark.slurm

# SETTINGS of the cluster: the last index of an array is one less.
MAX_ARRAY = 21
AT_ONCE = 6


def most_at_once(rows):
    """Jobs that ran at the same time, at most; those that end as another starts do not."""
    moments = []
    for _, start, end in rows:
        began, ended = datetime.fromisoformat(start), datetime.fromisoformat(end)
        if ended > began:
            moments += [(began, 1), (ended, -1)]
    running = most = 0
    for _, change in sorted(moments, key=lambda moment: (moment[0], moment[1])):
        running += change
        most = max(most, running)
    return most


def run(made, jobs):
    ended = made.call(
        "gpu=lab_a",
        f"seed=range(0,{jobs})",
        f"launch.array_parallelism={AT_ONCE}",
        "launch.wait=false",
    )
    assert ended.code == 0, ended.err
    listed = made.slurm("status", "--json")
    watched = made.slurm("status", "1", "--watch")
    assert watched.code == 0, watched.err
    return ended, listed, made.states()


def check(made, states, jobs):
    assert [state["status"] for state in states] == ["done"] * jobs
    arrays = {state["slurm_id"].partition("_")[0] for state in states}
    assert len(arrays) == -(-jobs // MAX_ARRAY)
    ids = [state["slurm_id"] for state in states]
    assert len(set(ids)) == jobs
    rows = made.lab.accounted(ids, "Start", "End")
    assert len(rows) == jobs
    assert 1 < most_at_once(rows) <= AT_ONCE
    headers = [made.header(state)["columns"] for state in states]
    assert {header["torch"] for header in headers} == {False}
    assert sorted(header["slurm_id"] for header in headers) == sorted(ids)


def test_an_array_larger_than_the_site_allows_runs_whole_and_keeps_to_its_parallelism(light):
    made, jobs = light(), 2 * MAX_ARRAY + 3
    _, _, states = run(made, jobs)
    check(made, states, jobs)


@pytest.mark.slurm_long
def test_two_hundred_jobs_are_handed_in_and_told_of_at_once(light):
    made, jobs = light(), 200
    submitted, listed, states = run(made, jobs)
    check(made, states, jobs)
    assert submitted.time_s < 10
    assert len(json.loads(listed.out)) == jobs
    assert listed.time_s < 2


def test_a_sweep_handed_in_from_inside_a_job_takes_nothing_over_from_it(light):
    made = light()
    outside = made.start("gpu=lab_a", "launch.wait=false")
    words, ended = outside.args, made.end(outside, 0)
    assert ended.code == 0, ended.err
    assert made.slurm("status", "1", "--watch").code == 0
    [*before, last] = words
    again = (*before, "rerun=true", last)
    inside = ("srun", "--gres=gpu:2", "--cpus-per-task=4", "--mem=1000M", *again)
    made.lab.call(*inside, PYTHONPATH=str(made.tree), PLANTED=str(made.planted))
    assert made.slurm("status", "2", "--watch").code == 0
    [state] = made.states(2)
    [[_, given]] = made.lab.accounted([state["slurm_id"]], "AllocTRES")
    assert {"cpu=1", "gres/gpu=1"} <= set(given.split(","))
