"""Launchers: check a whole sweep, leave out what is done, then start the rest.

What all launchers share, and the one that runs here. The jobs are bound, planned and run by what
the door hands to Hydra as its task function, so that nothing here loads torch. Not here: composing
(``composing.py``), jobs of a cluster (``cluster.py``), what the user sees meanwhile (``board.py``).
"""

import gc
import traceback
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher as HydraLauncher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bench import jobs as listing
from bench.config import RunConfig
from bench.errors import InputError, InvalidRunError, SkipbenchError
from bench.jobs import BAD_ENDS, DONE, FAILED, NOT_STARTED, RUNNING, TWICE, Job
from bench.store import FAILURE
from bench.tracking import handover
from slurm import failures
from slurm.board import Board
from slurm.composing import Composer

REFUSED, LEFT_OUT = "refused", "done before"
# Faults of a sweep that are written out; more of them are counted.
_TOLD_FAULTS = 20


class FailedRunsError(InvalidRunError):
    """Some runs of a sweep failed; each was told where it did."""


class Work(Protocol):
    """What the door hands over."""

    entered: bool

    def bind(self, values: Mapping[str, Any]) -> RunConfig:
        """The configuration of composed values; raises SkipbenchError."""
        ...

    def plan(self, config: RunConfig) -> str | None:
        """The run's id, without torch; None where nothing is planned. Raises SkipbenchError."""
        ...

    def run(self, config: RunConfig) -> None:
        """Does what the configuration says."""
        ...

    def in_words(self, error: Exception) -> SkipbenchError:
        """What Hydra found wrong, as one of our refusals."""
        ...


class Launcher(HydraLauncher):
    """What all launchers share."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra hands over."""
        self.work: Work = task_function  # type: ignore[assignment]  # the door's object
        self.composer = Composer(hydra_context.config_loader, config)
        # As typed: the runs of a sweep belong together under it.
        self.typed = list(config.hydra.overrides.task)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Checks all jobs, then starts those that are not done.

        Raises:
            SkipbenchError: with the faults of all jobs, before any is started.
        """
        self.work.entered = True
        jobs = self._gather(job_overrides)
        action = _common_action(jobs)
        if action == "plan":
            listing.show(jobs, f"{len(jobs)} jobs: {listing.counts(jobs)}")
        elif action == "run":
            self._start_open(jobs)
        else:
            self._act(jobs)
        error = _verdict(jobs)
        return [_returned(job, error) for job in jobs]

    def check(self, config: RunConfig) -> None:
        """Refuses what this launcher cannot start."""

    @abstractmethod
    def start(self, jobs: Sequence[Job], board: Board) -> None:
        """Starts jobs, and sets their status.

        Raises:
            SkipbenchError: if none could be started.
        """

    def _gather(self, job_overrides: Sequence[Sequence[str]]) -> list[Job]:
        """All jobs, planned; raises the faults of all."""
        jobs: list[Job] = []
        faults: dict[str, list[str]] = {}
        labels = listing.labels(job_overrides)
        for overrides, label in zip(job_overrides, labels, strict=True):
            try:
                jobs.append(self._job(overrides, label))
            except SkipbenchError as error:
                faults.setdefault(str(error), []).append(label)
        if faults:
            raise SkipbenchError(_all_faults(faults, len(job_overrides)))
        listing.mark_twice(jobs)
        return jobs

    def _job(self, overrides: Sequence[str], label: str) -> Job:
        try:
            values = self.composer.compose(overrides)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise self.work.in_words(error) from error
        config = self.work.bind(values)
        config = replace(config, tracking=handover.of_sweep(config.tracking, self.typed))
        self.check(config)
        # What is submitted belongs to the sweep as well.
        job = Job(label, config, values={**values, "tracking": asdict(config.tracking)})
        if config.action in ("run", "plan"):
            job.run_id = self.work.plan(config)
            listing.look_up(job)
        return job

    def _start_open(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.status == DONE and not job.config.rerun:
                job.status = LEFT_OUT
        board = Board(jobs)
        left_out = sum(job.status == LEFT_OUT for job in jobs)
        twice = sum(job.status == TWICE for job in jobs)
        if left_out:
            board.say(
                f"left out, already done: {left_out} of {len(jobs)} runs "
                "(rerun=true runs them again)"
            )
        if twice:
            board.say(f"left out, the same run as another job: {twice} of {len(jobs)}")
        open_jobs = [job for job in jobs if job.status not in (LEFT_OUT, TWICE)]
        _catch_up([job for job in jobs if job.status == LEFT_OUT])
        with board:
            self.start(open_jobs, board)

    def _act(self, jobs: Sequence[Job]) -> None:
        """Another action on each job."""
        faults: dict[str, list[str]] = {}
        for job in jobs:
            try:
                self.work.run(job.config)
            except SkipbenchError as error:
                faults.setdefault(str(error), []).append(job.overrides)
        if faults:
            raise SkipbenchError(_all_faults(faults, len(jobs)))


class LocalLauncher(Launcher):
    """Runs the jobs here, one after another."""

    def start(self, jobs: Sequence[Job], board: Board) -> None:
        """Runs each job; one that fails stops the others only with ``launch.fail_fast``."""
        for at, job in enumerate(jobs):
            self._run(job, board)
            if job.config.launch.fail_fast and job.status in (FAILED, REFUSED):
                for other in jobs[at + 1 :]:
                    other.status = NOT_STARTED
                board.say("stopped at the first failure (launch.fail_fast=true)")
                return

    def _run(self, job: Job, board: Board) -> None:
        job.status = RUNNING
        board.begin(job)
        config = replace(job.config, verbosity="quiet") if board.live else job.config
        try:
            self.work.run(config)
            job.status = DONE
        except SkipbenchError as error:
            invalid = isinstance(error, InvalidRunError)
            job.status = FAILED if invalid else REFUSED
            job.note = " ".join(filter(None, [failures.first_line(error), _failure_file(job)]))
            board.say(f"{job.overrides}: {error}")
        except Exception as error:  # noqa: BLE001  # whatever it is, the others must run
            attempt = job.attempt()
            if attempt is not None:
                failures.keep_traceback(attempt, error)
            job.status, job.note = FAILED, _failure_file(job)
            kept = job.note or "".join(traceback.format_exception(error))
            said = f"{type(error).__name__}: {failures.first_line(error)}"
            board.say(f"{job.overrides}: {said}\n{kept}")
        # What a failed run held must not fill the memory of the next one.
        gc.collect()
        board.end(job)


def _catch_up(jobs: Sequence[Job]) -> None:
    """Hands over what ended without: killed at its end, or without a W&B that worked."""
    attempts = [attempt for job in jobs if (attempt := job.attempt())]
    if attempts:
        handover.catch_up(attempts, jobs[0].config)


def _failure_file(job: Job) -> str:
    """Where a failed run's traceback stands; empty if nowhere."""
    attempt = job.attempt()
    path = None if attempt is None else attempt.folder / FAILURE
    return str(path) if path and path.exists() else ""


