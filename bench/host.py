"""What the machine and its control groups grant this process: CPUs, clocks, memory.

Apart from ``provenance.py``, so that each kernel's way to tell it is read from files that a test
can plant. Free of torch. Not here: who else uses them (``surroundings.py``), GPUs (``gpus.py``).
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def compressed(numbers: Iterable[int]) -> str:
    """Numbers as the kernel writes sets of CPUs: ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """CPU time that the process's control groups allow, in cores; None without a limit.

    Args:
        root: above ``proc`` and ``sys``.
    """
    quotas = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = top / path.strip("/")
        # Each group above limits too. In a container the path may be the host's, of which only the
        # top is to be seen.
        for folder in (group, *(up for up in group.parents if up.is_relative_to(top))):
            quotas.append(_quota(folder))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path) -> float | None:
    """Of one control group: version 2 writes one file (``max 100000``), version 1 two."""
    text = _read(folder / "cpu.max")
    if text is None:
        of_old = (_read(folder / f"cpu.cfs_{part}_us") or "" for part in ("quota", "period"))
        text = " ".join(of_old)
    quota, _, period = text.partition(" ")
    known = quota.isdecimal() and period.isdecimal() and int(period) > 0
    return int(quota) / int(period) if known else None


def cpu_clock(cpu: int, root: Path = Path("/")) -> dict[str, Any]:
    """Clock and governor of one CPU.

    Args:
        cpu: its number.
        root: above ``proc`` and ``sys``.
    """
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
    now, most = (_kilo(_read(folder / f"scaling_{name}_freq")) for name in ("cur", "max"))
    if now is None:
        lines = (_read(root / "proc/cpuinfo") or "").splitlines()
        shown = [line.split(":")[1] for line in lines if line.startswith("cpu MHz") and ":" in line]
        now = number(shown[0].strip()) if shown else None
    return {
        "current_mhz": now,
        "max_mhz": most,
        "governor": _read(folder / "scaling_governor"),
        "driver": _read(folder / "scaling_driver"),
    }


def allowed_cpus() -> set[int] | None:
    """None where processes are not bound to CPUs."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def memory_bytes() -> int | None:
    """Physical memory of the machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _kilo(text: str | None) -> float | None:
    value = number(text)
    return None if value is None else value / 1000


def number(text: str | None) -> float | None:
    """None for what is no number, as ``[N/A]``."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
