"""The launcher that hands a sweep in to a SLURM cluster.

Apart from ``launcher.py``, whose checks and plan it shares. Ends when the jobs are in, or when they
have ended. Not here: the shape of a submission (``arrays.py``), submitit (``submitting.py``), how
jobs stand (``states.py``).
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import frozen
from bench import jobs as listing
from bench.config import RunConfig
from bench.errors import FaultsError, InputError
from bench.gpus import AUTO
from bench.jobs import BAD_ENDS, ELSEWHERE, NOT_STARTED, OPEN, QUEUED, Job
from slurm import arrays, commands, states, submitting, sweeps, table, waiting
from slurm.arrays import Array
from slurm.board import Board
from slurm.launcher import Launcher
from slurm.notice import EARLY_S
from slurm.states import RunState
from slurm.sweeps import RunEntry, Sweep

_ON_THIS_MACHINE = ("plan", "run", "check", "list", "prefetch", "pin", "doctor")


class SlurmLauncher(Launcher):
    """Hands the runs in as jobs, each with what its gpu and model ask for."""

    def check(self, config: RunConfig) -> None:
        """Refuses what cannot be handed in.

        Raises:
            FaultsError: with all reasons.
        """
        faults = _faults(config)
        if faults:
            raise FaultsError(faults)

    def start(self, jobs: Sequence[Job], board: Board) -> None:
        """Hands in the jobs; with ``launch.wait`` also waits for them.

        Raises:
            InputError: if SLURM refuses a job, or there is no SLURM.
            KeyboardInterrupt: if the user stops waiting; the jobs go on.
        """
        if not jobs:
            return
        if any(job.run_id is None for job in jobs):
            raise InputError(
                "Trainings are not handed in",
                got="python -m bench.train with hydra/launcher=slurm",
                allowed="python -m bench; or a training in a job of your own (sbatch --wrap=...)",
                where="hydra/launcher",
            )
        launch = jobs[0].config.launch
        site = commands.site()
        if launch.dry_run:
            shape = arrays.arranged([job.config for job in jobs], site.max_array_size)
            _show(jobs, shape, site)
            return
        commands.check_available()
        results = Path(jobs[0].config.results_dir)
        submitting.check_folder(results)
        jobs = _not_active(jobs, results)
        if not jobs:
            return
        shape = arrays.arranged([job.config for job in jobs], site.max_array_size)
        sweep = _frozen(jobs, results)
        handed_in = submitting.hand_in(sweep, {i: j.config for i, j in enumerate(jobs)}, shape)
        for job in jobs:
            job.status = QUEUED
        ids = sorted({each.slurm_id.partition("_")[0] for each in handed_in}, key=int)
        board.say(
            f"sweep {sweep.number}: {len(jobs)} runs in {len(handed_in)} jobs, "
            f"SLURM {', '.join(ids)}; {_status_command(sweep)}"
        )
        if launch.wait:
            _wait(sweep, jobs, board)


def _faults(config: RunConfig) -> list[InputError]:
    faults = []
    if config.action not in _ON_THIS_MACHINE:
        faults.append(
            InputError(
                "Only runs are handed in to a cluster",
                got=f"action={config.action}",
                allowed="action=run; or hydra/launcher=local",
                where="hydra/launcher",
            )
        )
    if config.action not in ("run", "plan"):
        return faults
    if config.gpu.name == AUTO:
        faults.append(
            InputError(
                "The device of a job must be named: that of this machine says nothing of it",
                got="gpu=auto",
                allowed="a profile of conf/gpu/",
                where="gpu=NAME",
            )
        )
    launch, minutes = config.launch, arrays.asked(config).minutes
    least_s = launch.notice_s + EARLY_S
    if minutes is not None and minutes * 60 <= least_s:
        faults.append(
            InputError(
                "The time limit is too short: the job would be told to end as it starts",
                got=f"{minutes} minutes",
                allowed=f"more than {least_s} s: launch.notice_s={launch.notice_s}, and SLURM may "
                f"tell up to {EARLY_S} s too early",
                where="launch.slurm.minutes, model.slurm.minutes, launch.notice_s",
            )
        )
    if launch.fail_fast and not launch.wait:
        faults.append(
            InputError(
                "Nobody is there to stop at the first failure",
                got="launch.fail_fast=true launch.wait=false",
                allowed="launch.wait=true with it",
                where="launch.wait",
            )
        )
    return faults


def _show(jobs: Sequence[Job], shape: Sequence[Array], site: commands.Site) -> None:
    """The whole submission, for the eye."""
    # The number is known only once it is made.
    folder = sweeps.folder_of(Path(jobs[0].config.results_dir), "N").submitit
    say = sys.stdout.write
    if not site.known:
        say(f"no SLURM answers here: its defaults are taken (MaxArraySize={site.max_array_size})\n")
    for at, array in enumerate(shape):
        say(f"\n{table.heading(at, array)}\n")
        for number, runs in enumerate(array.jobs):
            say(f"  job {number}: {'; '.join(_label(jobs[run]) for run in runs)}\n")
        text = submitting.batch_text(folder, jobs[array.jobs[0][0]].config.launch, array)
        say("".join(f"    {line}\n" for line in text.splitlines()))
    say(f"\n{len(jobs)} runs, {sum(len(a.jobs) for a in shape)} jobs, {len(shape)} arrays; ")
    say("nothing was handed in (launch.dry_run=true)\n")
    sys.stdout.flush()


def _label(job: Job) -> str:
    return f"{job.overrides or job.config.method.name} [{job.run_id}]"


def _not_active(jobs: Sequence[Job], results: Path) -> list[Job]:
    """The jobs whose runs are not queued or running already; marks the others."""
    active = states.active_runs(sweeps.known(results))
    for job in jobs:
        attempt = job.attempt()
        found = None if attempt is None else active.get(str(attempt.folder.absolute()))
        if found is not None:
            sweep, slurm_id = found
            job.status, job.note = ELSEWHERE, f"job {slurm_id} of sweep {sweep.number}"
    return [job for job in jobs if job.status != ELSEWHERE]


def _frozen(jobs: Sequence[Job], results: Path) -> Sweep:
    """A sweep's folder with all that its jobs need."""
    sweep = sweeps.make(results)
    entries = []
    for index, job in enumerate(jobs):
        attempt = job.attempt()
        if attempt is None or job.values is None or job.run_id is None:
            raise ValueError("only planned runs are handed in")
        run = frozen.freeze(job.values, job.config, run_id=job.run_id, attempt=attempt.number)
        frozen.write(sweep.run_file(index), run)
        entries.append(
            RunEntry(
                job.overrides,
                job.config.method.name,
                job.run_id,
                attempt.number,
                str(Path(job.config.results_dir).absolute()),
            )
        )
    sweep.write_about(shlex.join(sys.argv), entries)
    return sweep


