"""What is asked of SLURM's own tools, and what they answer.

Apart, so that the forms of their output are known in one place. Not here: what the answers mean for
a run (``states.py``), handing in (``submitting.py``).
"""

import re
import shutil
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bench.errors import InputError

RUNNING, PENDING = "RUNNING", "PENDING"
_ACTIVE = {
    RUNNING,
    PENDING,
    "COMPLETING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESIZING",
    "RESV_DEL_HOLD",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
}
_TIMEOUT_S = 60
# A shell's exit code for a program that signal N ended is N above this.
_SHELLS_SIGNALS = 128
# What SLURM has where a site says nothing.
_MAX_ARRAY_SIZE, _KILL_WAIT_S = 1001, 30
_TASKS = re.compile(r"(?P<base>\d+)_\[(?P<tasks>[\d,-]+)(%\d+)?\]")
_SETTING = re.compile(r"^(\w+)\s*=\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Site:
    """What a cluster allows.

    Attributes:
        max_array_size: tasks of one array, at most.
        kill_wait_s: seconds between SIGTERM and SIGKILL.
        known: False where no cluster answered, and these are SLURM's own defaults.
    """

    max_array_size: int = _MAX_ARRAY_SIZE
    kill_wait_s: int = _KILL_WAIT_S
    known: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """What the controller holds of a job: all that are queued or run, and those ended just now.

    Attributes:
        state: SLURM's word.
        reason: why a queued one does not run.
    """

    state: str
    reason: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it is queued or runs."""
        return self.state in _ACTIVE


@dataclass(frozen=True, slots=True)
class Accounted:
    """What accounting knows of a job.

    Attributes:
        state: SLURM's word.
        exit_code: of the batch script.
        signal: that ended it or the program in it; 0 if none did.
        elapsed_s: of its last start; None where it is not known.
    """

    state: str
    exit_code: int
    signal: int
    elapsed_s: int | None

    @property
    def ended_by(self) -> int:
        """The signal that ended it, also where only a shell above it tells; 0 if none did."""
        return self.signal or max(0, self.exit_code - _SHELLS_SIGNALS)

    @property
    def is_active(self) -> bool:
        """Whether accounting takes it for one that is queued or runs; it may lag behind."""
        return self.state in _ACTIVE


def available() -> bool:
    """Whether jobs can be handed in from here."""
    return shutil.which("sbatch") is not None


def check_available() -> None:
    """Refuses to go on where there is no SLURM.

    Raises:
        InputError: if there is none.
    """
    if not available():
        raise InputError(
            "There is no SLURM here",
            got="no sbatch on the PATH",
            allowed="a login node of a cluster; or hydra/launcher=local",
            where="hydra/launcher",
        )


def site() -> Site:
    """What the cluster allows; SLURM's defaults where none answers."""
    if not available():
        return Site()
    done = _call("scontrol", "show", "config")
    found = dict(_SETTING.findall(done.stdout)) if done.returncode == 0 else {}
    if "MaxArraySize" not in found:
        return Site()
    sizes = [int(found["MaxArraySize"])]
    limit = re.search(r"max_array_tasks=(\d+)", found.get("SchedulerParameters", ""))
    sizes += [int(limit[1])] if limit else []
    return Site(min(sizes), int(found.get("KillWait", _KILL_WAIT_S)), known=True)


def grace_s(partition: str) -> int:
    """Seconds that a partition gives a preempted job; 0 where it says nothing."""
    done = _call("scontrol", "--oneliner", "show", "partition", partition)
    found = re.search(r"\bGraceTime=(\d+)", done.stdout)
    return int(found[1]) if found else 0


def seconds_left(slurm_id: str) -> int | None:
    """Seconds until a running job's time limit; None if there is none or nobody knows."""
    done = _call("squeue", "--noheader", "--jobs", slurm_id, "--format", "%L")
    return _seconds(done.stdout.strip()) if done.returncode == 0 else None


def held(slurm_ids: Collection[str]) -> dict[str, Held]:
    """Those of some jobs that the controller holds.

    Raises:
        InputError: if the cluster does not answer.
    """
    if not slurm_ids:
        return {}
    jobs = ",".join(_bases(slurm_ids))
    every = ("squeue", "--noheader", "--array", "--states=all", "--jobs", jobs)
    done = _call(*every, "--format", "%i|%T|%r")
    if done.returncode and "Invalid job id" not in done.stderr:
        raise _refused("squeue", done)
    found = {}
    for line in done.stdout.splitlines():
        slurm_id, state, reason = line.split("|", 2)
        if slurm_id in slurm_ids:
            found[slurm_id] = Held(state, reason)
    return found


def accounted(slurm_ids: Collection[str]) -> dict[str, Accounted] | None:
    """What accounting knows of some jobs; None where there is no accounting."""
    if not slurm_ids:
        return {}
    # What of a program that a signal ended reaches the script around it differs: srun's word.
    fields = "JobID,State,ExitCode,DerivedExitCode,ElapsedRaw"
    jobs = ",".join(_bases(slurm_ids))
    done = _call("sacct", "-X", "--noheader", "--parsable2", "--jobs", jobs, "--format", fields)
    if done.returncode:
        return None
    found: dict[str, Accounted] = {}
    for line in done.stdout.splitlines():
        name, state, code, of_program, elapsed = line.split("|")
        exit_code, _, signal = code.partition(":")
        signals = int(signal or 0) or int(of_program.partition(":")[2] or 0)
        # "CANCELLED by 0" says by whom.
        known = Accounted(state.split()[0], int(exit_code), signals, int(elapsed or 0))
        found |= dict.fromkeys(_expanded(name), known)
    return {name: known for name, known in found.items() if name in slurm_ids}


def cancel(slurm_ids: Collection[str]) -> None:
    """Ends jobs; those that have ended already are no fault.

    Raises:
        InputError: if the cluster does not answer.
    """
    if not slurm_ids:
        return
    done = _call("scancel", *sorted(slurm_ids))
    if done.returncode and "Invalid job id" not in done.stderr:
        raise _refused("scancel", done)


def requeue(slurm_id: str) -> str | None:
    """Has SLURM queue a running job again, which ends it; why not, if it does not."""
    done = _call("scontrol", "requeue", slurm_id)
    return None if done.returncode == 0 else _last_line(done.stderr) or "scontrol requeue failed"


def state(slurm_id: str) -> str | None:
    """SLURM's word for a job now; None if it does not answer."""
    done = _call("squeue", "--noheader", "--jobs", slurm_id, "--format", "%T")
    return done.stdout.strip() or None if done.returncode == 0 else None


def _call(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def _refused(tool: str, done: subprocess.CompletedProcess[str]) -> InputError:
    return InputError(
        "The cluster does not answer",
        got=f"{tool}: {_last_line(done.stderr)}",
        allowed="a SLURM controller that can be reached",
        where="SLURM_CONF; try again later",
    )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _bases(slurm_ids: Iterable[str]) -> list[str]:
    """Ids of arrays in place of those of their tasks."""
    return sorted({each.partition("_")[0] for each in slurm_ids})


def _expanded(name: str) -> list[str]:
    """Single ids of what accounting writes of queued tasks together, as ``12_[0,4-9%2]``."""
    matched = _TASKS.fullmatch(name)
    if matched is None:
        return [name]
    found = []
    for part in matched["tasks"].split(","):
        first, _, last = part.partition("-")
        found += [f"{matched['base']}_{n}" for n in range(int(first), int(last or first) + 1)]
    return found


def _seconds(text: str) -> int | None:
    """Of ``[days-][[hours:]minutes:]seconds``."""
    matched = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+)", text)
    if matched is None:
        return None
    days, *rest = matched.groups()
    parts = [int(part) for part in rest if part is not None]
    total = 0
    for part in parts:
        total = total * 60 + part
    return total + int(days or 0) * 86400
