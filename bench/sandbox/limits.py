"""What a program in the sandbox may use.

Apart, because the harness, the jail and the records need the same numbers. Not here: how each is
enforced (``jail.py``, ``execution.py``).
"""

from dataclasses import dataclass
from typing import Literal

from bench.sandbox.processes import Usage

MEBIBYTE = 2**20
# However busy a machine is, no program lasts longer than this many times its limit.
_MOST_STARVED = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one program.

    Attributes:
        timeout_s: CPU seconds of each process, by the kernel.
        grace_s: what all processes together may have more than that, and what may pass beside it
            on the wall clock; time in which a program is ready and gets no CPU does not count.
        memory_bytes: resident, of all its processes together; looked at some 20 times a second.
        address_space_bytes: of each process, by the kernel.
        processes: with threads, at one time; two of them are ours.
        file_bytes: of each file.
        folder_bytes: of its working folder, which is in memory.
        open_files: of each process.
        output_bytes: of standard output and error together.
    """

    timeout_s: float = 3.0
    grace_s: float = 2.0
    memory_bytes: int = 512 * MEBIBYTE
    address_space_bytes: int = 512 * MEBIBYTE
    processes: int = 16
    file_bytes: int = MEBIBYTE
    folder_bytes: int = 16 * MEBIBYTE
    open_files: int = 64
    output_bytes: int = 2**16

    def reached(self, usage: Usage, wall_s: float) -> Literal["timeout", "memory"] | None:
        """The limit that is reached ``wall_s`` after the start; None if none is."""
        if usage.memory_bytes > self.memory_bytes:
            return "memory"
        most_s = self.timeout_s + self.grace_s
        waited_s = wall_s / _MOST_STARVED
        if usage.starved_s is not None:
            waited_s = max(waited_s, wall_s - usage.starved_s)
        return "timeout" if max(usage.cpu_s, waited_s) > most_s else None
