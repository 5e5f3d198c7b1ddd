"""A process of its own that speaks to W&B: started, asked, given up when it does not answer.

Both ends of the pipes to it. Apart, because W&B must not be able to end, stop or slow a run: what
it imports, catches, waits for and writes to the screen stays in that process. Free of wandb and
torch. Not here: what it is asked (``handover.py``), what it does (``writer.py``, ``live.py``).
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.tracking.jobs import Job

WRITER = "bench.tracking.writer"
# The code that this process runs.
_ROOT = Path(__file__).resolve().parents[2]
# W&B's variables that would make another run of what the records say.
_NOT_HANDED_ON = frozenset(
    f"WANDB_{name}"
    for name in (
        *("RUN_ID", "RESUME", "DIR", "MODE", "NAME", "NOTES", "TAGS", "RUN_GROUP", "JOB_TYPE"),
        *("SWEEP_ID", "SWEEP_PARAM_PATH", "DISABLED", "CONSOLE", "DATA_DIR", "CACHE_DIR"),
    )
)
# As a traceback ends; what follows may go over several lines.
_RAISED = re.compile(r"[\w.]+(Error|Exception|Failed)\b")
# Seconds that a process has to end once it has closed its pipe.
_END_S = 5
# A cluster signals every process of a job; what to do is for the run to say.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class WandbError(Exception):
    """W&B did not do what it was asked; the text says why."""


class SilentError(WandbError):
    """W&B has not answered in time."""


class Lines:
    """Lines of a pipe, one at a time, as they come.

    Args:
        descriptor: of the pipe, which nothing else reads.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._unread = descriptor, b""

    def next(self, wait_s: float | None = None) -> bytes | None:
        """The next line; empty at the pipe's end, None if there is none within ``wait_s``."""
        while b"\n" not in self._unread:
            if not select.select([self._descriptor], [], [], wait_s)[0]:
                return None
            more = os.read(self._descriptor, 1 << 16)
            if not more:
                return b""
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line


class WandbProcess:
    """One process, from start to end; it ends by itself when this one does.

    It says ``{"ready": true}`` once it has loaded W&B, and then answers what it is asked.

    Args:
        module: what it runs.
        wait_s: seconds to wait for an answer at most.
    """

    def __init__(self, module: str, wait_s: float) -> None:
        self._wait_s, self._ready = wait_s, False
        with ExitStack() as stack:
            try:
                self._told = stack.enter_context(tempfile.TemporaryFile())
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._told,
                    env=environment(),
                    # Not of the terminal's group: an interrupt is for the run to answer.
                    start_new_session=True,
                    bufsize=0,
                )
            except OSError as error:
                raise WandbError(f"its process does not start: {error}") from error
            # Closed in ``close``.
            stack.pop_all()
        assert self._process.stdin is not None, "a pipe"
        assert self._process.stdout is not None, "a pipe"
        os.set_blocking(self._process.stdin.fileno(), False)
        self._answers = Lines(self._process.stdout.fileno())

    def settle(self) -> None:
        """Waits until it has loaded W&B, and so sleeps until it is asked.

        Raises:
            WandbError: if it does not come to that.
        """
        if not self._ready:
            self._next(self._wait_s)
            self._ready = True

    def say(self, message: dict[str, Any]) -> None:
        """Hands over one message, without an answer.

        Raises:
            WandbError: if nobody is there to read it.
        """
        assert self._process.stdin is not None, "a pipe"
        data = memoryview((json.dumps(message) + "\n").encode())
        try:
            while data:
                # A pipe takes only so much at a time, of a reader that may hang.
                if not select.select([], [self._process.stdin], [], self._wait_s)[1]:
                    raise SilentError(f"it has not read in {self._wait_s:g} s")
                data = data[self._process.stdin.write(data) or 0 :]
        except OSError as error:
            raise WandbError(self._why()) from error

    def answer(self, wait_s: float | None = None) -> dict[str, Any]:
        """The next answer.

        Raises:
            WandbError: if none comes.
        """
        self.settle()
        return self._next(self._wait_s if wait_s is None else wait_s)

    def _next(self, wait_s: float) -> dict[str, Any]:
        while True:
            line = self._answers.next(wait_s)
            if line is None:
                raise SilentError(f"no answer in {wait_s:g} s")
            if not line:
                raise WandbError(self._why())
            # Before it has its own channel, wandb may print into it.
            with suppress(ValueError):
                return dict(json.loads(line))

    def close(self) -> None:
        """Ends the process, and what it has started: what it was asked is done, or given up."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None, "a pipe"
            with suppress(OSError):
                pipe.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._told.close()

    def _why(self) -> str:
        """What a process that ended has said last."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._told.seek(0)
        said = last_words(self._told.read().decode(errors="replace"))
        return said or f"its process ended with {self._process.poll()}"


class Writer:
    """The process that builds runs, started where it can get ready beside other work.

    Args:
        wait_s: seconds to wait for an answer at most.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s, self._fault = wait_s, ""
        self._process: WandbProcess | None = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self._give_up()

    def start(self) -> None:
        """Starts it; why that failed is told when it is asked."""
        if self._process is None and not self._fault:
            try:
                self._process = WandbProcess(WRITER, self._wait_s)
            except WandbError as error:
                self._fault = str(error)

    def settle(self) -> None:
        """Waits until it sleeps; why it does not is told when it is asked."""
        self.start()
        if self._process is not None:
            try:
                self._process.settle()
            except WandbError as error:
                self._fault = str(error)
                self._give_up()

    def build(self, job: Job) -> str | None:
        """The folder of the run that it has built; None if another process builds it.

        Raises:
            WandbError: if it could not.
        """
        self.settle()
        if self._process is None:
            raise WandbError(self._fault)
        try:
            self._process.say(asdict(job))
            found = self._process.answer()
        except WandbError:
            # The next one is asked of another process.
            self._give_up()
            raise
        if "error" in found:
            raise WandbError(found["error"])
        built: str | None = found["built"]
        return built

    def _give_up(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None


def channel() -> tuple[Lines, Callable[[dict[str, Any]], None]]:
    """The other ends, in the process itself: what it is asked, and how it answers.

    Standard output becomes the answers' alone, and signals to the whole job pass by.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # What wandb prints goes with its warnings.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    return Lines(sys.stdin.fileno()), say


def last_words(text: str) -> str:
    """The line that says why: that of the last exception, else the last one."""
    lines = [line for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or [""])[-1].strip()


def environment() -> dict[str, str]:
    """The environment of a process that speaks to W&B: the user's account, nobody's run."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
    path = [str(_ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    # Threads of numerical libraries would only get into the way of the run.
    quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"}
    return kept | quiet | {"PYTHONPATH": os.pathsep.join(path)}


@contextmanager
def passing() -> Iterator[dict[str, str]]:
    """The environment of one call of wandb, which would leave logs here and in the home folder."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {f"WANDB_{name}": folder for name in ("DIR", "CACHE_DIR", "DATA_DIR")}
        yield environment() | kept
