"""Device profiles: which device is there and how fast it is at best, without torch.

Apart, because a plan must know the device's name before anything heavy is imported. Of a profile
the name alone bears on a run's identity; its rates may be measured later. Not here: using the
device (``presence.py``, ``meters/device.py``), measuring its rates (``profiling.py``).
"""

import math
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from yaml import YAMLError  # type: ignore[import-untyped]  # omegaconf's; no stubs are installed

from bench.binding import bind
from bench.errors import FaultsError, InputError
from bench.resources import SlurmConfig

AUTO, CPU = "auto", "cpu"
FOLDER = Path(__file__).resolve().parent.parent / "conf" / "gpu"
_CPU_FILE = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class PeakFlops:
    """FLOPs per second of dense matrix products, by dtype; None where there is none or not known.

    Attributes:
        float32: as torch multiplies by default, so without TF32.
        bfloat16: summed up in float32.
        float16: summed up in float32.
    """

    float32: float | None = None
    bfloat16: float | None = None
    float16: float | None = None


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """A device profile, as in ``conf/gpu/*.yaml``; ``auto`` takes what there is.

    Attributes:
        name: what stands in identity and records.
        device_names: what the driver, or ``/proc/cpuinfo``, calls the device.
        peak_flops_per_s: of matrix products.
        read_bandwidth_bytes_per_s: of the device's memory.
        copy_bandwidth_bytes_per_s: likewise, bytes read plus bytes written.
        memory_bytes: how much of it there is.
        threads: with which a CPU was measured; None for GPUs.
        source: where the rates come from, as a sentence.
        kind: a CPU of a name of its own, such as that of a partition's nodes, is a cpu too.
        slurm: what gets one on a cluster.
    """

    name: str
    device_names: tuple[str, ...] = ()
    peak_flops_per_s: PeakFlops = field(default_factory=PeakFlops)
    read_bandwidth_bytes_per_s: float | None = None
    copy_bandwidth_bytes_per_s: float | None = None
    memory_bytes: int | None = None
    threads: int | None = None
    source: str | None = None
    kind: Literal["gpu", "cpu"] = "gpu"
    slurm: SlurmConfig = field(default_factory=SlurmConfig)

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self.name == CPU or self.kind == "cpu"


# What is known of a device of which nothing is known but its name.
_NOT_KNOWN = GpuConfig("")


def resolve(given: GpuConfig) -> GpuConfig:
    """The profile that a run has: ``auto`` is what is there.

    Settings that are given win over those of the profile that is found. A CPU's rates hold for one
    number of threads, which nothing knows yet: they come from ``rates_for``.

    Raises:
        InputError: for files of ``conf/gpu/`` that contradict each other.
        FaultsError: for rates that are none, here or in a file.
    """
    _check(given, "gpu")
    if given.name != AUTO:
        return given
    names = _asked("name")
    found = of_device(names[0]) if names else GpuConfig(CPU)
    filled: GpuConfig = _filled(given, found)
    return replace(filled, name=found.name)


def of_device(device_name: str) -> GpuConfig:
    """The profile of a GPU by what its driver calls it; one without rates if there is none.

    Raises:
        InputError: for two profiles of the device.
    """
    found = _naming(device_name, (each for each in _files(FOLDER) if not each[1].is_cpu))
    return GpuConfig(slug(device_name)) if found is None else found


def rates_for(profile: GpuConfig, threads: int) -> GpuConfig:
    """The profile with the rates that hold for a number of threads.

    Of a CPU, rates that were measured with another number are not taken; those that were measured
    on this CPU with this number are, where a file of ``conf/gpu/`` has them. Rates that stand
    beside no number of threads were given for the run at hand and win. A GPU's stay as they are.

    Raises:
        InputError: for two profiles of the CPU.
    """
    if not profile.is_cpu:
        return profile
    stated = profile if profile.threads in (None, threads) else _without_rates(profile)
    model = cpu_model()
    if model is None:
        return stated
    measured = (
        (path, each)
        for path, each in _files(FOLDER)
        if each.name == CPU and each.threads == threads
    )
    found = _naming(model, measured)
    filled: GpuConfig = stated if found is None else _filled(stated, found)
    return filled


def has_rates(profile: GpuConfig) -> bool:
    """Whether any rate is known."""
    return any(value is not None for _, value in _rates(profile))


