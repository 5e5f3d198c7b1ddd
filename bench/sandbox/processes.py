"""What a tree of processes uses, as ``/proc`` tells: memory, CPU time, time kept waiting for a CPU.

Apart, because limits of the kernel hold for one process, and a program may have several. What
``/proc`` does not tell counts as nothing. Not here: what is made of it (``execution.py``).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all processes below one.

    Attributes:
        memory_bytes: resident; shared pages count for each that has them.
        cpu_s: of all that live, and of all that have ended.
        starved_s: for how long the program was ready and got no CPU; None if it has ended.
    """

    memory_bytes: int
    cpu_s: float
    starved_s: float | None


def below(pid: int) -> Usage:
    """What the processes below one use: the namespace's first process, and the program's."""
    memory, ticks, found = 0, 0, list(_descendants(pid))
    for each in found:
        memory += sum(map(int, _fields(each, "statm")[1:2]))
        # Behind the name, which may hold spaces: utime, stime and those of children waited for.
        times = _text(each, "stat").rpartition(")")[2].split()[11:15]
        ticks += sum(map(int, times))
    waited = _fields(found[1], "schedstat")[1:2] if len(found) > 1 else []
    starved_s = int(waited[0]) / 1e9 if waited else None
    return Usage(memory * _PAGE_BYTES, ticks / _TICKS_PER_S, starved_s)


def _descendants(pid: int) -> Iterator[int]:
    """Processes below one; orphans too, since the namespace's first process takes them over."""
    for child in map(int, _fields(pid, f"task/{pid}/children")):
        yield child
        yield from _descendants(child)


def _fields(pid: int, name: str) -> list[str]:
    return _text(pid, name).split()


def _text(pid: int, name: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""
