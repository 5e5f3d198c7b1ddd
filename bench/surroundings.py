"""Who else is at work on this machine, and what makes a time that is taken here doubtful.

Apart from ``provenance.py``, which collects, because this judges: ``warnings`` is a pure function
of what was collected, so that it can be asked of old records too. Free of torch. Not here: whether
two numbers may stand side by side; a run is never refused for its surroundings.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Others' use of our CPUs, in cores, from which on it shows in times.
_BUSY_CORES = 0.5
# Under these drivers powersave is the ordinary governor, and raises the clock under load.
_SCALING_POWERSAVE = ("intel_pstate", "amd-pstate-epp")
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Time of the CPUs that we may use, since the machine started, in the kernel's ticks.

    Attributes:
        cpus: number of them.
        total: of all of them together, idle ones too.
        busy: the part that was not idle; what a host took from a virtual machine counts.
        own: the part that this process and its children that ended used.
    """

    cpus: int
    total: int
    busy: int
    own: int


def cpu_ticks(cpus: Iterable[int] | None, root: Path = Path("/")) -> CpuTicks | None:
    """Reads the ticks; None where the system does not show them.

    Args:
        cpus: that we may use; None where that is not known.
        root: above ``proc``.
    """
    try:
        machine = (root / "proc/stat").read_text(encoding="ascii")
        process = (root / "proc/self/stat").read_text(encoding="ascii", errors="replace")
        return _ticks(machine, process, cpus)
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _ticks(machine: str, process: str, cpus: Iterable[int] | None) -> CpuTicks | None:
    lines = (line.split() for line in machine.splitlines())
    # user, nice, system, idle, iowait, irq, softirq, steal; what guests use is in the first two.
    of_cpu = {name: [int(n) for n in rest[:8]] for name, *rest in lines if name.startswith("cpu")}
    names = [f"cpu{number}" for number in cpus or ()]
    used = [of_cpu[name] for name in names]
    if not used:
        return None
    total = sum(map(sum, used))
    idle = sum(ticks[3] + ticks[4] for ticks in used)
    # The command's name, in brackets, may hold anything.
    own = sum(int(n) for n in process.rpartition(")")[2].split()[11:15])
    return CpuTicks(len(used), total, total - idle, own)


def others_cores(before: CpuTicks | None, after: CpuTicks | None) -> float | None:
    """Cores that other processes used of our CPUs between two readings; None if not known."""
    if before is None or after is None or after.total <= before.total:
        return None
    used = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, used / (after.total - before.total)) * after.cpus


def load_averages() -> list[float] | None:
    """Mean number of processes that ran or waited in the last 1, 5 and 15 minutes, ours too."""
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except OSError:
        return None


def other_gpu_processes(
    rows: Sequence[Sequence[str]] | None,
    *,
    own: int,
    holds_gpu: bool,
    is_process: Callable[[int], bool],
) -> list[dict[str, int | None]] | None:
    """Processes on our GPU but ours, the one that holds most first; None where not known.

    Args:
        rows: process id and MiB used, as the driver's tool tells them.
        own: our process id.
        holds_gpu: whether we are on the GPU ourselves.
        is_process: whether a process id is one here. In a container the tool may tell ids of the
            host: if we are on the GPU and no id is ours, the smallest of the unknown ones is.
    """
    if rows is None:
        return None
    found: list[dict[str, int | None]] = [
        {"pid": int(pid), "used_bytes": int(used) * _MEBIBYTE if used.isdecimal() else None}
        for pid, used in rows
        if pid.isdecimal()
    ]
    found.sort(key=lambda each: -(each["used_bytes"] or 0))
    pids = [each["pid"] for each in found]
    unknown = [pid for pid in pids if pid is not None and not is_process(pid)]
    ours = own
    if holds_gpu and own not in pids and unknown:
        ours = unknown[-1]
    return [each for each in found if each["pid"] != ours]


def warnings(provenance: Mapping[str, Any]) -> list[str]:
    """What makes times doubtful, and what helps: a sentence for each, none if nothing does.

    Args:
        provenance: as ``provenance.collect`` gives it; what it lacks is not judged.
    """
    found = (check(provenance) for check in _CHECKS)
    return [sentence for sentence in found if sentence is not None]


def _busy_cpus(provenance: Mapping[str, Any]) -> str | None:
    """Our threads find no room, or, on a CPU, others take half as much of the machine as we."""
    others = (provenance.get("neighbours") or {}).get("cpu_cores")
    cpus, wanted = provenance.get("cpu_affinity"), _busy_threads(provenance)
    if others is None or cpus is None or wanted is None or others < _BUSY_CORES:
        return None
    half_of_ours = _on_cpu(provenance) and others >= _BUSY_CORES * wanted
    if not half_of_ours and others + wanted < cpus + _BUSY_CORES:
        return None
    return (
        f"Other processes use {others:.1f} of the {cpus} CPUs that this run may use: wait for "
        "them, or take a machine of your own (SLURM: --exclusive)."
    )


