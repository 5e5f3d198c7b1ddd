"""How a run that failed is kept and told, wherever it ran.

Apart, because what runs here and what runs in a job must fail alike. Not here: failures within a
run that had begun (``bench/run.py`` keeps those).
"""

import traceback
from contextlib import suppress

from bench.store import Attempt

# An allocation that failed, on the device or the host, by the end of a traceback.
_MEMORY = ("OutOfMemoryError", "MemoryError", "can't allocate memory")


def keep_traceback(attempt: Attempt, error: Exception) -> None:
    """Writes the traceback into an attempt's folder, if the run itself has not."""
    # A folder of a run that another process makes, or has made, is not ours to write to.
    if attempt.status() in ("failed", "running", "done"):
        return
    # Without a folder to write to, the user gets the traceback itself.
    with suppress(OSError):
        attempt.folder.mkdir(parents=True, exist_ok=True)
    attempt.write_failure("".join(traceback.format_exception(error)))


def first_line(error: Exception) -> str:
    """What an error says, in short."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_of_memory(error: BaseException) -> bool:
    """Whether memory was not to be had."""
    return any(word in f"{type(error).__name__}: {error}" for word in _MEMORY)
