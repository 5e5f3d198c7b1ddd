"""What was handed in to a cluster: one folder a sweep, below ``<results_dir>/sweeps``.

Apart, as the one owner of the names in it. A sweep is numbered from 1; its folder is made whole
before anything is handed in, and is only added to. Not here: records of runs (``bench/store.py``).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import disk
from bench.errors import InputError
from bench.revision import Code
from bench.store import SWEEPS, Attempt
from slurm.journal import Journal

DEFAULT = Path("results/runs")


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run of a sweep.

    Attributes:
        overrides: that tell it apart.
        method: its name.
        run_id: as planned.
        attempt: which attempt at it.
        results_dir: absolute.
    """

    overrides: str
    method: str
    run_id: str
    attempt: int
    results_dir: str

    @property
    def records(self) -> Attempt:
        """Where its records are, or will be."""
        return Attempt(Path(self.results_dir) / self.run_id / str(self.attempt))


@dataclass(frozen=True, slots=True)
class Submission:
    """One job that was handed in.

    Attributes:
        job: our name for it, unique in the sweep.
        runs: indices.
        slurm_id: such as ``12`` or ``12_3``.
    """

    job: str
    runs: tuple[int, ...]
    slurm_id: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep's folder."""

    folder: Path

    @property
    def number(self) -> int:
        """By which a user calls it."""
        return int(self.folder.name)

    @property
    def submitit(self) -> Path:
        """Batch scripts, pickles and outputs of jobs."""
        return self.folder / "submitit"

    def run_file(self, index: int) -> Path:
        """A run's frozen configuration."""
        return self.folder / "runs" / f"{index}.json"

    def code_file(self, turn: int) -> Path:
        """The code at a submission."""
        return self.folder / f"code-{turn}.json"

    def journal(self, job: str) -> Journal:
        """A job's own word."""
        return Journal(self.folder / "jobs" / f"{job}.jsonl")

    def output(self, slurm_id: str) -> Path:
        """What a job wrote to its error stream, and SLURM of it."""
        return self.submitit / f"{slurm_id}_0_log.err"

    def runs(self) -> list[RunEntry]:
        """All runs, in order."""
        return [RunEntry(**raw) for raw in self._about()["runs"]]

    def command(self) -> str:
        """What was typed."""
        return str(self._about()["command"])

    def submissions(self) -> list[Submission]:
        """All jobs, oldest first."""
        lines = (disk.content(self.folder / "submissions.jsonl") or b"").split(b"\n")
        raw = [json.loads(line) for line in lines[:-1]]
        return [Submission(each["job"], tuple(each["runs"]), each["slurm_id"]) for each in raw]

    def latest(self) -> dict[int, Submission]:
        """The newest job of each run."""
        return {run: each for each in self.submissions() for run in each.runs}

    def next_turn(self) -> int:
        """Number of the submission to come, from 1."""
        turns = [int(each.job.partition("-")[0]) for each in self.submissions()]
        known = [int(path.stem.removeprefix("code-")) for path in self.folder.glob("code-*.json")]
        return max([0, *turns, *known]) + 1

    def add(self, submissions: Iterable[Submission]) -> None:
        """Notes jobs that were handed in."""
        lines = "".join(json.dumps(asdict(each)) + "\n" for each in submissions)
        disk.append(self.folder / "submissions.jsonl", lines.encode())

    def write_code(self, turn: int, code: Code) -> Path:
        """Keeps the state of the code at a submission."""
        path = self.code_file(turn)
        disk.replace(path, json.dumps(asdict(code), indent=1).encode())
        return path

    def write_about(self, command: str, runs: Sequence[RunEntry]) -> None:
        """Written last of what a sweep begins with."""
        about = {"command": command, "runs": [asdict(run) for run in runs]}
        text = json.dumps(about, indent=1, ensure_ascii=False)
        disk.replace(self.folder / "sweep.json", text.encode())

    def is_whole(self) -> bool:
        """Whether it was made to the end."""
        return (self.folder / "sweep.json").exists()

    def _about(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(disk.content(self.folder / "sweep.json") or b"{}")
        return found


def make(results_dir: Path) -> Sweep:
    """A new sweep's folder, which no other process gets."""
    above = results_dir.absolute() / SWEEPS
    with disk.writing(above):
        above.mkdir(parents=True, exist_ok=True)
        number = max([0, *_numbers(results_dir)]) + 1
        while True:
            folder = above / str(number)
            try:
                folder.mkdir()
                break
            except FileExistsError:
                number += 1
        for name in ("runs", "jobs", "submitit"):
            (folder / name).mkdir()
    return Sweep(folder)


def folder_of(results_dir: Path, number: str) -> Sweep:
    """Where a sweep lies, whether it is there or not."""
    return Sweep(results_dir.absolute() / SWEEPS / number)


def known(results_dir: Path) -> list[Sweep]:
    """All sweeps, oldest first."""
    above = results_dir.absolute() / SWEEPS
    sweeps = [Sweep(above / str(number)) for number in sorted(_numbers(results_dir))]
    return [sweep for sweep in sweeps if sweep.is_whole()]


def find(results_dir: Path, number: str | None) -> Sweep:
    """A sweep by its number; the newest without one.

    Raises:
        InputError: if there is none.
    """
    sweeps = known(results_dir)
    found = [each for each in sweeps if number in (None, str(each.number))]
    if not found:
        numbers = ", ".join(str(each.number) for each in sweeps)
        raise InputError(
            "There is no such sweep",
            got=f"{number or 'none'} below {results_dir}",
            allowed=numbers or "a results folder from which a sweep was submitted",
            where="SWEEP, --results",
        )
    return found[-1]


def _numbers(results_dir: Path) -> list[int]:
    names = [entry.name for entry in disk.entries(results_dir.absolute() / SWEEPS)]
    return [int(name) for name in names if name.isdecimal()]
