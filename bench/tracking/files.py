"""The files of W&B in an attempt's folder, and the mark that says which records they were made of.

Apart, because a W&B run is there or it is not: only the mark, written last, counts. Free of wandb
and torch. Not here: what writes them (``writer.py``, ``live.py``).
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import disk, store
from bench.store import Attempt

LOCK = "lock"
_MARK = "handed-over.json"
# There once W&B itself may have some of the run.
_SEEN = "seen-by-wandb"
# What W&B names the folder of one run by, and what it leaves beside a file that was uploaded.
_RUN_FOLDERS, _UPLOADED = "*run*", ".synced"
# Beside a file of which something was uploaded.
_BEGUN = ".sync*"


@dataclass(frozen=True, slots=True)
class Mark:
    """What was handed to W&B, and as what.

    Attributes:
        status: of the attempt at that time.
        recorded_bytes: of its batches at that time.
        project: of W&B.
        entity: of W&B; None for the account's own.
        folder: of the offline run, beside this file; None for a run that went through online.
    """

    status: str
    recorded_bytes: int
    project: str
    entity: str | None
    folder: str | None


def folder_of(attempt: Attempt) -> Path:
    """Where the files of W&B lie."""
    return attempt.folder / store.WANDB


def state(attempt: Attempt) -> dict[str, Any]:
    """What a mark must agree with."""
    batches = attempt.folder / store.BATCHES
    with disk.reading(batches):
        size = batches.stat().st_size if batches.exists() else 0
    return {"status": attempt.status(), "recorded_bytes": size}


def mark(attempt: Attempt) -> Mark | None:
    """The mark; None if there is none that can be understood."""
    data = disk.content(folder_of(attempt) / _MARK)
    try:
        return None if data is None else Mark(**json.loads(data))
    except (TypeError, ValueError):
        return None


def write_mark(attempt: Attempt, found: Mark) -> None:
    """Written last: all of the W&B run is there."""
    data = json.dumps(asdict(found), indent=1) + "\n"
    disk.replace(folder_of(attempt) / _MARK, data.encode())


def is_current(attempt: Attempt, project: str | None, entity: str | None) -> bool:
    """Whether what was handed over is what the records say now.

    Args:
        attempt: whose.
        project: that is asked for; None where any will do.
        entity: likewise.
    """
    found = mark(attempt)
    if found is None or project not in (None, found.project) or entity not in (None, found.entity):
        return False
    now = state(attempt)
    return now == {name: getattr(found, name) for name in now}


def offline_run(attempt: Attempt) -> Path | None:
    """The folder of the offline run; None where there is none (any more)."""
    found = mark(attempt)
    if found is None or found.folder is None:
        return None
    folder = folder_of(attempt) / found.folder
    return folder if folder.is_dir() else None


def is_uploaded(run_folder: Path) -> bool:
    """Whether W&B has marked a run's file as uploaded."""
    return any(run_folder.glob(f"*.wandb{_UPLOADED}"))


def is_seen(attempt: Attempt) -> bool:
    """Whether W&B may have some of the run: then it is gone on with, not uploaded as a new one."""
    return (folder_of(attempt) / _SEEN).exists()


def note_seen(attempt: Attempt) -> None:
    """Notes that from now on W&B may have some of the run."""
    folder = folder_of(attempt)
    with disk.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _SEEN).touch()


def clear(attempt: Attempt) -> None:
    """Removes what was there before, the mark first; notes whether some of it was uploaded."""
    folder = folder_of(attempt)
    if any(folder.glob(f"{_RUN_FOLDERS}/*.wandb{_BEGUN}")):
        note_seen(attempt)
    with disk.writing(folder):
        (folder / _MARK).unlink(missing_ok=True)
        for name in (*_left(folder), "artifacts", "cache"):
            # The link to the latest run may be one to nothing.
            if (folder / name).is_symlink():
                (folder / name).unlink()
            elif (folder / name).exists():
                shutil.rmtree(folder / name)


def clear_offline(attempt: Attempt) -> None:
    """Removes an offline run that W&B now has in another way."""
    folder = folder_of(attempt)
    with disk.writing(folder):
        for name in _left(folder):
            if name.startswith("offline-"):
                shutil.rmtree(folder / name)


def _left(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(_RUN_FOLDERS)]
