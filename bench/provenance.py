"""Where a number was made: code, libraries, device, settings of the environment that bear on speed.

Apart, because this is the one module that reads the environment. Not here: identity
(``identity.py``): two runs on two machines are the same run, with different provenance; what of it
makes a time doubtful (``surroundings.py``).
"""

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bench import gpus, host, revision, surroundings

_PACKAGES = (
    "skipbench",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "scipy",
    "datasets",
    "sacrebleu",
    "rouge-score",
    "hydra-core",
    "omegaconf",
)
# Beginnings of names. Folders of caches are left out: they say nothing of speed.
_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_",
    "CUDA_DEVICE_",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_VISIBLE_DEVICES",
    "DNNL_",
    "GOMP_",
    "KMP_",
    "LD_PRELOAD",
    "MALLOC_",
    "MKL_",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "SLURM_CPU",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_",
    "TORCH_CUDNN_",
)
# Field of the driver's own tool -> our name; the units are its own.
_GPU_FIELDS = {
    "clocks.sm": "sm_clock_mhz",
    "clocks.max.sm": "sm_max_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "clocks.max.mem": "memory_max_clock_mhz",
    "power.limit": "power_limit_w",
    "persistence_mode": "persistence_mode",
    "ecc.mode.current": "ecc",
    "mig.mode.current": "mig",
    "temperature.gpu": "temperature_c",
}
_SWITCHES = {"Enabled": True, "Disabled": False}
# Ten of the kernel's ticks: the shortest window in which others' use of the CPUs shows.
_WINDOW_S = 0.1
_TOOL_TIMEOUT_S = 10


def collect(device: torch.device) -> dict[str, Any]:
    """Everything, as plain data; what cannot be known is None.

    Takes a tenth of a second to see what other processes do.
    """
    cpus = host.allowed_cpus()
    before = surroundings.cpu_ticks(cpus)
    gpu = device.type == "cuda"
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if gpu else None
    found = {
        "git_revision": revision.git("rev-parse", "HEAD"),
        "git_dirty": revision.dirty(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_model": gpus.cpu_model(),
        "cpu_affinity": None if cpus is None else len(cpus),
        "cpu_affinity_list": None if cpus is None else host.compressed(cpus),
        "logical_cpus": os.cpu_count(),
        "cpu_quota_cores": host.cpu_quota_cores(),
        "cpu_clock": host.cpu_clock(min(cpus, default=0) if cpus else 0),
        "memory_bytes": host.memory_bytes(),
        "threads": torch.get_num_threads(),
        "torch_flags": _torch_flags(),
        "device": str(device),
        "driver": gpus.driver_version() if gpu else None,
        "device_name": torch.cuda.get_device_name(device) if gpu else None,
        "device_uuid": uuid,
        "gpu_state": _gpu_state(uuid),
        "environment": bearing_on_speed(os.environ),
        "hostname": platform.node(),
    }
    return found | {"neighbours": _neighbours(cpus, before, uuid)}


def _neighbours(
    cpus: Iterable[int] | None, before: surroundings.CpuTicks | None, uuid: str | None
) -> dict[str, Any]:
    """Who else is at work: cores used of ours, load averages, processes on our GPU."""
    rows = _driver_tool(uuid, "--query-compute-apps=pid,used_memory")
    if before is not None:
        time.sleep(_WINDOW_S)
    cores = surroundings.others_cores(before, surroundings.cpu_ticks(cpus))
    return {
        "cpu_cores": None if cores is None else round(cores, 2),
        "load_averages": surroundings.load_averages(),
        "gpu_processes": surroundings.other_gpu_processes(
            rows,
            own=os.getpid(),
            holds_gpu=torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]  # torch leaves it untyped
            is_process=lambda pid: Path(f"/proc/{pid}").exists(),
        ),
    }


def bearing_on_speed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set and may change a time."""
    return {name: environment[name] for name in sorted(environment) if name.startswith(_VARIABLES)}


def _torch_flags() -> dict[str, Any]:
    """Builds and switches of torch under which the same code runs at another speed."""
    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]  # the same
        "float32_matmul_precision": _flag(torch.get_float32_matmul_precision),
        "matmul_allow_tf32": _flag(lambda: torch.backends.cuda.matmul.allow_tf32),
        "cudnn_allow_tf32": _flag(lambda: torch.backends.cudnn.allow_tf32),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]  # the same
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "interop_threads": torch.get_num_interop_threads(),
    }


def _flag(read: Callable[[], object]) -> object:
    """Torch refuses to tell a flag that was set by its newer name."""
    try:
        return read()
    except RuntimeError:
        return None


def _gpu_state(uuid: str | None) -> dict[str, Any] | None:
    """Clocks, power limit and modes of the GPU, as they are before the run."""
    rows = _driver_tool(uuid, f"--query-gpu={','.join(_GPU_FIELDS)}")
    if not rows or len(rows[0]) != len(_GPU_FIELDS):
        return None
    values = (_SWITCHES.get(text, host.number(text)) for text in rows[0])
    return dict(zip(_GPU_FIELDS.values(), values, strict=True))


def _driver_tool(uuid: str | None, query: str) -> list[list[str]] | None:
    """Lines of the driver's own tool about one GPU; None without tool, GPU or answer."""
    if uuid is None or shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "-i", uuid, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, check=False, timeout=_TOOL_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines() if done.returncode == 0 else None
    return None if lines is None else [[part.strip() for part in li.split(",")] for li in lines]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
