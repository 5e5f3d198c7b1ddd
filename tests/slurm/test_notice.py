"""A job that is told to end ends where nothing is lost, in time, and puts the signals back."""

import os
import signal

import pytest

from bench.session import Interrupted
from slurm import notice
from slurm.journal import PREEMPTED, TIME_LIMIT
from slurm.notice import JobSession, Limits

LIMITS = Limits(end_s=1000.0, notice_s=120, grace_s=30, kill_wait_s=20, margin_s=15)
# No timer fires in a test that does not want one.
PATIENT = Limits(end_s=None, notice_s=120, grace_s=10_000, kill_wait_s=10_000, margin_s=0)
AT_ONCE = Limits(end_s=None, notice_s=120, grace_s=0, kill_wait_s=0, margin_s=15)


@pytest.fixture
def session_of():
    """``session_of(limits)``: a session under these limits."""

    def make(limits):
        session = JobSession({})
        session.limits = limits
        return session

    return make


def tell(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "now_s", "reason", "left_s"),
    [
        # 60 s early, and a little.
        (signal.SIGUSR2, 810.0, TIME_LIMIT, 175.0),
        (signal.SIGUSR2, 990.0, TIME_LIMIT, 0.0),
        (signal.SIGUSR2, 500.0, PREEMPTED, 15.0),
        (signal.SIGTERM, 500.0, PREEMPTED, 5.0),
        (signal.SIGTERM, 999.0, TIME_LIMIT, 5.0),
    ],
)
def test_the_time_that_is_left_follows_from_the_signal_and_the_limit(number, now_s, reason, left_s):
    assert LIMITS.reason(now_s) == reason
    assert LIMITS.left_s(number, now_s) == left_s


def ended(session, work):
    """Does the work in the session, which must end it."""
    with session.listening():
        try:
            with session.working():
                work()
        except Interrupted:
            return
    pytest.fail("it was not ended")


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_batch_is_finished_and_the_next_one_not_begun(number, session_of):
    session, done = session_of(PATIENT), []

    def batches():
        for batch in range(4):
            session.check()
            if batch == 1:
                tell(number)
            done.append(batch)

    ended(session, batches)
    assert done == [0, 1]
    assert session.reason == PREEMPTED


def test_a_batch_that_takes_longer_than_the_notice_is_given_up(session_of):
    def batch():
        tell(signal.SIGUSR2)
        signal.pause()

    ended(session_of(AT_ONCE), batch)


def test_what_is_being_written_is_not_given_up(session_of):
    session, written = session_of(AT_ONCE), []

    def write():
        with session.held():
            tell(signal.SIGTERM)
            # The timer's signal.
            signal.pause()
            written.append("whole")
        session.check()

    ended(session, write)
    assert written == ["whole"]


def test_a_job_that_was_told_before_it_began_does_not_begin(session_of):
    session = session_of(PATIENT)
    with session.listening():
        tell(signal.SIGTERM)
        with pytest.raises(Interrupted), session.working():
            pytest.fail("it began")


def test_a_second_signal_only_brings_the_end_nearer(monkeypatch, session_of):
    timers = []
    monkeypatch.setattr(signal, "setitimer", lambda which, after, again=0: timers.append(after))
    monkeypatch.setattr(notice, "seconds", lambda: 500.0)
    session = session_of(LIMITS)
    with session.listening():
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR2):
            tell(number)
    # The last one is the timer being put off.
    assert timers == [15.0, 5.0, 0]


def test_the_handlers_are_put_back(session_of):
    numbers = (signal.SIGUSR2, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    session = session_of(PATIENT)
    with session.listening():
        assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before
