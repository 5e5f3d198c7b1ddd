"""What the user sees of a sweep at work: a live table on a terminal, plain lines elsewhere.

Apart, so that launchers only say what happens. Not here: a run's own progress and table
(``bench/progress.py``, ``bench/report.py``); under a live table they are silent.
"""

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from bench import jobs as listing
from bench.jobs import OPEN, RUNNING, Job
from bench.meters.clock import now_utc

# Rows of the live table, which must fit a terminal; the last one shows all.
_LIVE_ROWS = 12


class Board:
    """The state of a sweep's jobs, shown.

    Args:
        jobs: all of them, also those left out; their status is read anew each time.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._verbosity = jobs[0].config.verbosity if jobs else "normal"
        self._console = Console(stderr=True)
        self._began = ""
        self.live = self._console.is_terminal and self._verbosity == "normal"
        self._live = Live(console=self._console, refresh_per_second=2, transient=True)

    def __enter__(self) -> "Board":
        if self.live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.live:
            self._live.stop()
        if self._verbosity != "quiet":
            listing.show(self._jobs, f"sweep: {listing.counts(self._jobs)}")

    def say(self, text: str) -> None:
        """A line that stays; also when quiet, for it tells of what was not run as asked."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, job: Job) -> None:
        """A job starts."""
        self._began = now_utc()
        self._tell(job)

    def end(self, job: Job) -> None:
        """A job has ended."""
        began, ended = map(datetime.fromisoformat, (self._began, now_utc()))
        job.time_s = (ended - began).total_seconds()
        self._tell(job)

    def changed(self, job: Job) -> None:
        """A job of a cluster stands otherwise than before."""
        self._tell(job)

    def _tell(self, job: Job) -> None:
        if self.live:
            self._live.update(self._current())
        elif self._verbosity != "quiet":
            at = next(index for index, each in enumerate(self._jobs) if each is job) + 1
            took = "" if job.time_s is None else f", {job.time_s:.0f} s"
            run_id = f" [{job.run_id}]" if job.run_id else ""
            self.say(f"{at}/{len(self._jobs)} {job.overrides}{run_id}: {job.status}{took}")

    def _current(self) -> Group:
        """The rows around the job that runs."""
        at = next((i for i, job in enumerate(self._jobs) if job.status == RUNNING), 0)
        first = max(0, min(at - _LIVE_ROWS // 2, len(self._jobs) - _LIVE_ROWS))
        rows = self._jobs[first : first + _LIVE_ROWS]
        ended = sum(job.status not in OPEN for job in self._jobs)
        title = f"sweep: {ended}/{len(self._jobs)}, {listing.counts(self._jobs)}"
        running = any(job.status == RUNNING for job in rows)
        since = f"running since {self._began}" if running and self._began else ""
        return Group(listing.table(rows, title), Text(since))