def unknown_rates(profile: GpuConfig) -> str | None:
    """The line that a user must see of a device without rates; None for one that has some."""
    if has_rates(profile):
        return None
    of_cpu = profile.is_cpu
    device = "this CPU with this number of threads" if of_cpu else profile.name
    command = "python -m bench action=profile-gpu" + (" gpu=cpu" if of_cpu else "")
    return f"The peak rates of {device} are not known: {command} measures them and adds a profile."


def is_called(profile: GpuConfig, device_name: str) -> bool:
    """Whether a device's whole name is among the profile's, in capitals or not."""
    return device_name.strip().casefold() in {each.casefold() for each in profile.device_names}


def slug(device_name: str) -> str:
    """A device's name as a profile's: lower case, with dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", device_name.lower()).strip("-")


def driver_version() -> str | None:
    """The CUDA driver's version; None without one."""
    found = _asked("driver_version")
    return found[0] if found else None


def cpu_model() -> str | None:
    """The CPU's model name; None where the system does not tell."""
    if not _CPU_FILE.exists():
        return platform.processor() or None
    lines = _CPU_FILE.read_text(encoding="utf-8").splitlines()
    return next((li.split(":", 1)[1].strip() for li in lines if li.startswith("model name")), None)


@cache
def _asked(field_name: str) -> list[str]:
    """What the driver's own tool says of each device; nothing without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", f"--query-gpu={field_name}", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [line.strip() for line in lines if line.strip()]


@cache
def _files(folder: Path) -> tuple[tuple[Path, GpuConfig], ...]:
    """All profiles that stand for themselves, in the order of their files.

    Raises:
        InputError: for a file that is no YAML.
        FaultsError: for one that is no profile.
    """
    found = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            values: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        except YAMLError as error:
            raise InputError(
                "Cannot read a device profile",
                got=f"{path}: {str(error).splitlines()[0]}",
                allowed="YAML such as in conf/gpu/h100.yaml",
                where=str(path),
            ) from error
        if not isinstance(values, dict):
            values = {}
        # A file that lays its settings over another's is chosen by name alone.
        if "defaults" in values:
            continue
        faults: list[InputError] = []
        profile = bind(GpuConfig, values, f"gpu/{path.stem}", faults)
        if profile is None:
            raise FaultsError(faults)
        _check(profile, f"gpu/{path.stem}")
        found.append((path, profile))
    return tuple(found)


def _naming(device_name: str, among: Iterator[tuple[Path, GpuConfig]]) -> GpuConfig | None:
    """The one profile that holds a device's name; None if there is none."""
    found = [(path, profile) for path, profile in among if is_called(profile, device_name)]
    if len(found) > 1:
        raise InputError(
            "Two device profiles hold the same device",
            got=f"{device_name}: {', '.join(path.name for path, _ in found)}",
            allowed="one of them; a choice by gpu=NAME needs no device_names",
            where=f"device_names, in {found[0][0].parent}",
        )
    return found[0][1] if found else None


def _filled(given: Any, found: Any) -> Any:  # noqa: ANN401  # a profile, or its peak rates
    """``given``, with what it leaves open as ``found`` has it."""
    values = {}
    for each in fields(given):
        own, other = getattr(given, each.name), getattr(found, each.name)
        if is_dataclass(own):
            values[each.name] = _filled(own, other)
        else:
            values[each.name] = other if own in (None, ()) else own
    return replace(given, **values)


def _without_rates(profile: GpuConfig) -> GpuConfig:
    return replace(
        _NOT_KNOWN,
        name=profile.name,
        device_names=profile.device_names,
        kind=profile.kind,
        slurm=profile.slurm,
    )


def _rates(profile: GpuConfig) -> Iterator[tuple[str, float | None]]:
    """Every rate with its key."""
    for each in fields(PeakFlops):
        yield f"peak_flops_per_s.{each.name}", getattr(profile.peak_flops_per_s, each.name)
    yield "read_bandwidth_bytes_per_s", profile.read_bandwidth_bytes_per_s
    yield "copy_bandwidth_bytes_per_s", profile.copy_bandwidth_bytes_per_s


def _check(profile: GpuConfig, key: str) -> None:
    """Refuses numbers by which nothing can be divided."""
    numbers = [*_rates(profile), ("memory_bytes", profile.memory_bytes)]
    faults = [
        InputError(
            f"Setting {key}.{name} is no rate or size",
            got=value,
            allowed="a number above 0; null where it is not known",
            where=f"{key}.{name}",
        )
        for name, value in [*numbers, ("threads", profile.threads)]
        if value is not None and not 0 < value < math.inf
    ]
    if faults:
        raise FaultsError(faults)
