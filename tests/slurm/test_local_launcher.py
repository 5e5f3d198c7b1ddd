"""A sweep on this machine: checked whole, done runs left out, one failure does not end the rest."""

import pytest


def rows(text):
    """Cells of the sweep's table, by the seed of the row."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        seeds = [word for cell in cells for word in cell.split() if word.startswith("seed=")]
        if len(cells) == 6 and seeds:
            found.setdefault(seeds[0], []).append(cells)
    return found


@pytest.fixture(scope="module")
def failed(sweeps):
    """A sweep of three runs of which the middle one fails."""
    made = sweeps()
    made.flag.touch()
    return made, made.call("seed=0,1,2", "-m")


def test_a_run_that_fails_does_not_end_the_others(failed):
    made, ended = failed
    assert ended.code == 1, ended.err
    assert made.seeds() == [0, 2]
    statuses = {seed: cells[0][3] for seed, cells in rows(ended.out).items()}
    assert statuses == {"seed=0": "done", "seed=1": "failed", "seed=2": "done"}
    assert ended.err.splitlines()[-1] == "1 of 3 runs failed"


def test_the_traceback_of_a_failed_run_lies_in_its_folder_and_its_path_is_told(failed):
    made, ended = failed
    [path] = made.results.glob("*/*/failure.txt")
    text = path.read_text()
    assert text.startswith("Traceback")
    assert text.rstrip().endswith("RuntimeError: planted")
    assert "RuntimeError: planted" in ended.err
    assert str(path) in ended.err
    assert "Traceback" not in ended.err
    # One folder a run, and no file of Hydra's beside them.
    assert len(list(made.results.iterdir())) == 3


def test_the_next_start_runs_only_what_failed_and_says_what_it_leaves_out(failed):
    made, _ = failed
    made.flag.unlink()
    ended = made.call("seed=0,1,2", "-m")
    assert ended.code == 0, ended.err
    assert "left out, already done: 2 of 3 runs (rerun=true runs them again)" in ended.err
    assert made.seeds() == [0, 1, 2]
    statuses = {seed: cells[0][3] for seed, cells in rows(ended.out).items()}
    assert statuses == {"seed=0": "done before", "seed=1": "done", "seed=2": "done before"}


def test_with_fail_fast_the_first_failure_ends_the_sweep(sweeps):
    made = sweeps()
    made.flag.touch()
    ended = made.call("seed=1,0", "launch.fail_fast=true", "-m")
    assert ended.code == 1
    assert made.seeds() == []
    assert "launch.fail_fast=true" in ended.err
    statuses = {seed: cells[0][3] for seed, cells in rows(ended.out).items()}
    assert statuses == {"seed=1": "failed", "seed=0": "not started"}


def test_all_faults_of_all_jobs_are_told_before_the_first_one_runs(sweeps):
    made = sweeps()
    settings = ("method.preset=null", "method.min_layers=2", "method.max_layers=2,7,9")
    ended = made.call(*settings, "seed=0,-1", "-m", method="skipdecode")
    assert ended.code == 2
    assert ended.out == ""
    assert "Traceback" not in ended.err
    # Of six jobs only max_layers=2 with seed=0 could run.
    assert ended.err.startswith("5 of 6 jobs of this sweep cannot run; none was started\n")
    for label in ("method.max_layers=7 seed=0", "method.max_layers=9 seed=0"):
        assert f"\n{label}\n" in ended.err
    assert "max_layers=7, min_layers=2: allowed 2 (warm-up + 1)" in ended.err
    assert "\nmethod.max_layers=2 seed=-1   (and 2 more jobs)\n" in ended.err
    assert "Setting seed is too small" in ended.err
    assert not made.results.exists()


def test_jobs_that_are_the_same_run_are_run_once(sweeps):
    made = sweeps()
    ended = made.call("seed=3,3", "-m")
    assert ended.code == 0, ended.err
    assert "the same run as another job: 1 of 2" in ended.err
    assert made.seeds() == [3]


def test_sweeps_started_at_the_same_time_lose_nothing(sweeps):
    made = sweeps()
    both = [made.start(f"seed={seeds}", "-m") for seeds in ("0,2", "3,4")]
    ends = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert made.seeds() == [0, 2, 3, 4]
    assert len(list(made.results.iterdir())) == 4
