"""The environment of this process, as far as jobs are concerned.

Apart, because this is the one module of the package that sees it. Not here: what bears on speed
(``bench/provenance.py`` records that).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# What a job has that its own jobs must not inherit: its ids, its shares, its binding to CPUs.
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_", "OMPI_")
_OF_A_STEP = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "SBATCH_CPU_BIND",
    "SBATCH_MEM_BIND",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
)
# Which cluster, and where its configuration is: without these nothing can be handed in.
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


@dataclass(frozen=True, slots=True)
class ThisJob:
    """The job that this process is.

    Attributes:
        slurm_id: such as ``12`` or ``12_3``; None outside of a cluster.
        restarts: how often it was queued again.
        partition: where it runs.
    """

    slurm_id: str | None
    restarts: int
    partition: str | None


def this_job() -> ThisJob:
    """What the environment says of the job."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return ThisJob(
        slurm_id=f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID"),
        restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        partition=os.environ.get("SLURM_JOB_PARTITION"),
    )


@contextmanager
def clean() -> Iterator[None]:
    """Within it, what is handed in inherits nothing of a job that this process may be."""
    within_job = "SLURM_JOB_ID" in os.environ
    hidden = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(_OF_A_JOB) and name not in _KEPT)
        or (within_job and name.startswith(_OF_A_STEP))
    }
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
