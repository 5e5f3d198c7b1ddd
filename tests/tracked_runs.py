"""Small runs with tracking as a user starts them, and their W&B files read back."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.tracking import readback

ROOT = Path(__file__).resolve().parents[1]
BATCHES, ROWS = 6, 2
COMMAND = (
    "model.weights=random",
    "gpu=cpu",
    f"task.limit={BATCHES * ROWS}",
    f"meter.batch_size={ROWS}",
    "meter.repeats=1",
    "meter.warmups=0",
    "decode=fixed",
    "decode.max_new_tokens=6",
    "tracking.wait_s=60",
)
# Nobody listens at the discard port of this machine.
DEAD = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40}
# Batch 3 of the run fails as ``fault`` says while the file ``flag`` is there.
PLANTED = """
import sys, torch
from pathlib import Path
from bench import door
from bench.errors import InvalidRunError
from bench.measure import Measurer

measured = Measurer.batch

def failing(self, index, *given):
    if index == 3 and Path({flag!r}).exists():
        raise {fault}
    return measured(self, index, *given)

Measurer.batch = failing
door.main()
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Runs:
    """Runs into one results folder."""

    results: Path

    @property
    def flag(self):
        return self.results.with_name("fails")

    def start(self, *more, method="dense", fault=None, within=(), **environment):
        """A process, in a session of its own so that all of it can be killed."""
        code = (
            ("-c", PLANTED.format(flag=str(self.flag), fault=fault)) if fault else ("-m", "bench")
        )
        quiet = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
        path = {"PYTHONPATH": str(ROOT)}
        handed = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}
        given = (f"+method={method}", *COMMAND, f"results_dir={self.results}")
        return subprocess.Popen(
            [*within, sys.executable, *code, *given, *more],
            cwd=ROOT,
            env=handed | quiet | path | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *more, **given):
        process = self.start(*more, **given)
        out, err = process.communicate(timeout=180)
        return Ended(process.returncode, out, err)

    def killed_after(self, lines, *more, signal_number=signal.SIGKILL, **given):
        """Ended by a signal as soon as that many batches are recorded; gives the exit code."""
        process = self.start(*more, **given)
        while self.recorded() < lines and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal_number)
        process.communicate(timeout=180)
        return process.returncode

    def recorded(self):
        return sum(
            path.read_bytes().count(b"\n") for path in self.results.glob("*/1/batches.jsonl")
        )

    def whole_lines(self):
        """The batches that are recorded, as they stand in the file."""
        data = b"".join(path.read_bytes() for path in self.results.glob("*/1/batches.jsonl"))
        return data[: data.rfind(b"\n") + 1]

    def attempt(self):
        [folder] = self.results.glob("*/1")
        return folder

    def files(self):
        """The files of all offline runs."""
        return sorted(self.results.glob("*/*/wandb/offline-run-*/*.wandb"))

    def logged(self):
        """What the only W&B file holds."""
        [path] = self.files()
        return readback.read(path)

    def check_records(self):
        """Every batch is there once, every example too; the run is done."""
        lines = (self.attempt() / "batches.jsonl").read_text(encoding="utf-8").splitlines()
        batches = [json.loads(line) for line in lines]
        assert [batch["index"] for batch in batches] == list(range(BATCHES))
        assert {len(batch["example_ids"]) for batch in batches} == {ROWS}
        ids = [name for batch in batches for name in batch["example_ids"]]
        assert len(set(ids)) == len(ids)
        header = json.loads((self.attempt() / "header.json").read_text(encoding="utf-8"))
        assert header["num_batches"] == BATCHES

    def check_one_whole_run(self):
        """The only W&B run has every batch once and has ended well."""
        logged = self.logged()
        assert batches_of(logged.history) == list(range(BATCHES))
        assert logged.exit_code == 0
        assert logged.summary["status"] == "done"


def batches_of(history):
    """Batches in a W&B history, in order."""
    return [row["batch"] for row in history if "batch" in row]


def warnings(text):
    """Lines that warn."""
    return [line for line in text.splitlines() if line.startswith("warning:")]


def descendants(pid):
    """Processes that a process has started, and theirs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found
