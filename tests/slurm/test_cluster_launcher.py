"""What cannot be handed in is refused before anything is; a dry run shows what would be."""

import os

import pytest

from bench import frozen
from bench.errors import InputError
from slurm import environment
from slurm.submitting import check_folder

CLUSTER = ("hydra/launcher=slurm", "-m")
REFUSALS = {
    "the device of this machine": (("gpu=auto",), "The device of a job must be named"),
    "a limit that leaves no time": (
        ("launch.slurm.minutes=3",),
        "more than 180 s: launch.notice_s=120, and SLURM may tell up to 60 s too early",
    ),
    "no time at all": (("launch.slurm.minutes=0",), "Setting launch.slurm.minutes is too small"),
    "no memory": (("gpu.slurm.memory_gb=0",), "Setting gpu.slurm.memory_gb is too small"),
    "a first failure that nobody sees": (
        ("launch.fail_fast=true", "launch.wait=false"),
        "Nobody is there to stop at the first failure",
    ),
    "work of another kind": (("action=calibrate",), "Only runs are handed in to a cluster"),
    "a misspelt resource": (("launch.slurm.partitions=x",), "near: partition"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused(name, sweeps):
    given, words = REFUSALS[name]
    made = sweeps()
    method = "calm" if "action=calibrate" in given else "dense"
    ended = made.call("seed=0,1", *given, *CLUSTER, method=method)
    assert ended.code == 2, ended.err
    assert words in ended.err
    assert "Traceback" not in ended.err
    assert not made.results.exists()


def test_a_dry_run_shows_jobs_arrays_and_batch_text_and_leaves_nothing(sweeps):
    made = sweeps()
    settings = (
        "launch.dry_run=true",
        "launch.array_parallelism=3",
        "launch.slurm.partition=long",
        "launch.slurm.extra={reservation: course}",
        "++gpu.slurm.gres='gpu:a b:1'",
        "model.slurm.memory_gb=0.5",
        'launch.setup=["module load cuda"]',
        "launch.python='apptainer exec image python'",
    )
    ended = made.call("seed=0,1,2,3", *settings, *CLUSTER)
    assert ended.code == 0, ended.err
    for line in (
        "array 1: 4 jobs, each with partition long, gres gpu:a b:1, memory_gb 0.5, minutes 30, "
        "extra {'reservation': 'course'}; 3 at once",
        "#SBATCH --array=0-3%3",
        "#SBATCH --partition=long",
        "#SBATCH --gres='gpu:a b:1'",
        "#SBATCH --mem=512M",
        "#SBATCH --time=30",
        "#SBATCH --signal=USR2@120",
        "#SBATCH --requeue",
        "#SBATCH --reservation=course",
        "module load cuda",
        "4 runs, 4 jobs, 1 arrays; nothing was handed in (launch.dry_run=true)",
    ):
        assert f"{line}\n" in ended.out
    assert " apptainer exec image python -u -m submitit.core._submit " in ended.out
    for seed in range(4):
        assert f"  job {seed}: seed={seed} [" in ended.out
    assert not made.results.exists()


def test_a_single_run_is_handed_in_too_rather_than_run_here(sweeps):
    made = sweeps()
    ended = made.call("hydra/launcher=slurm", "launch.dry_run=true")
    assert ended.code == 0, ended.err
    assert "1 runs, 1 jobs, 1 arrays; nothing was handed in" in ended.out
    assert not made.results.exists()


@pytest.mark.parametrize("name", ["50%j", "back\\slash", "two\nlines"])
def test_a_folder_that_slurm_would_take_for_a_pattern_is_refused(name, tmp_path):
    with pytest.raises(InputError, match="SLURM cannot write into a folder of this name"):
        check_folder(tmp_path / name)
    check_folder(tmp_path / "spaces ' \" ü $x")


def test_what_a_job_hands_in_inherits_nothing_of_it(monkeypatch):
    kept = {"SLURM_CONF": "/etc/x", "SBATCH_ACCOUNT": "mine", "OMP_NUM_THREADS": "4", "HOME": "/h"}
    of_job = {
        "SLURM_JOB_ID": "7",
        "SLURM_CPU_BIND": "mask_cpu:0x1",
        "SRUN_CPUS_PER_TASK": "1",
        "SUBMITIT_EXECUTOR": "slurm",
        "CUDA_VISIBLE_DEVICES": "3",
        "SBATCH_MEM_BIND": "none",
        "RANK": "1",
    }
    before = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_RESTART_COUNT": "4"}
    monkeypatch.setattr(os, "environ", kept | of_job | before)
    assert environment.this_job() == environment.ThisJob("7_2", 4, None)
    with environment.clean():
        assert os.environ == kept
    assert os.environ == kept | of_job | before
    # On a login node such a variable is the user's own.
    monkeypatch.setattr(os, "environ", kept | {"CUDA_VISIBLE_DEVICES": "0"})
    with environment.clean():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_frozen_run_is_the_configuration_that_was_composed(composed, bound, tmp_path):
    values = composed("+method=skipdecode", "gpu=cpu", "method.preset=4x", "results_dir=here/runs")
    config = bound(values)
    path = tmp_path / "run.json"
    run = frozen.freeze(values, config, run_id="0123456789ab", attempt=2)
    frozen.write(path, run)
    found = frozen.read(path)
    assert found == run
    assert found.config().method == config.method
    assert dict(found.config().method.changed) == {"preset": "4x"}
    assert found.config().results_dir == os.path.realpath("here/runs")
    assert found.config().decode == config.decode
    path.write_text(path.read_text()[:50])
    with pytest.raises(InputError, match="Cannot read a submitted configuration"):
        frozen.read(path)
