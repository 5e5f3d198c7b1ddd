"""A job that is told to end: it ends between two batches, or gives one up before it is killed.

Apart, because signals come at any moment, and what they interrupt must be chosen. SLURM sends USR2
some time before the time limit and, where the site says so, on preemption; TERM and, a little
later, KILL at the end of either, on a requeue by hand and on ``scancel``. Not here: what is done
once the runs have let go (``payload.py``).
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from bench.meters.clock import seconds
from bench.session import Interrupted, Session
from slurm.journal import PREEMPTED, TIME_LIMIT

# SLURM may send the signal before a time limit so much earlier than it was asked to.
EARLY_S = 60
_SLACK_S = 15
_AGAIN_S = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a job has once it is told to end.

    Attributes:
        end_s: time limit, on the clock of ``clock.seconds``; None without one.
        notice_s: how long before it the signal was asked for.
        grace_s: what a preempted job has after the signal.
        kill_wait_s: what it has after SIGTERM.
        margin_s: what is kept back of any of them, for ending in order.
    """

    end_s: float | None
    notice_s: int
    grace_s: int
    kill_wait_s: int
    margin_s: int

    def reason(self, now_s: float) -> str:
        """Why a signal came: too near to the time limit to be for anything else, or preemption."""
        near = self.end_s is not None and self.end_s - now_s <= (self.notice_s + EARLY_S + _SLACK_S)
        return TIME_LIMIT if near else PREEMPTED

    def left_s(self, signum: int, now_s: float) -> float:
        """Seconds for work that has not ended."""
        if signum == signal.SIGTERM:
            left = float(self.kill_wait_s)
        elif self.end_s is not None and self.reason(now_s) == TIME_LIMIT:
            left = self.end_s - now_s
        else:
            left = float(self.grace_s)
        return max(0.0, left - self.margin_s)


UNKNOWN = Limits(end_s=None, notice_s=0, grace_s=30, kill_wait_s=30, margin_s=0)


class JobSession(Session):
    """The session of a job's runs, which ends them when the job is told to end.

    Attributes:
        reason: why the job is to end; None while it is not.
        batches_begun: in this process, one more when it ends between two.
        on_begin: called with the number of batches of the run at work, once it is known.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__(facts)
        self.limits = UNKNOWN
        self.on_begin: Callable[[int], None] = _nothing
        self.reason: str | None = None
        self._deadline_s: float | None = None
        self._holds = 0
        self._may_abandon = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals count within it; handlers are then put back."""
        chosen = {
            signal.SIGUSR2: self._told,
            signal.SIGTERM: self._told,
            signal.SIGALRM: self._too_late,
        }
        before = {number: signal.signal(number, handler) for number, handler in chosen.items()}
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work within it may be given up."""
        self.end_if_told()
        self._may_abandon = True
        try:
            yield
        finally:
            self._may_abandon = False

    def begins(self, batches: int) -> None:
        """Passes on a run's number of batches."""
        self.on_begin(batches)

    def check(self) -> None:
        """Between two batches."""
        self.end_if_told()

    def end_if_told(self) -> None:
        """Ends the work if the job is to end."""
        if self.reason is not None:
            raise Interrupted(self.reason)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While something is written."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def _told(self, signum: int, frame: FrameType | None) -> None:
        now_s = seconds()
        left_s = self.limits.left_s(signum, now_s)
        if self.reason is None:
            self.reason = self.limits.reason(now_s)
        if self._deadline_s is None or now_s + left_s < self._deadline_s:
            self._deadline_s = now_s + left_s
            # A timer of 0 would be none. Once more later: what is raised while Python calls a
            # finaliser is lost.
            signal.setitimer(signal.ITIMER_REAL, max(left_s, 0.001), _AGAIN_S)

    def _too_late(self, signum: int, frame: FrameType | None) -> None:
        # What is being written is whole in a moment, and is followed by a check.
        if self._may_abandon and not self._holds:
            raise Interrupted(self.reason)


def _nothing(batches: int) -> None:
    """Where nobody wants to know."""
