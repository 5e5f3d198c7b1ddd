"""Configurations as the door makes them, and processes as a user starts them."""

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
CONF = ROOT / "conf"


@pytest.fixture(scope="session")
def composed():
    """``composed(*overrides)``: what Hydra makes of a command line, as plain nested dicts."""

    def make(*overrides):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return OmegaConf.to_container(compose("config", list(overrides)), resolve=True)

    return make


@pytest.fixture(scope="session")
def bound():
    """``bound(values)``: the frozen configuration of plain nested dicts."""

    def make(values):
        path = CONF / "method" / f"{values['method']['name']}.yaml"
        defaults = OmegaConf.to_container(OmegaConf.load(path)) if path.exists() else {}
        return from_mapping(values, defaults)

    return make


@pytest.fixture(scope="session")
def configured(composed, bound):
    """``configured(*overrides)``: the frozen configuration of a command line."""
    return lambda *overrides: bound(composed(*overrides))


@dataclass(frozen=True)
class Ended:
    """A process that ended by itself."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def start():
    """``start(*arguments, module, **environment)``: a process of the suite, not waited for."""

    def make(*arguments, module="bench", **environment):
        quiet = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=os.environ | quiet | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return make


@pytest.fixture(scope="session")
def call(start):
    """``call(*arguments, ...)``: the same, waited for."""

    def make(*arguments, **more):
        process = start(*arguments, **more)
        out, err = process.communicate(timeout=120)
        return Ended(process.returncode, out, err)

    return make


@pytest.fixture(scope="session")
def tiny_model():
    """Settings of an OPT that is built and decoded at once."""
    sizes = {
        "num_layers": 3,
        "width": 16,
        "num_heads": 2,
        "ffn_width": 32,
        "vocab_size": 384,
        "max_positions": 512,
    }
    return (
        "model=scratch",
        "gpu=cpu",
        *(f"model.shape.{key}={size}" for key, size in sizes.items()),
    )
