"""Uploads offline runs through wandb's own ``sync``, which marks what has arrived.

Apart, because it is the one thing here that needs a network and an account; asked again, it leaves
out what is marked. Free of wandb and torch. Not here: which runs (``tracking.py``).
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import wandb_files
from bench.config import TrackingConfig
from bench.store import Attempt
from bench.wandb_process import environment

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


def upload(attempts: Sequence[Attempt], tracking: TrackingConfig) -> Uploaded:
    """Uploads the offline runs of attempts that are not yet marked as uploaded."""
    folders = [folder for each in attempts if (folder := wandb_files.offline_run(each))]
    open_ones = [folder for folder in folders if not wandb_files.is_uploaded(folder)]
    faults = []
    for at in range(0, len(open_ones), _AT_ONCE):
        part = open_ones[at : at + _AT_ONCE]
        said = _sync(part, tracking)
        if not all(map(wandb_files.is_uploaded, part)):
            faults.append(said)
    missing = sum(not wandb_files.is_uploaded(folder) for folder in open_ones)
    before = len(folders) - len(open_ones)
    return Uploaded(len(open_ones) - missing, before, faults, missing)


def command(folders: Sequence[Path], tracking: TrackingConfig) -> list[str]:
    """The call of wandb."""
    named = {"--project": tracking.project, "--entity": tracking.entity}
    options = [part for name, value in named.items() if value for part in (name, value)]
    return [*_SYNC, *options, *map(str, folders)]


def _sync(folders: Sequence[Path], tracking: TrackingConfig) -> str:
    """What it has said last: it ends with 0 even where nobody is logged in."""
    try:
        done = subprocess.run(
            command(folders, tracking),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment() | {"WANDB_SILENT": "false"},
            timeout=tracking.wait_s * len(folders),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {tracking.wait_s * len(folders)} s"
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else f"wandb sync ended with {done.returncode}"
