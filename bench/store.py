"""The store: the one owner of paths under ``results_dir``, and of how records get there.

Apart, so that nothing already measured is lost or silently replaced: records are appended and
flushed, a torn last line is cut, the header comes last and whole. Nothing here is ordered by a
clock, which may jump: what is newer is told by the numbers of attempts, and folders are named by
run ids, so that sweeps started in the same second share none. Free of torch. Not here: what a
record means (``schema.py``), how a file is written (``disk.py``), what to do about a damaged one
(``doctor.py``).
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

from bench import disk
from bench import lock as locks
from bench.errors import InputError
from bench.schema import SCHEMA_VERSION, BatchRecord, Header, Segment, Start, batch_from, plain

START, SEGMENTS, BATCHES = "start.json", "segments.jsonl", "batches.jsonl"
HEADER = "header.json"
# Beside the folders of runs: those of calibrations (``calibration_store.py``).
CALIBRATIONS = "calibrations"
FAILURE, LOCK, LOG = "failure.txt", "lock", "log.txt"
# Beside the folders of runs: what was submitted to a cluster (``slurm/sweeps.py``).
SWEEPS = "sweeps"
# A folder: what W&B writes (``files.py``).
WANDB = "wandb"

Status = Literal["done", "running", "stopped", "failed"]
_T = TypeVar("_T")
_ATTEMPT = re.compile("[1-9][0-9]*")


class DamagedError(InputError):
    """A record that is no longer what was written.

    Args:
        path: the file.
        line: the line in it, from 1; None for a file that is one record.
        reason: what is wrong with it.
    """

    def __init__(self, path: Path, line: int | None, reason: Exception) -> None:
        self.line = line
        self.reason = f"no {reason} in it" if isinstance(reason, KeyError) else str(reason)
        super().__init__(
            "The record is damaged",
            got=f"{path}{'' if line is None else f':{line}'}: {self.reason}",
            allowed="a record as the suite wrote it; the others are not affected",
            where=f"python -m bench action=doctor results_dir={path.parent.parent.parent}",
        )


class NewerError(InputError):
    """A record of a schema that this code does not know."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(
            "The record was written by a newer skipbench",
            got=f"{path}: schema {version}",
            allowed=f"schema up to {SCHEMA_VERSION}",
            where="update skipbench",
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one run: a folder ``<results_dir>/<run_id>/<attempt>``.

    What reads or writes raises an InputError where the file system does not let it, and a
    DamagedError for a record that cannot be understood.
    """

    folder: Path

    @property
    def number(self) -> int:
        """1 for the first."""
        return int(self.folder.name)

    @property
    def log(self) -> Path:
        """What was done and what went wrong, for a reader."""
        return self.folder / LOG

    def is_done(self) -> bool:
        """Whether the header is there."""
        with disk.reading(self.folder):
            return (self.folder / HEADER).exists()

    def status(self) -> Status:
        """done: the header is there; running: a process holds the lock. Reads no record."""
        if self.is_done():
            return "done"
        with disk.reading(self.folder):
            if (self.folder / FAILURE).exists():
                return "failed"
            return "running" if locks.is_held(self.folder / LOCK) else "stopped"

    def start(self) -> Start | None:
        """What runs; None if the process ended before it was written."""
        return _read(self.folder / START, lambda raw: Start(**raw))

    def header(self) -> Header | None:
        """The header; None for a run that is not complete."""
        return _read(self.folder / HEADER, lambda raw: Header(**raw))

    def batches(self) -> list[BatchRecord]:
        """The newest whole record of each batch, in order."""
        newest = {record.index: record for record in lines_of(self.folder / BATCHES, batch_from)}
        return [newest[index] for index in sorted(newest)]

    def num_recorded(self) -> int:
        """Records of batches, unread: one that was measured anew counts twice."""
        return (disk.content(self.folder / BATCHES) or b"").count(b"\n")

    def segments(self) -> list[Segment]:
        """The processes that worked on it, oldest first."""
        return lines_of(self.folder / SEGMENTS, lambda raw: Segment(**raw))

    def claim(self) -> TextIO:
        """Makes the folder and takes the lock, which ends with the process or on close.

        Raises:
            InputError: if another process runs this run or has just completed it, or the folder
                cannot be written.
        """
        with disk.writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = locks.take(self.folder / LOCK)
        if lock is None:
            raise InputError(
                "This run is being made by another process",
                got=f"{self.folder}: {locks.holder(self.folder / LOCK)}",
                allowed="one process a run",
                where="wait for it, or change a setting",
            )
        try:
            self._take_up()
        except BaseException:
            lock.close()
            raise
        return lock

    def _take_up(self) -> None:
        """Clears what the last process left, of an attempt that may be worked on."""
        if self.is_done():
            raise InputError(
                "This run was completed by another process in the meantime",
                got=self.folder,
                allowed="one process a run",
                where="the same command shows it",
            )
        with disk.writing(self.folder):
            (self.folder / FAILURE).unlink(missing_ok=True)
        for name in (SEGMENTS, BATCHES):
            disk.cut_torn_line(self.folder / name)

    def write_start(self, start: Start) -> None:
        """Written before the first batch."""
        _write_json(self.folder / START, start)

    def append(self, record: BatchRecord | Segment) -> None:
        """One line, flushed to disk; what was written of it is cut again if that fails."""
        line = json.dumps(record, default=plain, ensure_ascii=False) + "\n"
        name = SEGMENTS if isinstance(record, Segment) else BATCHES
        disk.append(self.folder / name, line.encode())

    def write_header(self, header: Header) -> None:
        """Written last."""
        _write_json(self.folder / HEADER, header)

    def write_failure(self, text: str) -> None:
        """The traceback of a run that failed, where it can be written."""
        # The failure itself is on its way to the user and must not be hidden by this.
        with suppress(OSError):
            (self.folder / FAILURE).write_text(text, encoding="utf-8")


def attempts(results_dir: Path, run_id: str) -> list[Attempt]:
    """All attempts at a run, oldest first."""
    folder = results_dir / run_id
    found = [each.name for each in disk.entries(folder) if is_attempt(each)]
    return [Attempt(folder / name) for name in sorted(found, key=int)]


def is_attempt(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a run's folder is an attempt at it."""
    return _ATTEMPT.fullmatch(entry.name) is not None and entry.is_dir()


