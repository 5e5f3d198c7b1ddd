"""The shape of a submission: what jobs ask for, which share an array, how many run at once."""

from dataclasses import replace

import pytest

from bench.resources import SlurmConfig, merged
from slurm.arrays import Array, _in_lanes, _throttled, arranged

GROUPS = ("model=scratch", "model.weights=random")


def arrays_of(*sizes):
    return [Array(SlurmConfig(), tuple((n,) for n in range(size))) for size in sizes]


def test_the_larger_amount_counts_and_the_users_word_wins():
    device = SlurmConfig(gres="gpu:h100:1", cpus=4, memory_gb=8, extra={"a": 1, "b": 1})
    model = SlurmConfig(cpus=2, memory_gb=40, minutes=240, extra={"a": 2})
    found = merged(device, model, SlurmConfig(partition="long", extra={"b": 3}))
    assert found == SlurmConfig(
        partition="long",
        gres="gpu:h100:1",
        cpus=4,
        memory_gb=40,
        minutes=240,
        extra={"a": 1, "b": 3},
    )
    assert merged(device, model, SlurmConfig(memory_gb=1, gres="gpu:2")).memory_gb == 1


@pytest.mark.parametrize(
    ("sizes", "parallelism", "shares"),
    [
        ((5, 3), None, [None, None]),
        ((5, 3), 100, [5, 3]),
        ((30, 10), 8, [6, 2]),
        ((1000, 1), 10, [9, 1]),
        ((2, 2, 2), 3, [1, 1, 1]),
    ],
)
def test_arrays_share_what_may_run_at_once(sizes, parallelism, shares):
    found = _throttled(arrays_of(*sizes), parallelism)
    assert [array.throttle for array in found] == shares
    assert [array.behind for array in found] == [None] * len(sizes)


def test_more_arrays_than_may_run_at_once_wait_for_each_other():
    found = _throttled(arrays_of(9, 2, 2, 2, 9), 2)
    assert [array.throttle for array in found] == [1] * 5
    # The short ones go one behind another, beside the first long one.
    assert [array.behind for array in found] == [None, None, 1, 2, 3]
    assert _in_lanes(arrays_of(1, 1, 1), 1)[2].behind == 1


@pytest.fixture(scope="module")
def configs(configured):
    """``configs(number, *overrides)``: of runs that differ by their seed."""

    def make(number, *overrides):
        config = configured("+method=dense", "gpu=cpu", *GROUPS, *overrides)
        return [replace(config, seed=seed) for seed in range(number)]

    return make


def test_an_array_is_split_evenly_at_the_sites_limit_and_no_job_is_left_out(configs):
    found = arranged(configs(25, "launch.array_parallelism=6"), 10)
    assert [len(array.jobs) for array in found] == [8, 8, 9]
    assert sum(array.throttle for array in found) == 6
    assert [run for array in found for (run,) in array.jobs] == list(range(25))
    assert {array.asked.minutes for array in found} == {30}


def test_runs_of_one_model_share_a_job_and_its_time(configs):
    first, second = configs(3), configs(2, "model=tiny", "model.slurm.minutes=30")
    runs = [first[0], second[0], first[1], second[1], first[2]]
    shared = [replace(run, launch=replace(run.launch, runs_per_job=2)) for run in runs]
    [array] = arranged(shared, 100)
    assert array.jobs == ((0, 2), (4,), (1, 3))
    assert array.asked.minutes == 60


def test_what_asks_for_something_else_is_another_array(configs):
    runs = configs(2) + configs(2, "++gpu.slurm.gres=gpu:1") + configs(1, "++launch.job_name=x")
    found = arranged(runs, 100)
    assert [array.jobs for array in found] == [((0,), (1,)), ((2,), (3,)), ((4,),)]
    assert [array.asked.gres for array in found] == [None, "gpu:1", None]
