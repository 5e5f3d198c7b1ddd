"""Many programs, some at a time; and whether this machine has a sandbox at all.

Apart from ``execution.py``, which knows one program. Threads will do: each waits for processes.
"""

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from bench.errors import InputError
from bench.sandbox import kernel
from bench.sandbox.execution import Execution, SandboxError, execute
from bench.sandbox.limits import Limits

# Passes only where the walls stand: no right, no uid of ours, nothing to see, write or call.
_PROBE = """
import os, socket
assert os.getuid() != 0 and os.getpid() != 1 and os.getppid() == 1
assert not {"proc", "etc", "home", "sys", "run", "var"} & set(os.listdir("/"))
for act in (
    lambda: open("/usr/probe", "w"),
    lambda: os.chroot("/"),
    lambda: socket.socket().connect(("127.0.0.1", 9)),
    lambda: os.kill(-1, 0),
):
    try:
        act()
    except OSError:
        continue
    raise SystemExit("not confined")
"""


def cores() -> int:
    """Programs at one time where nothing else is asked: one a core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def execute_all(
    programs: Sequence[str],
    limits: Limits,
    workers: int,
    on_done: Callable[[int], None] = lambda done: None,
) -> list[Execution]:
    """What came of each program; equal texts run once.

    Args:
        programs: their texts.
        limits: of each of them.
        workers: how many run at one time, at least 1.
        on_done: told how many are done, after each.

    Raises:
        SandboxError: if the sandbox itself fails; no further program is started then.
    """
    distinct = list(dict.fromkeys(programs))
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(execute, program, limits): program for program in distinct}
        found: dict[str, Execution] = {}
        try:
            for future in as_completed(futures):
                found[futures[future]] = future.result()
                on_done(len(found))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [found[program] for program in programs]


def facts(limits: Limits) -> dict[str, Any]:
    """How programs are run here, for the record."""
    return {
        "namespaces": ["user", "pid", "net", "mount", "ipc", "uts"],
        "uid": "one of its own" if os.geteuid() == 0 else "that of the user",
        "calls_filtered": kernel.filters_calls(),
        "python": platform.python_version(),
        "limits": asdict(limits),
    }


@cache
def why_not() -> str | None:
    """Why no program can be run here, found by running one; None where the sandbox holds."""
    if not Path("/proc/self/uid_map").exists():
        return "this system has no user namespaces (Linux with /proc is needed)"
    try:
        found = execute(_PROBE, Limits())
    except SandboxError as error:
        return str(error)
    if found.outcome == "passed":
        return None
    return f"a harmless program was not confined, or could not run: {found.detail}"


def refuse_without() -> None:
    """Refuses where there is no sandbox: nothing is ever run without one.

    Raises:
        InputError: saying why.
    """
    why = why_not()
    if why is not None:
        raise InputError(
            "Model-written code cannot be run safely here",
            got=why,
            allowed="Linux that lets this user make user, PID, network and mount namespaces; or "
            "task.allow_code_execution=false, which decodes and leaves pass_at_k empty",
            where="task.allow_code_execution; docs/sandbox.md",
        )
