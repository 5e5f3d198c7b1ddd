"""Where a number was made: code, libraries, device, settings of the environment that bear on speed.

Apart, because this is the one module that reads the environment. Not here: identity
(``identity.py``): two runs on two machines are the same run, with different provenance.
"""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bench import gpus
from bench.config import ROOT

_PACKAGES = (
    "skipbench",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "sacrebleu",
    "rouge-score",
)
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES")


def collect(device: torch.device) -> dict[str, Any]:
    """Everything, as plain data; what cannot be known is None."""
    return {
        "git_revision": _git("rev-parse", "HEAD"),
        "git_dirty": _dirty(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_model": _cpu_model(),
        "cpu_affinity": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "driver": gpus.driver_version() if device.type == "cuda" else None,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "environment": {name: os.environ.get(name) for name in _VARIABLES},
        "hostname": platform.node(),
    }


def _git(*arguments: str) -> str | None:
    """Output of a git command in the project, or None without git or a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _dirty() -> bool | None:
    status = _git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or None
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((li.split(":", 1)[1].strip() for li in lines if li.startswith("model name")), None)