def next_attempt(results_dir: Path, run_id: str, *, rerun: bool) -> Attempt:
    """The attempt to work on: the last one, or a new one after a complete one if ``rerun``."""
    known = attempts(results_dir, run_id)
    if known and not (rerun and known[-1].is_done()):
        return known[-1]
    return Attempt(results_dir / run_id / str(known[-1].number + 1 if known else 1))


def entries(results_dir: Path) -> list[os.DirEntry[str]]:
    """What lies in a results folder, by name: folders of runs, and what is foreign.

    Calibrations and sweeps are left out: they are no runs.

    Raises:
        InputError: if there is no such folder.
    """
    with disk.reading(results_dir):
        there = results_dir.is_dir()
    if not there:
        raise InputError(
            "There is no results folder here",
            got=results_dir,
            allowed="a folder that runs were written to",
            where="--results, results_dir",
        )
    beside = {CALIBRATIONS, SWEEPS}
    return [entry for entry in disk.entries(results_dir) if entry.name not in beside]


def listed(results_dir: Path, *, every: bool = False) -> Iterator[Attempt]:
    """The newest complete attempt of every run, or the newest if none is complete.

    Args:
        results_dir: what runs were written to.
        every: all attempts instead.

    Raises:
        InputError: if there is no such folder.
    """
    for run in entries(results_dir):
        known = attempts(results_dir, run.name) if run.is_dir() else []
        if every:
            yield from known
        elif known:
            yield next((each for each in reversed(known) if each.is_done()), known[-1])


def _read(path: Path, make: Callable[[dict[str, Any]], _T]) -> _T | None:
    data = disk.content(path)
    return None if data is None else parsed(path, data, lambda raw: make(_readable(path, raw)))


def lines_of(path: Path, make: Callable[[dict[str, Any]], _T]) -> list[_T]:
    """All whole records of a file of lines; a torn last line is left out.

    Raises:
        DamagedError: for a line that is no record.
    """
    # Bytes: a writer may have been killed within a character.
    lines = (disk.content(path) or b"").split(b"\n")
    # What is behind the last line break is empty, or a record whose writer was killed.
    return [parsed(path, line, make, at + 1) for at, line in enumerate(lines[:-1])]


def parsed(
    path: Path, data: bytes, make: Callable[[dict[str, Any]], _T], line: int | None = None
) -> _T:
    """A record of its JSON form.

    Raises:
        DamagedError: if it is none.
    """
    try:
        return make(json.loads(data))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(path, line, error) from error


def _readable(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    if raw["schema_version"] > SCHEMA_VERSION:
        raise NewerError(path, raw["schema_version"])
    if not isinstance(raw["columns"], dict):
        raise TypeError("its columns are no object")
    return raw


def _write_json(path: Path, record: Start | Header) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False, default=plain)
    disk.replace(path, (text + "\n").encode())