def _common_action(jobs: Sequence[Job]) -> str:
    actions = sorted({job.config.action for job in jobs})
    if len(actions) > 1:
        raise InputError(
            "A sweep does one thing",
            got=f"action={','.join(actions)}",
            allowed="one of them",
            where="action",
        )
    return actions[0] if actions else "run"


def _all_faults(faults: Mapping[str, Sequence[str]], total: int) -> str:
    """Each fault once, with the jobs that have it."""
    wrong = sum(map(len, faults.values()))
    lines = [f"{wrong} of {total} jobs of this sweep cannot run; none was started"]
    for text, overrides in list(faults.items())[:_TOLD_FAULTS]:
        others = f"   (and {len(overrides) - 1} more jobs)" if len(overrides) > 1 else ""
        lines.append(f"\n{overrides[0] or 'the only job'}{others}\n{text}")
    if len(faults) > _TOLD_FAULTS:
        lines.append(f"\nand {len(faults) - _TOLD_FAULTS} further faults")
    return "\n".join(lines)


def _verdict(jobs: Sequence[Job]) -> SkipbenchError | None:
    """What stands for the sweep's exit code: None if nothing failed."""
    bad = [job for job in jobs if job.status in BAD_ENDS | {REFUSED}]
    # With the action plan, a failed run is only one that can be taken up again.
    if not bad or jobs[0].config.action != "run":
        return None
    failed = sum(job.status != NOT_STARTED for job in bad)
    text = f"{failed} of {len(jobs)} runs failed"
    ran = any(job.status != REFUSED for job in bad) or any(job.status == DONE for job in jobs)
    return FailedRunsError(text) if ran else SkipbenchError(text)


def _returned(job: Job, error: SkipbenchError | None) -> JobReturn:
    """What Hydra gets: a failed job raises the verdict of the whole sweep."""
    failed = error is not None and job.status in BAD_ENDS | {REFUSED}
    status = JobStatus.FAILED if failed else JobStatus.COMPLETED
    given = JobReturn(overrides=job.overrides.split(), task_name="bench", status=status)
    given.return_value = error if failed else None
    return given
