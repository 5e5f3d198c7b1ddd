"""What needs a network and an account: runs shown live, and runs uploaded later.

A run that W&B has not seen is uploaded whole, by wandb's own ``sync``, which marks what has
arrived. One that it may have in part is gone on with, as a live one is: a second upload would add
the same rows once more. Apart, because either may be asked again and again, and never doubles a
run. Free of wandb and torch. Not here: which runs (``handover.py``).
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.errors import SkipbenchError
from bench.store import Attempt
from bench.tracking import asking, files
from bench.tracking.process import WandbError, WandbProcess, last_words, passing
from bench.tracking.settings import TrackingConfig

_LIVE = "bench.tracking.live"
# Seconds to say that a run stopped: before a requeue there is little time.
_STOP_S = 5.0

_SYNC = (sys.executable, "-m", "wandb", "sync", "--yes")
# A command line has a limit, and who waits wants to see something.
_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What came of an upload.

    Attributes:
        now: runs that have arrived.
        before: runs that had arrived before.
        faults: what went wrong, one text for each call.
        missing: runs that have not arrived.
    """

    now: int
    before: int
    faults: list[str]
    missing: int


class Live:
    """The process that shows a run while it goes on, or goes on with one.

    Args:
        attempt: whose records it reads.
        tracking: as what.
    """

    def __init__(self, attempt: Attempt, tracking: TrackingConfig) -> None:
        self._attempt, self._tracking = attempt, tracking
        self._process: WandbProcess | None = None
        self._fault: Exception | None = None
        try:
            self._process = WandbProcess(_LIVE, tracking.wait_s)
            # References are shown at the end, and large.
            self._process.say(asdict(replace(asking.job_of(attempt, tracking), references={})))
        except (WandbError, SkipbenchError) as error:
            self._fault = error

    def settle(self) -> None:
        """Waits until it has loaded W&B; why it has not is told at the end."""
        try:
            if self._process is not None and self._fault is None:
                self._process.settle()
        except WandbError as error:
            self._fault = error

    def end(self) -> None:
        """Tells it how the run ended, and waits until W&B has all of it.

        Raises:
            WandbError: if it has not.
            InputError: for records that cannot be read.
        """
        try:
            if self._process is None or self._fault is not None:
                raise self._fault or WandbError("")
            status = self._attempt.status()
            job = asdict(asking.job_of(self._attempt, self._tracking))
            self._process.say({"status": status, "job": job})
            self._process.answer(_STOP_S if status == "stopped" else None)
        finally:
            if self._process is not None:
                self._process.close()


def upload(attempts: Sequence[Attempt], tracking: TrackingConfig) -> Uploaded:
    """Uploads what W&B does not have of attempts that were built."""
    runs = {each: folder for each in attempts if (folder := files.offline_run(each))}
    waiting = {each: folder for each, folder in runs.items() if not files.is_uploaded(folder)}
    new = [folder for each, folder in waiting.items() if not files.is_seen(each)]
    seen = [each for each in waiting if files.is_seen(each)]
    faults, arrived = [], 0
    for attempt in seen:
        try:
            Live(attempt, tracking).end()
            arrived += 1
        except (WandbError, SkipbenchError) as error:
            faults.append(str(error).splitlines()[0])
    for at in range(0, len(new), _AT_ONCE):
        part = new[at : at + _AT_ONCE]
        said = _sync(part, tracking)
        if not all(map(files.is_uploaded, part)):
            faults.append(said)
    arrived += sum(map(files.is_uploaded, new))
    return Uploaded(arrived, len(runs) - len(waiting), faults, len(waiting) - arrived)


def command(folders: Sequence[Path], tracking: TrackingConfig) -> list[str]:
    """The call of wandb."""
    named = {"--project": tracking.project, "--entity": tracking.entity}
    options = [part for name, value in named.items() if value for part in (name, value)]
    return [*_SYNC, *options, *map(str, folders)]


def _sync(folders: Sequence[Path], tracking: TrackingConfig) -> str:
    """What it has said last: it ends with 0 even where nobody is logged in."""
    wait_s = tracking.wait_s * len(folders)
    try:
        with passing() as environment:
            done = subprocess.run(
                command(folders, tracking),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment | {"WANDB_SILENT": "false"},
                timeout=wait_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"no answer in {wait_s} s"
    except OSError as error:
        return f"wandb sync does not start: {error}"
    said = last_words(done.stdout.decode(errors="replace"))
    return said or f"wandb sync ended with {done.returncode}"
