"""A real cluster on this machine, and sweeps handed in to it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
# More CPUs than there may be: jobs share them, and more of them run at once.
SETTINGS = {
    "SLURM_LAB_CPUS": "8",
    "SLURM_LAB_GPUS": "8",
    "SLURM_LAB_MEM_MB": "16000",
    "SLURM_LAB_MAX_ARRAY": "21",
}
PATIENCE_S = 180
# Ends the cluster of a pytest that was killed: its process, what ends the cluster, its folder.
GUARD = 'while kill -0 "$1" 2>/dev/null; do sleep 1; done; exec "$2" "$3" --purge'
TINY = (
    "model=tiny",
    "task.limit=12",
    "meter.batch_size=2",
    "meter.repeats=1",
    "meter.warmups=0",
    "decode=fixed",
    "decode.max_new_tokens=8",
    "model.slurm.memory_gb=1",
    "hydra/launcher=slurm",
)
# Runs that nobody makes: the payload only says so.
LIGHT = (
    "model=scratch",
    "model.weights=random",
    "model.slurm.memory_gb=0.1",
    "gpu.slurm.memory_gb=0.1",
    "hydra/launcher=slurm",
    f'launch.setup=["export PYTHONPATH={HERE / "payloads"}"]',
)
LIGHT_DOOR = f"""
import sys
sys.path.insert(0, {str(HERE / "payloads")!r})
from light_payload import Light
from slurm import submitting
submitting.Payload = Light
from bench import door
door.main()
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    time_s: float


@dataclass(frozen=True)
class Lab:
    """A running cluster."""

    environment: dict

    def call(self, *words, cwd=ROOT, **more):
        """What a program of SLURM's says."""
        done = subprocess.run(
            words, env=self.environment | more, cwd=cwd, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def accounted(self, slurm_ids, *fields):
        """Rows of accounting of some jobs, without steps; also of earlier starts.

        A run is done a little before its job, and its job before accounting knows.
        """
        jobs, columns = ",".join(slurm_ids), ",".join(("JobID", *fields, "End"))

        def ended():
            text = self.call("sacct", "-X", "-D", "-n", "-P", "-j", jobs, "-o", columns)
            rows = [line.split("|") for line in text.splitlines()]
            return rows if all(row[-1] != "Unknown" for row in rows) else []

        return [row[:-1] for row in self.until(ended)]

    def is_up(self, node):
        """Whether a node takes jobs; one that was lost is asked to come back."""
        words = ("scontrol", "update", node, "state=resume")
        # One that has come back by itself is an error.
        subprocess.run(words, env=self.environment, capture_output=True, check=False)
        return "DOWN" not in self.call("scontrol", "show", "node", node.partition("=")[2])

    def until(self, what, *, seconds=PATIENCE_S):
        """Waits until something is so, and gives what it found."""
        end = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < end, "it did not come to pass"
            time.sleep(0.2)
        return found


@dataclass(frozen=True)
class Handed:
    """Sweeps into one results folder, handed in to the cluster."""

    lab: Lab
    results: Path
    planted: Path
    tree: Path = ROOT
    code: str = ""
    settings: tuple = field(default=TINY)

    def plant(self, what):
        (self.planted / what).touch()

    def uproot(self, what):
        (self.planted / what).unlink()

    def has(self, what):
        return (self.planted / what).exists()

    def start(self, *arguments, method="dense"):
        program = ("-c", self.code) if self.code else ("-m", "bench")
        setup = () if self.code else (f'launch.setup=["export PYTHONPATH={HERE / "planted"}"]',)
        given = (f"+method={method}", *self.settings, *setup, f"results_dir={self._quoted()}")
        words = (*program, "--config-dir", str(HERE / "conf"), *given, *arguments, "-m")
        return self._process(*words)

    def _quoted(self):
        text = str(self.results).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{text}'"

    def _process(self, *words):
        more = {"PLANTED": str(self.planted), "PYTHONPATH": str(self.tree), "COLUMNS": "160"}
        # A shell without job control starts what it sends to the background with the signal of
        # Ctrl-C ignored, and a child of ours would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=self.tree,
            env=self.lab.environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def end(process, began):
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"it did not end\n{out}\n{err}")
        return Ended(process.returncode, out, err, time.monotonic() - began)

    def call(self, *arguments, **more):
        """``python -m bench`` until it ends."""
        began = time.monotonic()
        return self.end(self.start(*arguments, **more), began)

    def slurm(self, command, *arguments):
        """``python -m slurm``."""
        began = time.monotonic()
        words = ("-m", "slurm", command, *arguments, "--results", str(self.results))
        return self.end(self._process(*words), began)

    def states(self, sweep=1):
        """All runs of a sweep, by their index."""
        ended = self.slurm("status", str(sweep), "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    def journal(self, index, sweep=1):
        """What the newest job of a run says."""
        lines = (self.results / "sweeps" / str(sweep) / "submissions.jsonl").read_text()
        jobs = [json.loads(line) for line in lines.splitlines()]
        [*_, job] = [each["job"] for each in jobs if index in each["runs"]]
        path = self.results / "sweeps" / str(sweep) / "jobs" / f"{job}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def header(self, state):
        path = self.results / state["run_id"] / str(state["attempt"]) / "header.json"
        return json.loads(path.read_text())

    def lines(self, state, name):
        """Records of a run, such as its batches."""
        path = self.results / state["run_id"] / str(state["attempt"]) / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


def _free_ports():
    """First of three ports that nobody listens on."""
    for first in range(26817, 28000, 3):
        try:
            for port in range(first, first + 3):
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


@pytest.fixture(scope="session")
def lab():
    # Short, for the sockets in it.
    folder = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))
    path = f"{os.environ['PATH']}:/usr/sbin"
    threads = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    environment = inherited | threads | {"PATH": path}
    settings = SETTINGS | {"SLURM_LAB_PORT": str(_free_ports())}
    lab_folder = ROOT / "slurm" / "lab"
    down = (lab_folder / "down.sh", folder)
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "guard", str(os.getpid()), *down], start_new_session=True, **quiet
    )
    up = subprocess.run(
        [lab_folder / "up.sh", folder],
        env=environment | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        assert up.returncode == 0, up.stderr
        yield Lab(environment | {"SLURM_CONF": str(folder / "etc" / "slurm.conf")})
    finally:
        subprocess.run([*down, "--purge"], env=environment, capture_output=True, check=False)
        guard.kill()
        guard.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def handed(lab, tmp_path):
    """``handed(**changes)``: a fresh results folder whose sweeps go to the cluster."""

    def make(**changes):
        planted = tmp_path / "planted"
        planted.mkdir(exist_ok=True)
        given = {"results": tmp_path / "runs", "planted": planted} | changes
        return Handed(lab, **given)

    return make


@pytest.fixture
def light(handed):
    """The same of runs that take no time."""
    return lambda **changes: handed(code=LIGHT_DOOR, settings=LIGHT, **changes)
