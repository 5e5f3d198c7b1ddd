"""How the runs of a sweep stand: joined from records, the jobs' own journals, and SLURM.

Apart and reading only. The records have the last word on what is done, the journal on what failed
and why, SLURM on what is queued or was killed. Not here: showing it (``table.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import jobs
from bench.store import FAILURE
from slurm import commands, journal
from slurm.commands import Accounted, Held
from slurm.sweeps import RunEntry, Submission, Sweep

# What slurmstepd says of a job that is killed by polling its memory; with cgroups it is a state.
_OVER_MEMORY = b"exceeded memory limit"
_KILLED = 9
_TAIL_BYTES = 8192
_NO_REASON = {"", "None", "Priority", "Resources", "JobArrayTaskLimit", "Dependency", "BeginTime"}
# SLURM's word -> ours, of jobs that have ended.
_ENDS = {
    "OUT_OF_MEMORY": jobs.OUT_OF_MEMORY,
    "TIMEOUT": jobs.TIMED_OUT,
    "DEADLINE": jobs.TIMED_OUT,
    "CANCELLED": jobs.CANCELLED,
    "PREEMPTED": jobs.PREEMPTED,
    "COMPLETED": jobs.LOST,
}


@dataclass(frozen=True, slots=True)
class RunState:
    """How one run stands.

    Attributes:
        entry: the run.
        status: one of the words of ``bench.jobs``.
        batches_done: recorded so far.
        batches: of the run; None before it began.
        preempted: how often its job was queued again before its time limit.
        timeouts: how often its job reached its time limit.
        slurm_id: newest job; None if none was handed in.
        time_s: of that job's last start; None where nobody knows.
        note: why it stands so: a few words, then a file.
    """

    entry: RunEntry
    status: str
    batches_done: int = 0
    batches: int | None = None
    preempted: int = 0
    timeouts: int = 0
    slurm_id: str | None = None
    time_s: int | None = None
    note: str = ""


def of_sweep(sweep: Sweep) -> list[RunState]:
    """All runs of a sweep, in order.

    Raises:
        InputError: if the cluster does not answer.
    """
    entries, latest = sweep.runs(), sweep.latest()
    ids = {each.slurm_id for each in latest.values()}
    held = commands.held(ids)
    active = {name: each for name, each in held.items() if each.is_active}
    accounted = commands.accounted(ids - active.keys()) or {}
    for name in held.keys() - active.keys():
        # Accounting may lag behind, or not be there.
        if name not in accounted or accounted[name].is_active:
            accounted[name] = Accounted(held[name].state, 0, 0, None)
    journals = {each.job: sweep.journal(each.job).read() for each in set(latest.values())}
    found = []
    for index, entry in enumerate(entries):
        job = latest.get(index)
        if job is None:
            done = entry.records.is_done()
            found.append(RunState(entry, jobs.DONE if done else jobs.NOT_STARTED))
            continue
        known = _Known(
            index,
            active.get(job.slurm_id),
            accounted.get(job.slurm_id),
            journals[job.job],
            sweep.output(job.slurm_id),
        )
        found.append(_state(entry, job, known))
    return found


def active_runs(sweeps: Sequence[Sweep]) -> dict[str, tuple[Sweep, str]]:
    """Runs of some sweeps whose jobs are queued or run: folder of the attempt -> sweep, job."""
    found: dict[str, tuple[Sweep, str]] = {}
    for sweep in sweeps:
        entries = sweep.runs()
        for run, job in sweep.latest().items():
            found[str(entries[run].records.folder)] = (sweep, job.slurm_id)
    held = commands.held({slurm_id for _, slurm_id in found.values()})
    active = {name for name, each in held.items() if each.is_active}
    return {folder: pair for folder, pair in found.items() if pair[1] in active}


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a run's job.

    Attributes:
        run: index of the run.
        active: if it is queued or runs.
        accounted: if accounting knows it.
        events: its journal.
        output: what it wrote to its error stream.
    """

    run: int
    active: Held | None
    accounted: Accounted | None
    events: Sequence[Mapping[str, Any]]
    output: Path

    def of_run(self) -> Mapping[str, Any] | None:
        """What the job last said of the run."""
        own = [event for event in self.events if event.get("run") == self.run]
        return own[-1] if own else None

    def last(self) -> Mapping[str, Any] | None:
        """What the job last said."""
        return self.events[-1] if self.events else None


