"""Runs one program in the jail: gives it, watches it, ends it, and says what came of it.

Apart from ``jail.py``, because what is watched cannot be trusted to watch itself: wall clock,
output and memory of all processes are bounded from here. Free of torch. Not here: many programs at
once (``pool.py``).
"""

import json
import os
import secrets
import selectors
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from bench.errors import SkipbenchError
from bench.meters.clock import seconds
from bench.sandbox import processes
from bench.sandbox.jail import OUT_OF_TIME, STARTED
from bench.sandbox.limits import Limits

Outcome = Literal["passed", "failed", "timeout", "memory", "output_limit"]

_ROOT = Path(__file__).resolve().parents[2]
_LAUNCH = "import sys; sys.path.insert(0, sys.argv.pop()); import bench.sandbox.jail as j; j.main()"
_LOOK_EVERY_S = 0.05
# After a kill the kernel takes the namespace apart at once; longer means that it did not.
_END_WITHIN_S = 30.0
# Of the jail, before the program's own time begins.
_START_WITHIN_S = 120.0
_DETAIL_CHARACTERS = 500


class SandboxError(SkipbenchError):
    """The sandbox itself failed: nothing is known of the program."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of a program.

    Attributes:
        outcome: ``passed`` only if it ran to its end and left with status 0.
        detail: end of its standard error, for a reader.
    """

    outcome: Outcome
    detail: str


def execute(program: str, limits: Limits) -> Execution:
    """Runs a program to its end or to a limit; nothing of it is left when this returns.

    Raises:
        SandboxError: if it could not be run, or not be ended.
    """
    token = secrets.token_hex(16).encode()
    try:
        with tempfile.TemporaryFile() as given:
            given.write(token + b"\n" + program.encode("utf-8", "surrogatepass"))
            given.seek(0)
            watched = _Watched(given.fileno(), limits)
    except OSError as error:
        raise SandboxError(f"The sandbox cannot be started: {error}") from error
    try:
        stopped = watched.follow()
    finally:
        watched.end()
    if stopped is None and watched.status < 0:
        raise SandboxError(f"The sandbox was ended from outside, by signal {-watched.status}")
    fault = watched.text("fault")
    if fault != STARTED.decode():
        why = fault or watched.text("stderr") or "it did not start in time"
        raise SandboxError(f"The sandbox cannot run a program: {why}")
    detail = watched.text("stderr").rstrip()[-_DETAIL_CHARACTERS:]
    whole = watched.text("verdict") == token.decode()
    return Execution(stopped or _judged(watched.status, detail, whole=whole), detail)


def _judged(status: int, detail: str, *, whole: bool) -> Outcome:
    """The outcome of a program that ended by itself."""
    if whole and status == 0:
        return "passed"
    if status == OUT_OF_TIME:
        return "timeout"
    last = detail.rpartition("\n")[2]
    return "memory" if last.startswith("MemoryError") else "failed"


class _Watched:
    """A jail that runs, and what came out of it so far."""

    def __init__(self, given: int, limits: Limits) -> None:
        self._limits = limits
        self._found = {name: bytearray() for name in ("stdout", "stderr", "verdict", "fault")}
        self._select = selectors.DefaultSelector()
        ends = {name: os.pipe() for name in self._found}
        try:
            self._process = self._start(given, {name: pair[1] for name, pair in ends.items()})
        except BaseException:
            for read, _ in ends.values():
                os.close(read)
            raise
        finally:
            for _, write in ends.values():
                os.close(write)
        for name, (read, _) in ends.items():
            self._select.register(read, selectors.EVENT_READ, name)

    @property
    def status(self) -> int:
        """Of the launcher, once it has ended."""
        return self._process.wait()

    def text(self, name: str) -> str:
        """What came out so far of one pipe."""
        return self._found[name].decode(errors="replace")

    def follow(self) -> Outcome | None:
        """Reads until everything has ended; the limit that was reached, or None.

        The four pipes end together, when no process of the jail is left to hold them.
        """
        last, started = seconds() + _START_WITHIN_S, None
        while self._select.get_map():
            self._read(_LOOK_EVERY_S)
            if len(self._found["stdout"]) + len(self._found["stderr"]) > self._limits.output_bytes:
                return "output_limit"
            if started is not None:
                # The time before the usage: on a busy machine much may pass between the two.
                wall_s = seconds() - started
                reached = self._limits.reached(processes.below(self._process.pid), wall_s)
                if reached is not None:
                    return reached
            elif self._found["fault"]:
                started = seconds()
            elif seconds() > last:
                return "timeout"
        return None

    def end(self) -> None:
        """Kills whatever is left.

        Raises:
            SandboxError: if something holds a pipe all the same.
        """
        # The launcher ends the namespace and waits for it; killed, it would only end it.
        self._process.terminate()
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        last = seconds() + _END_WITHIN_S
        while self._select.get_map() and seconds() < last:
            self._read(_LOOK_EVERY_S, keep=False)
        left = [key.fd for key in self._select.get_map().values()]
        for end in left:
            os.close(end)
        self._select.close()
        if left:
            raise SandboxError("A program in the sandbox could not be ended")

    def _start(self, given: int, pipes: dict[str, int]) -> "subprocess.Popen[bytes]":
        interpreter = str(Path(sys.executable).resolve())
        prefixes = {str(Path(p).resolve()) for p in (sys.base_prefix, sys.base_exec_prefix)}
        settings = {
            "python": interpreter,
            "prefixes": sorted(prefixes),
            "limits": asdict(self._limits),
            "parent": os.getpid(),
            "fault_fd": pipes["fault"],
            "verdict_fd": pipes["verdict"],
        }
        python = [interpreter, "-I", "-S", "-B", "-c", _LAUNCH]
        return subprocess.Popen(
            [*python, json.dumps(settings), str(_ROOT)],
            stdin=given,
            stdout=pipes["stdout"],
            stderr=pipes["stderr"],
            pass_fds=(pipes["fault"], pipes["verdict"]),
            # Of the launcher too: the program could look into whoever shares its uid.
            env={},
            cwd="/",
            start_new_session=True,
        )

    def _read(self, wait_s: float, *, keep: bool = True) -> None:
        for key, _ in self._select.select(wait_s):
            part = os.read(key.fd, 2**16)
            if part and keep:
                self._found[key.data] += part
            elif not part:
                self._select.unregister(key.fd)
                os.close(key.fd)
