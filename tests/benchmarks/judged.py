"""What benchmarks found: ratios, what they should reach, and whether that is judged here.

Apart from the legs, so that one run of all benchmarks fills one table and one file. Not here: what
is measured.
"""

import csv
import statistics
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

CPU_FILE = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the file.

    Attributes:
        name: what was compared, above / below.
        ratio: median of paired ratios.
        low: lowest of them.
        high: highest.
        threshold: what the ratio should reach.
        judged: whether falling short of it fails the run.
    """

    name: str
    ratio: float
    low: float
    high: float
    threshold: float
    judged: bool

    @property
    def reached(self) -> bool:
        return self.ratio >= self.threshold


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Median of paired ratios, lowest and highest."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest."""
    return statistics.median(values), min(values), max(values)


def has_matrix_instructions(cpu_info: str) -> bool:
    """Whether a CPU multiplies matrices of bfloat16 in one instruction, by ``/proc/cpuinfo``.

    AMX on x86, BFMMLA or SME on ARM. ``avx512_bf16`` is a dot product of vectors, which is none.
    """
    found: set[str] = set()
    for line in cpu_info.splitlines():
        key, _, flags = line.partition(":")
        if key.strip() in ("flags", "Features"):
            found |= set(flags.split())
    return "amx_bf16" in found or {"bf16", "i8mm"} <= found or {"bf16", "sme"} <= found


def this_machine_has_them() -> bool:
    """The same of this machine; where the system does not tell, it has none."""
    return CPU_FILE.exists() and has_matrix_instructions(CPU_FILE.read_text(encoding="utf-8"))


class Results:
    """The rows so far, each shown at once, since a run is long."""

    def __init__(self, *, matrix_instructions: bool | None = None) -> None:
        given = matrix_instructions
        self._matrix_instructions = this_machine_has_them() if given is None else given
        self.rows: list[Row] = []

    def add(
        self,
        name: str,
        values: tuple[float, float, float],
        wanted: float,
        *,
        needs_matrix_instructions: bool = False,
    ) -> None:
        """One row, judged unless it is about instructions that this machine lacks."""
        judged = self._matrix_instructions or not needs_matrix_instructions
        row = Row(name, *values, wanted, judged)
        self.rows.append(row)
        verdict = "reached" if row.reached else "FALLS SHORT" if judged else "not judged here"
        told = f"{row.ratio:7.3f} [{row.low:.3f}, {row.high:.3f}] of {wanted:.2f}  {verdict:11}"
        sys.stdout.write(f"{told}  {name}\n")
        sys.stdout.flush()

    def write(self, path: Path) -> None:
        """All rows as CSV."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(field.name for field in fields(Row))
            for row in self.rows:
                cells = (
                    f"{cell:.4f}" if isinstance(cell, float) else cell for cell in astuple(row)
                )
                writer.writerow(cells)

    def exit_code(self) -> int:
        """1 if a judged row falls short, or if there is none at all."""
        short = [row for row in self.rows if row.judged and not row.reached]
        return int(bool(short) or not self.rows)
