"""What a program in the sandbox may use.

Apart, because the harness, the jail and the records need the same numbers. Not here: how each is
enforced (``jail.py``, ``execution.py``).
"""

from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one program.

    Attributes:
        timeout_s: CPU seconds of each process; the wall clock allows ``grace_s`` more.
        grace_s: what a busy machine may add before a program is stopped by the wall clock.
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
