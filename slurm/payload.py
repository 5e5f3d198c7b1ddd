"""What a job of a cluster does: its runs, one after another, and what comes when it must end early.

Apart, because it runs on a compute node, under submitit, and is named on a login node: it loads no
torch itself. Its own signal handling takes the place of submitit's, whose rule (a preemption within
the last ten minutes of a limit, or under a shorter limit, is a time-out, and those are not
requeued) would end runs for good. Not here: what a run does (``bench/submitted.py``).
"""

import gc
import json
import os
import platform
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from bench import disk, frozen, revision, submitted
from bench.config import LaunchConfig
from bench.errors import InputError, InvalidRunError, SkipbenchError
from bench.frozen import FrozenRun
from bench.meters.clock import seconds
from bench.revision import Code
from bench.session import Interrupted
from bench.store import Attempt
from slurm import commands, environment, failures, journal
from slurm.environment import ThisJob
from slurm.journal import Journal
from slurm.notice import JobSession, Limits

# EX_TEMPFAIL of sysexits.h: try again later.
ENDED_EARLY = 75
# Files that are named of those that were edited.
_TOLD_FILES = 5


@dataclass(frozen=True, slots=True)
class Payload:
    """One job, as submitit keeps it; calling it runs it.

    Attributes:
        runs: index and frozen configuration of each.
        journal: of the job.
        code: the state of the code when it was handed in.
    """

    runs: tuple[tuple[int, str], ...]
    journal: str
    code: str

    def __call__(self) -> dict[int, str]:
        """Makes all runs that are not done; how each ended.

        Raises:
            InvalidRunError: once all have been tried, if any failed.
            SystemExit: if the job was told to end; it is then queued again.
        """
        job, own = environment.this_job(), Journal(Path(self.journal))
        facts = {"slurm_id": job.slurm_id, "restarts": job.restarts}
        own.note(journal.STARTED, **facts, host=platform.node(), pid=os.getpid())
        edited = revision.changed(self._code(), revision.current())
        if edited:
            own.note(journal.CODE_CHANGED, files=edited)
        session = JobSession({"job": {**facts, "code_changed": edited}})
        ends: dict[int, str] = {}
        with session.listening():
            launch, before = self._launch(own), self._recorded()
            session.limits = _limits(job, launch)
            try:
                for index, path in self.runs:
                    ends[index] = _made(index, Path(path), session, own, edited)
            except Interrupted:
                own.note(journal.STOPPED, why=session.reason)
                _queue_again(job, own, launch, progress=self._recorded() > before)
                sys.exit(ENDED_EARLY)
        failed = sum(end == journal.RUN_FAILED for end in ends.values())
        if failed:
            # SLURM, too, shall know it as failed.
            raise InvalidRunError(f"{failed} of {len(ends)} runs of this job failed")
        return ends

    def _launch(self, own: Journal) -> LaunchConfig:
        """How the runs are launched; all have failed if the code has other settings by now."""
        try:
            return frozen.read(Path(self.runs[0][1])).config().launch
        except SkipbenchError as error:
            for index, path in self.runs:
                _fail(index, Path(path), own, error)
            raise

    def _recorded(self) -> int:
        """Batches of all runs that are recorded."""
        return sum(_attempt(frozen.read(Path(path))).num_recorded() for _, path in self.runs)

    def _code(self) -> Code:
        return Code(**json.loads(disk.content(Path(self.code)) or b"{}"))


def _made(index: int, path: Path, session: JobSession, own: Journal, edited: list[str]) -> str:
    """Makes one run; how it ended. Whatever happens to it, the others must run."""
    try:
        with session.working():
            run = frozen.read(path)
            _check_code(run.config().launch, edited)
            own.note(journal.RUN_BEGAN, run=index)
            session.on_begin = lambda number: own.note(journal.RUN_BEGAN, run=index, batches=number)
            submitted.from_file(path, session)
    except Exception as error:  # noqa: BLE001  # whatever it is, the others must run
        _fail(index, path, own, error)
        return journal.RUN_FAILED
    finally:
        # What a run held must not fill the memory of the next one.
        gc.collect()
    own.note(journal.RUN_DONE, run=index)
    return journal.RUN_DONE


def _attempt(run: FrozenRun) -> Attempt:
    return Attempt(Path(run.values["results_dir"]) / run.run_id / str(run.attempt))


def _fail(index: int, path: Path, own: Journal, error: Exception) -> None:
    """Keeps and tells why a run failed."""
    failures.keep_traceback(_attempt(frozen.read(path)), error)
    memory = failures.is_of_memory(error)
    own.note(journal.RUN_FAILED, run=index, error=str(error) or repr(error), memory=memory)
    plain = isinstance(error, SkipbenchError)
    sys.stderr.write(f"{error}\n" if plain else "".join(traceback.format_exception(error)))


def _limits(job: ThisJob, launch: LaunchConfig) -> Limits:
    """Asked at the start, for there may be no time at the end."""
    left_s = None if job.slurm_id is None else commands.seconds_left(job.slurm_id)
    kill_wait_s = commands.site().kill_wait_s
    grace_s = launch.grace_s
    if grace_s is None:
        grace_s = commands.grace_s(job.partition) if job.partition else 0
    return Limits(
        end_s=None if left_s is None else seconds() + left_s,
        notice_s=launch.notice_s,
        grace_s=grace_s or kill_wait_s,
        kill_wait_s=kill_wait_s,
        margin_s=launch.margin_s,
    )


def _queue_again(job: ThisJob, own: Journal, launch: LaunchConfig, *, progress: bool) -> None:
    """Queues the job again, unless SLURM does, or it was cancelled, or that would never end."""
    reason = _why_not(own, launch, progress=progress)
    state = None if job.slurm_id is None else commands.state(job.slurm_id)
    # One that is on its way out was cancelled, or is queued again by SLURM: both are not ours.
    if state != commands.RUNNING:
        own.note(journal.LEFT_TO_SLURM, state=state)
        return
    if reason is None and job.slurm_id is not None:
        reason = commands.requeue(job.slurm_id)
        # SLURM may have been quicker.
        if reason is not None and commands.state(job.slurm_id) != commands.RUNNING:
            own.note(journal.LEFT_TO_SLURM, state=state, said=reason)
            return
    if reason is None:
        own.note(journal.REQUEUED)
    else:
        own.note(journal.NOT_REQUEUED, why=reason)


def _why_not(own: Journal, launch: LaunchConfig, *, progress: bool) -> str | None:
    """Why a job must not be queued again; None if it may."""
    if not launch.requeue:
        return "launch.requeue=false"
    stops = [each for each in own.read() if each["what"] == journal.STOPPED]
    if stops[-1]["why"] != journal.TIME_LIMIT:
        return None
    if not progress:
        return (
            "no batch was done within the time limit: ask for more minutes (launch.slurm.minutes)"
        )
    times = sum(each["why"] == journal.TIME_LIMIT for each in stops)
    if times > launch.max_timeouts:
        return f"the time limit was reached {times} times (launch.max_timeouts)"
    return None


def _check_code(launch: LaunchConfig, edited: list[str]) -> None:
    if not edited or launch.changed_code == "record":
        return
    more = f" and {len(edited) - _TOLD_FILES} more" if len(edited) > _TOLD_FILES else ""
    raise InputError(
        "The code is not the one that was submitted",
        got=f"edited since: {', '.join(edited[:_TOLD_FILES])}{more}",
        allowed="the code as it was; python -m slurm retry submits with the code of now",
        where="launch.changed_code=record runs it all the same, and says so in the records",
    )
