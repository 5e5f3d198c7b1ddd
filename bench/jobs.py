"""The jobs of a command: one configuration each, the run that it is, and how it stands.

Apart, because the plan of a single run, the plan of a sweep and a sweep at work show the same
table. Free of torch. Not here: composing, and running (``slurm/launcher.py``).
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench import store
from bench.config import RunConfig
from bench.errors import InputError

NEW, STOPPED, FAILED, DONE = "new", "stopped", "failed", "done"
RUNNING, NOT_STARTED, TWICE = "running", "not started", "same run as above"
# Of a cluster.
QUEUED, ELSEWHERE = "queued", "queued before"
OUT_OF_MEMORY, TIMED_OUT, CANCELLED = "out of memory", "timed out", "cancelled"
PREEMPTED, LOST = "preempted", "lost"
_SETTINGS_WIDTH = 100
# What a sweep has not yet ended.
OPEN = frozenset({NEW, STOPPED, RUNNING, QUEUED})
# Ends of a run on a cluster without a result.
BAD_ENDS = frozenset({FAILED, OUT_OF_MEMORY, TIMED_OUT, CANCELLED, PREEMPTED, LOST, NOT_STARTED})


@dataclass(slots=True)
class Job:
    """One configuration of a command.

    Attributes:
        overrides: of the command, as typed; of a sweep those that tell its jobs apart.
        config: what runs.
        run_id: None where nothing was planned, as in training.
        status: as the store has it, then as the sweep goes on.
        time_s: seconds that it took; None before it ended.
        note: why it did not end well: a file or a few words.
        values: the configuration as composed, to be frozen; None where it is not.
    """

    overrides: str
    config: RunConfig
    run_id: str | None = None
    status: str = NEW
    time_s: float | None = None
    note: str = ""
    values: Mapping[str, Any] | None = None

    def attempt(self) -> store.Attempt | None:
        """The attempt that this job makes; None without a run id."""
        if self.run_id is None:
            return None
        folder = Path(self.config.results_dir)
        return store.next_attempt(folder, self.run_id, rerun=self.config.rerun)


def look_up(job: Job) -> None:
    """Sets the status that the store has of a job's run.

    Raises:
        InputError: if its results could not be written.
    """
    check_writable(Path(job.config.results_dir))
    attempt = job.attempt()
    if attempt is not None:
        job.status = attempt.status() if attempt.folder.exists() else NEW


def mark_twice(jobs: Iterable[Job]) -> None:
    """Marks the jobs that are the same run as one before them."""
    seen: set[tuple[str, str]] = set()
    for job in jobs:
        if job.run_id is not None:
            key = (job.config.results_dir, job.run_id)
            job.status = TWICE if key in seen else job.status
            seen.add(key)


def check_writable(results_dir: Path) -> None:
    """Refuses a results folder that cannot be written, before anything is loaded to run.

    Raises:
        InputError: for one that is no folder, or is read-only.
    """
    above = results_dir.absolute()
    while not os.path.lexists(above):
        above = above.parent
    reason = None if above.is_dir() else f"{above} is no folder"
    if reason is None and not os.access(above, os.W_OK | os.X_OK):
        reason = f"{above} cannot be written"
    if reason:
        raise InputError(
            "Cannot write results",
            got=f"{results_dir}: {reason}",
            allowed="a folder that can be written, or made",
            where="results_dir",
        )


def labels(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Each job's overrides in one line, as typed, without the action and what all jobs share."""
    typed = [[word.removeprefix("++") for word in overrides] for overrides in jobs]
    shared = set(typed[0]).intersection(*typed) if len(typed) > 1 else set()
    shared |= {word for words in typed for word in words if word.startswith("action=")}
    return [" ".join(word for word in words if word not in shared) for words in typed]


def table(jobs: Sequence[Job], title: str) -> Table:
    """One row a job."""
    drawn = Table(title=title, title_justify="left")
    drawn.add_column("run", no_wrap=True)
    drawn.add_column("method", no_wrap=True)
    drawn.add_column("settings", overflow="fold", max_width=_SETTINGS_WIDTH)
    drawn.add_column("status", no_wrap=True)
    drawn.add_column("time", justify="right", no_wrap=True)
    drawn.add_column("", overflow="fold")
    for job in jobs:
        seconds = "" if job.time_s is None else f"{job.time_s:.0f} s"
        name = job.config.method.name
        row = (job.run_id or "", name, job.overrides, job.status, seconds, job.note)
        # As Text: a list in brackets would be read as markup.
        drawn.add_row(*map(Text, row))
    return drawn


def counts(jobs: Sequence[Job]) -> str:
    """How many jobs stand how, such as ``2 done, 1 failed``."""
    found: dict[str, int] = {}
    for job in jobs:
        found[job.status] = found.get(job.status, 0) + 1
    return ", ".join(f"{number} {status}" for status, number in found.items())


def show(jobs: Sequence[Job], title: str) -> None:
    """Prints the table; where no terminal cuts it, each row is one line."""
    console = Console()
    if console.is_terminal:
        console.print(table(jobs, title))
        return
    drawn = table(jobs, title)
    widest = Console(width=10_000).measure(drawn).maximum
    Console(width=max(widest, console.width)).print(drawn)