def _busy_gpu(provenance: Mapping[str, Any]) -> str | None:
    others = (provenance.get("neighbours") or {}).get("gpu_processes")
    if not others:
        return None
    pids = ", ".join(str(each["pid"]) for each in others)
    return (
        f"Other processes are on this GPU (pid {pids}): wait for them, or choose another GPU "
        "with CUDA_VISIBLE_DEVICES."
    )


def _too_many_threads(provenance: Mapping[str, Any]) -> str | None:
    """On a GPU torch's threads idle."""
    wanted = _busy_threads(provenance)
    limits = {
        "CPU affinity": provenance.get("cpu_affinity"),
        "CPU quota": provenance.get("cpu_quota_cores"),
    }
    known = {name: limit for name, limit in limits.items() if limit is not None}
    if wanted is None or not known:
        return None
    name = min(known, key=lambda each: float(known[each]))
    if wanted <= known[name]:
        return None
    room = max(1, int(known[name]))
    return (
        f"{wanted} threads share {known[name]:g} CPUs by this process's {name}: set "
        f"OMP_NUM_THREADS={room}, or ask for more CPUs."
    )


def _bound_by_slurm(provenance: Mapping[str, Any]) -> str | None:
    """A job started within a job inherits the binding of the outer one."""
    environment = provenance.get("environment") or {}
    cpus, threads = provenance.get("cpu_affinity"), provenance.get("threads")
    if not environment.get("SLURM_CPU_BIND") or cpus is None:
        return None
    asked = str(environment.get("SLURM_CPUS_PER_TASK", ""))
    present = provenance.get("logical_cpus")
    fewer_than_asked = asked.isdecimal() and cpus < int(asked)
    cramped = present is not None and 2 * cpus < present and (threads or 0) > cpus
    if not fewer_than_asked and not cramped:
        return None
    whole = asked if fewer_than_asked else present
    return (
        f"A CPU binding of SLURM leaves this run {cpus} of {whole} CPUs: start it with "
        "srun --cpu-bind=none, or unset SLURM_CPU_BIND before."
    )


def _sleeping_threads(provenance: Mapping[str, Any]) -> str | None:
    """Threads that sleep between two operators are woken for each; one thread never waits."""
    policy = str((provenance.get("environment") or {}).get("OMP_WAIT_POLICY", ""))
    if policy.upper() != "PASSIVE" or (_busy_threads(provenance) or 1) < 2:
        return None
    return (
        "OMP_WAIT_POLICY=PASSIVE puts threads to sleep between operators, which can triple the "
        "time of a small model's step: unset it."
    )


def _blocking_launches(provenance: Mapping[str, Any]) -> str | None:
    value = (provenance.get("environment") or {}).get("CUDA_LAUNCH_BLOCKING", "0")
    if _on_cpu(provenance) is not False or value in ("", "0"):
        return None
    return f"CUDA_LAUNCH_BLOCKING={value} makes the host wait for each kernel: unset it."


def _slow_clock(provenance: Mapping[str, Any]) -> str | None:
    clock = provenance.get("cpu_clock") or {}
    if clock.get("governor") != "powersave" or clock.get("driver") in _SCALING_POWERSAVE:
        return None
    return (
        "The CPU governor powersave holds the lowest clock: set performance "
        "(cpupower frequency-set -g performance)."
    )


def _unknown_code(provenance: Mapping[str, Any]) -> str | None:
    if not provenance.get("git_dirty"):
        return None
    return "Files differ from the git revision, which so does not say what ran: commit first."


def _on_cpu(provenance: Mapping[str, Any]) -> bool | None:
    device = provenance.get("device")
    return None if device is None else str(device).partition(":")[0] == "cpu"


def _busy_threads(provenance: Mapping[str, Any]) -> int | None:
    """Threads that work at once: torch's own on a CPU; with a GPU the one that feeds it."""
    on_cpu, threads = _on_cpu(provenance), provenance.get("threads")
    return 1 if on_cpu is False else None if threads is None else int(threads)


_CHECKS: tuple[Callable[[Mapping[str, Any]], str | None], ...] = (
    _busy_cpus,
    _busy_gpu,
    _too_many_threads,
    _bound_by_slurm,
    _sleeping_threads,
    _blocking_launches,
    _slow_clock,
    _unknown_code,
)
