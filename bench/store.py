"""The store: the one owner of paths under ``results_dir``, and of how records get there.

Apart, so that nothing already measured is lost or silently replaced: records are appended and
flushed, a torn last line is cut, the header comes last and whole. Free of torch. Not here: what a
record means (``schema.py``).
"""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from bench.errors import InputError
from bench.schema import SCHEMA_VERSION, BatchRecord, Header, Start, batch_from, plain

Status = Literal["done", "running", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one run: a folder ``<results_dir>/<run_id>/<attempt>``."""

    folder: Path

    @property
    def number(self) -> int:
        """1 for the first."""
        return int(self.folder.name)

    @property
    def _batches(self) -> Path:
        return self.folder / "batches.jsonl"

    def status(self) -> Status:
        """done: the header is there; running: a process holds the lock."""
        if (self.folder / "header.json").exists():
            return "done"
        if (self.folder / "failure.txt").exists():
            return "failed"
        return "running" if _is_locked(self.folder / "lock") else "stopped"

    def start(self) -> Start | None:
        """What runs; None if the process ended before it was written."""
        raw = _read_json(self.folder / "start.json")
        return None if raw is None else Start(**raw)

    def header(self) -> Header | None:
        """The header; None for a run that is not complete."""
        raw = _read_json(self.folder / "header.json")
        return None if raw is None else Header(**raw)

    def batches(self) -> list[BatchRecord]:
        """All whole records; a torn last line is left out."""
        if not self._batches.exists():
            return []
        # Bytes: a writer may have been killed within a character.
        lines = self._batches.read_bytes().split(b"\n")
        # What is behind the last line break is empty, or a record whose writer was killed.
        return [batch_from(json.loads(line)) for line in lines[:-1]]

    def claim(self) -> TextIO:
        """Makes the folder and takes the lock, which ends with the process or on close.

        Raises:
            InputError: if another process runs this run, or the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise InputError(
                "Cannot write results",
                got=f"{self.folder}: {error.strerror}",
                allowed="a folder that can be written",
                where="results_dir",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise InputError(
                "This run is being made by another process",
                got=self.folder,
                allowed="one process a run",
                where="wait for it, or change a setting",
            ) from error
        (self.folder / "failure.txt").unlink(missing_ok=True)
        self._cut_torn_line()
        return lock

    def _cut_torn_line(self) -> None:
        if self._batches.exists():
            data = self._batches.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):
                _write_whole(self._batches, whole)

    def write_start(self, start: Start) -> None:
        """Written before the first batch."""
        _write_json(self.folder / "start.json", start)

    def append(self, record: BatchRecord) -> None:
        """One line, flushed to disk."""
        with self._batches.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, default=plain, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write_header(self, header: Header) -> None:
        """Written last."""
        _write_json(self.folder / "header.json", header)

    def write_failure(self, text: str) -> None:
        """The traceback of a run that failed."""
        (self.folder / "failure.txt").write_text(text, encoding="utf-8")


def attempts(results_dir: Path, run_id: str) -> list[Attempt]:
    """All attempts at a run, oldest first."""
    found = (results_dir / run_id).glob("[0-9]*")
    folders = [path for path in found if path.name.isdecimal()]
    return [Attempt(folder) for folder in sorted(folders, key=lambda path: int(path.name))]


def next_attempt(results_dir: Path, run_id: str, *, rerun: bool) -> Attempt:
    """The attempt to work on: the last one, or a new one after a complete one if ``rerun``."""
    known = attempts(results_dir, run_id)
    if known and not (rerun and known[-1].status() == "done"):
        return known[-1]
    return Attempt(results_dir / run_id / str(known[-1].number + 1 if known else 1))


def listed(results_dir: Path) -> Iterator[Attempt]:
    """The newest complete attempt of every run, or the newest if none is complete.

    Raises:
        InputError: if there is no such folder.
    """
    if not results_dir.is_dir():
        raise InputError(
            "There is no results folder here",
            got=results_dir,
            allowed="a folder that runs were written to",
            where="--results, results_dir",
        )
    for run in sorted(path for path in results_dir.iterdir() if path.is_dir()):
        known = attempts(results_dir, run.name)
        done = [attempt for attempt in known if attempt.status() == "done"]
        if known:
            yield (done or known)[-1]


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    # Shared and read-only: looking needs no right to write, and two who look see no lock.
    with path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if raw["schema_version"] > SCHEMA_VERSION:
        raise InputError(
            "The record was written by a newer skipbench",
            got=f"{path}: schema {raw['schema_version']}",
            allowed=f"schema up to {SCHEMA_VERSION}",
            where="update skipbench",
        )
    return raw


def _write_json(path: Path, record: Start | Header) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False, default=plain)
    _write_whole(path, (text + "\n").encode())


def _write_whole(path: Path, data: bytes) -> None:
    """Replaces a file in one step, so that it is there whole or not at all."""
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
