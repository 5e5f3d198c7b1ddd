"""Calibrations below a results folder: what was found, and each text that it rests on.

Apart from ``store.py``, which owns runs: a calibration is found by what a run must share with it,
not by a run's id. As there, records are appended and flushed, the last one is written whole, and
nothing is ordered by a clock. Free of torch. Not here: what a loss is (``calibrating.py``), whether
a threshold passes (``calibration.py``).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from bench import disk
from bench import lock as locks
from bench.calibration import Tested
from bench.errors import InputError
from bench.schema import SCHEMA_VERSION, plain
from bench.store import CALIBRATIONS, NewerError, lines_of, parsed

RECORD, PARTS, LOCK, LOG = "calibration.json", "parts.jsonl", "lock", "log.txt"
# Set aside ones bear a number behind the id.
_ID = re.compile("[0-9a-f]{12}")
NEVER = "never"


@dataclass(frozen=True, slots=True)
class Part:
    """One batch at one threshold.

    Attributes:
        threshold: None for the full model.
        batch: number of the batch, from 0.
        texts: of each row.
        qualities: of each text by the references, 0..1; empty where only texts are compared.
        losses: of each row, 0..1; empty for the full model.
    """

    threshold: float | None
    batch: int
    texts: list[str]
    qualities: list[float]
    losses: list[float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Written last: what was found, and for which runs it holds.

    Attributes:
        schema_version: of the records of the suite.
        calibration_id: hash of all that bears on it.
        number: one more than the highest there was when it was completed; the higher is the newer.
        setting: the method's, whose value was sought.
        promise: what a run must share: the pipeline, objective, delta and epsilon.
        threshold: the last one accepted; null: never exit.
        tested: in the order of testing.
        thresholds: all that were to be tested.
        score: by which texts were judged.
        split: of the task, that the prompts are of.
        examples: hash of the prompts.
        n: their number.
        smallest_n: prompts that a loss of 0 on all of them needs to pass.
        config: the whole configuration as the full model was decoded, for a reader.
        provenance: code, libraries, device.
        ended_at: UTC.
    """

    schema_version: int
    calibration_id: str
    number: int
    setting: str
    promise: dict[str, Any]
    threshold: float | None
    tested: list[Tested]
    thresholds: list[float]
    score: str
    split: str
    examples: str
    n: int
    smallest_n: int
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    ended_at: str = ""

    @property
    def value(self) -> float | str:
        """What the setting is set to."""
        return NEVER if self.threshold is None else self.threshold

    @property
    def known(self) -> Mapping[str, Any]:
        """For ``resolve`` of the method."""
        return {f"calibrated_{self.setting}": self.value}


@dataclass(frozen=True, slots=True)
class Folder:
    """One calibration: ``<results_dir>/calibrations/<id>``.

    What reads or writes raises an InputError where the file system does not let it, and a
    DamagedError for a record that cannot be understood.
    """

    path: Path

    @property
    def log(self) -> Path:
        """What was done and what went wrong, for a reader."""
        return self.path / LOG

    def record(self) -> Calibration | None:
        """What was found; None for a calibration that is not complete."""
        path = self.path / RECORD
        data = disk.content(path)
        return None if data is None else parsed(path, data, lambda raw: _record(path, raw))

    def parts(self) -> list[Part]:
        """All that was decoded, in the order in which it was."""
        return lines_of(self.path / PARTS, lambda raw: Part(**raw))

    def claim(self) -> TextIO:
        """Makes the folder and takes the lock, which ends with the process or on close.

        Raises:
            InputError: if another process is at it, or the folder cannot be written.
        """
        with disk.writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = locks.take(self.path / LOCK)
        if lock is None:
            raise InputError(
                "This calibration is being made by another process",
                got=f"{self.path}: {locks.holder(self.path / LOCK)}",
                allowed="one process a calibration",
                where="wait for it, or change a setting",
            )
        disk.cut_torn_line(self.path / PARTS)
        return lock

    def append(self, part: Part) -> None:
        """One line, flushed to disk."""
        line = json.dumps(part, default=plain, ensure_ascii=False) + "\n"
        disk.append(self.path / PARTS, line.encode())

    def complete(self, record: Calibration) -> None:
        """Written last."""
        text = json.dumps(record, indent=1, ensure_ascii=False, default=plain)
        disk.replace(self.path / RECORD, (text + "\n").encode())

    def set_aside(self) -> None:
        """Makes room for the same calibration once more; nothing is lost."""
        taken = {entry.name for entry in disk.entries(self.path.parent)}
        number = 1
        while (name := f"{self.path.name}.{number}") in taken:
            number += 1
        with disk.writing(self.path):
            self.path.rename(self.path.with_name(name))


def folder_of(results_dir: Path, calibration_id: str) -> Folder:
    """Where the calibration of an id is, or will be."""
    return Folder(results_dir / CALIBRATIONS / calibration_id)


def folders(results_dir: Path) -> list[Folder]:
    """All calibrations of a results folder, by id; none that was set aside."""
    there = disk.entries(results_dir / CALIBRATIONS)
    names = [entry.name for entry in there if _ID.fullmatch(entry.name)]
    return [folder_of(results_dir, name) for name in names]


def complete_ones(results_dir: Path) -> Sequence[Calibration]:
    """All complete calibrations of a results folder, the newest last."""
    each = (folder.record() for folder in folders(results_dir))
    found = [record for record in each if record is not None]
    return sorted(found, key=lambda record: (record.number, record.calibration_id))


def _record(path: Path, raw: dict[str, Any]) -> Calibration:
    if raw["schema_version"] > SCHEMA_VERSION:
        raise NewerError(path, raw["schema_version"])
    return Calibration(**{**raw, "tested": [Tested(**each) for each in raw["tested"]]})