def _wait(sweep: Sweep, jobs: Sequence[Job], board: Board) -> None:
    """Until all runs have ended."""

    def take_over(found: Sequence[RunState]) -> bool:
        for job, state in zip(jobs, found, strict=True):
            _take_over(job, state, board)
        failed = any(job.status in BAD_ENDS for job in jobs)
        if failed and jobs[0].config.launch.fail_fast:
            _stop(sweep, jobs, board)
            return False
        return True

    try:
        waiting.until_ended(sweep, take_over)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"the jobs go on; {_status_command(sweep)} --watch comes back to them, "
            f"python -m slurm cancel {_which(sweep)} ends them"
        ) from None


def _take_over(job: Job, state: RunState, board: Board) -> None:
    """Takes over how a run stands; tells what is new: a table all, lines the status alone."""
    before = (job.status, job.note if board.live else "")
    job.status, job.note, job.time_s = state.status, table.progress(state), state.time_s
    if before != (job.status, job.note if board.live else ""):
        board.changed(job)


def _stop(sweep: Sweep, jobs: Sequence[Job], board: Board) -> None:
    """Ends what is open."""
    latest = sweep.latest()
    left = [index for index, job in enumerate(jobs) if job.status in OPEN]
    commands.cancel({latest[index].slurm_id for index in left})
    for index in left:
        jobs[index].status = NOT_STARTED if jobs[index].status == QUEUED else listing.CANCELLED
    board.say("stopped at the first failure (launch.fail_fast=true)")


def _status_command(sweep: Sweep) -> str:
    return f"python -m slurm status {_which(sweep)}"


def _which(sweep: Sweep) -> str:
    """How a user calls a sweep."""
    folder = sweep.folder.parent.parent
    given = "" if folder == sweeps.DEFAULT.absolute() else f" --results {shlex.quote(str(folder))}"
    return f"{sweep.number}{given}"