def _state(entry: RunEntry, job: Submission, known: _Known) -> RunState:
    of_run = (event for event in known.events if event.get("run") == known.run)
    sizes = [event["batches"] for event in of_run if "batches" in event]
    reasons = _interruptions(known)
    state = RunState(
        entry=entry,
        status=jobs.LOST,
        batches_done=entry.records.num_recorded(),
        batches=sizes[-1] if sizes else None,
        preempted=reasons.count(journal.PREEMPTED),
        timeouts=reasons.count(journal.TIME_LIMIT),
        slurm_id=job.slurm_id,
        time_s=None if known.accounted is None else known.accounted.elapsed_s,
    )
    status, note = _status(entry, known)
    return replace(state, status=status, note=note)


def _interruptions(known: _Known) -> list[str]:
    """Why the job was queued again, each time."""
    found: list[str] = []
    told: str | None = None
    started = False
    for event in known.events:
        if event["what"] == journal.STARTED:
            if started:
                # Without notice: by hand, or its node was lost.
                found.append(told or journal.PREEMPTED)
            started, told = True, None
        elif event["what"] == journal.STOPPED:
            told = event["why"]
    # One that does not come back was cancelled, or ended for good.
    return found if told is None or known.active is None else [*found, told]


def _status(entry: RunEntry, known: _Known) -> tuple[str, str]:
    """Status, and why."""
    if entry.records.is_done():
        return jobs.DONE, ""
    said = known.of_run()
    if said is not None and said["what"] == journal.RUN_FAILED:
        status = jobs.OUT_OF_MEMORY if said.get("memory") else jobs.FAILED
        return status, _with_file(str(said["error"]).splitlines()[0], _failure(entry))
    if known.active is not None:
        return _of_active(known.active, said)
    return _of_ended(known, began=said is not None)


def _of_active(active: Held, said: Mapping[str, Any] | None) -> tuple[str, str]:
    if active.state == commands.PENDING:
        return jobs.QUEUED, "" if active.reason in _NO_REASON else active.reason
    # In a job of several runs, those to come are still queued.
    return (jobs.QUEUED if said is None else jobs.RUNNING), ""


def _of_ended(known: _Known, *, began: bool) -> tuple[str, str]:
    """Of a job that has ended, or is not known, without the run being done."""
    last, accounted = known.last(), known.accounted
    if _killed_for_memory(known):
        return (jobs.OUT_OF_MEMORY if began else jobs.NOT_STARTED), _with_file(
            "the job was over its memory: ask for more (launch.slurm.memory_gb)", known.output
        )
    if last is not None and last["what"] == journal.NOT_REQUEUED:
        stops = [event["why"] for event in known.events if event["what"] == journal.STOPPED]
        status = jobs.TIMED_OUT if stops[-1] == journal.TIME_LIMIT else jobs.PREEMPTED
        return status, str(last["why"])
    if accounted is None:
        return jobs.LOST, "SLURM knows nothing of its job, which left no result"
    status = _ENDS.get(accounted.state, jobs.FAILED)
    if status == jobs.LOST:
        return status, _with_file("its job ended well and left no result", known.output)
    how = accounted.state.lower().replace("_", " ")
    if accounted.ended_by:
        how += f", signal {accounted.ended_by}"
    elif accounted.exit_code:
        how += f", exit code {accounted.exit_code}"
    if known.events and not began and status == jobs.FAILED:
        status = jobs.NOT_STARTED
    return status, _with_file(how, known.output)


def _killed_for_memory(known: _Known) -> bool:
    """Whether the job was killed for its memory, as a state or as one of SLURM's lines."""
    accounted = known.accounted
    if accounted is None or accounted.state == "OUT_OF_MEMORY":
        return accounted is not None
    if accounted.ended_by != _KILLED:
        return False
    try:
        with known.output.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return _OVER_MEMORY in file.read()
    except OSError:
        return False


def _failure(entry: RunEntry) -> Path:
    return entry.records.folder / FAILURE


def _with_file(text: str, path: Path) -> str:
    return f"{text}: {path}" if path.exists() else text
