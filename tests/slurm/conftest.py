"""Sweeps as a user starts them, of runs that take no time."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from bench.config import from_mapping

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "model=scratch",
    "gpu=cpu",
    "model.weights=random",
    "model.shape.num_layers=3",
    "model.shape.width=16",
    "model.shape.num_heads=2",
    "model.shape.ffn_width=32",
    "model.shape.vocab_size=384",
    "task.limit=4",
    "meter.repeats=1",
    "meter.warmups=0",
    "decode.max_new_tokens=4",
)
# The run of seed 1 fails while the file is there.
PLANTED = """
import sys
from pathlib import Path
from bench import door, store

write_start = store.Attempt.write_start

def failing(attempt, start):
    if start.config["seed"] == 1 and Path({flag!r}).exists():
        raise RuntimeError("planted")
    write_start(attempt, start)

store.Attempt.write_start = failing
door.main()
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Sweeps:
    """Sweeps into one results folder."""

    results: Path

    @property
    def flag(self):
        return self.results.with_name("fails")

    def start(self, *arguments, method="dense"):
        given = (f"+method={method}", *SMALL, f"results_dir={self.results}", *arguments)
        code = PLANTED.format(flag=str(self.flag))
        quiet = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
        return subprocess.Popen(
            [sys.executable, "-c", code, *given],
            cwd=ROOT,
            env=os.environ | quiet,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments, **more):
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=120)
        return Ended(process.returncode, out, err)

    def seeds(self):
        """Seeds of the complete runs, sorted."""
        headers = [json.loads(path.read_text()) for path in self.results.glob("*/*/header.json")]
        return sorted(header["columns"]["seed"] for header in headers)


@pytest.fixture(scope="session")
def sweeps(tmp_path_factory):
    """``sweeps()``: a fresh results folder to sweep into."""
    return lambda: Sweeps(tmp_path_factory.mktemp("sweeps") / "runs")


@pytest.fixture(scope="session")
def composed():
    """``composed(*overrides)``: what Hydra makes of a command line, as plain nested dicts."""

    def make(*overrides):
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            return OmegaConf.to_container(compose("config", list(overrides)), resolve=True)

    return make


@pytest.fixture(scope="session")
def bound():
    """``bound(values)``: the frozen configuration of plain nested dicts."""

    def make(values):
        path = ROOT / "conf" / "method" / f"{values['method']['name']}.yaml"
        return from_mapping(values, OmegaConf.to_container(OmegaConf.load(path)))

    return make


@pytest.fixture(scope="session")
def configured(composed, bound):
    """``configured(*overrides)``: the frozen configuration of a command line."""
    return lambda *overrides: bound(composed(*overrides))
