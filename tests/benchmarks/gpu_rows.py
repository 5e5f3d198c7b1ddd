"""The rows of ``gpu_check.py``: what was found, and on what.

Apart, because the file is kept in the repository and its columns are of those who read it.
"""

import csv
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch
import transformers

COLUMNS = (
    "name",
    "ratio",
    "low",
    "high",
    "unit",
    "note",
    "device",
    "torch",
    "transformers",
    "date",
)


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that was found.

    Attributes:
        name: what was compared, above / below.
        values: ratio, its lowest and its highest; None where it is not known.
        unit: of the three.
        note: anything beside.
        wrong: whether it must not be so.
    """

    name: str
    values: tuple[float, float, float] | None = None
    unit: str = "x"
    note: str = ""
    wrong: bool = False


class Table:
    """Rows, shown and written one by one: a check that is cut off leaves what it found."""

    def __init__(self, path: Path, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.about = (
            torch.cuda.get_device_name(device) if cuda else device.type,
            torch.__version__,
            transformers.__version__,
            f"{datetime.now(timezone.utc):%Y-%m-%d}",
        )
        self.path, self.anything_wrong = path, False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._append(COLUMNS, "w")

    def add(self, found: Found) -> None:
        """One row more."""
        self.anything_wrong |= found.wrong
        numbers = ["", "", ""] if found.values is None else [f"{v:.4g}" for v in found.values]
        note = f"WRONG {found.note}".strip() if found.wrong else found.note
        self._append((found.name, *numbers, found.unit, note, *self.about), "a")
        told = f"{numbers[0]:>7} {found.unit:5} {found.name}  {note}"
        sys.stdout.write(told.rstrip() + "\n")
        sys.stdout.flush()

    def _append(self, cells: tuple[str, ...], mode: str) -> None:
        with self.path.open(mode, encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(cells)
