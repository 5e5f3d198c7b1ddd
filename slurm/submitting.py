"""Hands jobs in, through submitit.

Apart, as the one module that knows submitit. Not here: which jobs (``arrays.py``), what they do
(``payload.py``).
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from bench import revision
from bench.config import ROOT, LaunchConfig, RunConfig
from bench.errors import InputError
from slurm import commands, environment
from slurm.arrays import Array
from slurm.payload import Payload
from slurm.sweeps import Submission, Sweep

# What has a meaning of its own in the names of SLURM's and submitit's files.
_NOT_IN_A_PATH = "%\\\n"


class _Executor(submitit.SlurmExecutor):
    """submitit's, which is also there to show a batch text where there is no SLURM."""

    @classmethod
    def affinity(cls) -> int:
        return 2

    def text(self, jobs: int) -> str:
        """The batch script of so many jobs."""
        if jobs > 1:
            self.parameters["map_count"] = jobs
        return self._make_submission_file_text(self._submitit_command_str, "shown")


def check_folder(results_dir: Path) -> None:
    """Refuses a folder that SLURM would take for a pattern.

    Raises:
        InputError: naming what it must not contain.
    """
    wrong = [sign for sign in _NOT_IN_A_PATH if sign in str(results_dir.absolute())]
    if wrong:
        raise InputError(
            "SLURM cannot write into a folder of this name",
            got=f"{results_dir.absolute()}, with {', '.join(map(repr, wrong))}",
            allowed="a path without percent signs, backslashes and line breaks",
            where="results_dir",
        )


def hand_in(
    sweep: Sweep, configs: Mapping[int, RunConfig], arrays: Sequence[Array]
) -> list[Submission]:
    """Hands in all arrays, or none; each is noted in the sweep's folder as soon as it is in.

    Args:
        sweep: whose runs these are.
        configs: of each run, by its index in the sweep.
        arrays: of these indices.

    Raises:
        InputError: if SLURM refuses one; what was handed in before it is cancelled.
    """
    turn = sweep.next_turn()
    code = sweep.write_code(turn, revision.current())
    handed_in: list[Submission] = []
    # SLURM's id of each array.
    ids: list[str] = []
    for at, array in enumerate(arrays):
        names = [f"{turn}-{at}-{number}" for number in range(len(array.jobs))]
        payloads = [
            Payload(
                runs=tuple((run, str(sweep.run_file(run))) for run in runs),
                journal=str(sweep.journal(name).path),
                code=str(code),
            )
            for name, runs in zip(names, array.jobs, strict=True)
        ]
        behind = None if array.behind is None else ids[array.behind]
        launch = configs[array.jobs[0][0]].launch
        executor = _executor(sweep.submitit, launch, array, behind)
        try:
            with environment.clean():
                jobs = executor.submit_array(payloads)
        except (FailedJobError, FailedSubmissionError) as error:
            commands.cancel([each.slurm_id for each in handed_in])
            raise _refused(error, array) from error
        new = [
            Submission(name, runs, job.job_id)
            for name, runs, job in zip(names, array.jobs, jobs, strict=True)
        ]
        sweep.add(new)
        handed_in += new
        ids.append(jobs[0].job_id.partition("_")[0])
    return handed_in


def batch_text(folder: Path, launch: LaunchConfig, array: Array) -> str:
    """The batch script of an array."""
    behind = None if array.behind is None else f"(array {array.behind + 1})"
    return _executor(folder, launch, array, behind).text(len(array.jobs))


def _executor(folder: Path, launch: LaunchConfig, array: Array, behind: str | None) -> _Executor:
    executor = _Executor(folder=folder, python=launch.python)
    executor.update_parameters(**_parameters(launch, array, behind))
    return executor


def _parameters(launch: LaunchConfig, array: Array, behind: str | None) -> dict[str, Any]:
    asked = array.asked
    more = {"requeue": True} if launch.requeue else {"no-requeue": True}
    given = {
        "job_name": launch.job_name,
        "time": asked.minutes,
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "constraint": asked.constraint,
        "gres": asked.gres,
        "nodelist": asked.nodelist,
        "exclude": asked.exclude,
        "exclusive": asked.exclusive or None,
        "cpus_per_task": asked.cpus,
        "mem": None if asked.memory_gb is None else f"{math.ceil(asked.memory_gb * 1024)}M",
        "signal_delay_s": launch.notice_s,
        "array_parallelism": array.throttle or len(array.jobs),
        "dependency": None if behind is None else f"afterany:{behind}",
        "setup": _setup(launch),
        # A step no longer takes this over from its job.
        "srun_args": None if asked.cpus is None else [f"--cpus-per-task={asked.cpus}"],
        "additional_parameters": more | dict(asked.extra),
    }
    return {name: value for name, value in given.items() if value is not None}


def _setup(launch: LaunchConfig) -> list[str]:
    """Lines before the run; the last one has it import this code, wherever it starts."""
    root = shlex.quote(str(ROOT))
    return [*launch.setup, f"export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}"]


def _refused(error: Exception, array: Array) -> InputError:
    said = [line for line in str(error).splitlines() if "error" in line.lower()]
    wanted = {key: value for key, value in asdict(array.asked).items() if value}
    return InputError(
        "SLURM refuses a job; none is left in the queue",
        got=f"{said[0] if said else error}, for {json.dumps(wanted)}",
        allowed="what the site has; sinfo -o '%P %G %f %m %l' shows it",
        where="gpu.slurm, model.slurm, launch.slurm",
    )
