"""Python loads this at its start in jobs of tests: runs then wait, fail or eat memory when told to.

What is planted lies as empty files in one folder, by the seed of the run: ``fail-1``, ``hold-2``,
``eat-3``, ``pause-4`` (behind its second batch, until the job is told to end).
"""

import os
import signal
import time
from pathlib import Path

from bench import store
from bench.schema import BatchRecord

FOLDER = Path(os.environ["PLANTED"])
EATEN_BYTES = 6 << 30
PAUSE_S = 0.05
write_start, append = store.Attempt.write_start, store.Attempt.append


def planted(what, seed):
    return (FOLDER / f"{what}-{seed}").exists()


def starting(attempt, start):
    seed = start.config["seed"]
    if planted("fail", seed):
        raise RuntimeError("planted")
    if planted("eat", seed):
        eaten = bytearray(EATEN_BYTES)
        # Each page must be written to be there.
        eaten[::4096] = b"x" * len(eaten[::4096])
    while planted("hold", seed) or planted("eat", seed):
        (FOLDER / f"held-{seed}").touch()
        time.sleep(PAUSE_S)
    write_start(attempt, start)


def appending(attempt, record):
    append(attempt, record)
    seed = attempt.start().config["seed"] if isinstance(record, BatchRecord) else None
    if not planted("pause", seed) or record.index != 1 or planted("told", seed):
        return
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, noting(signal.getsignal(number), seed))
    (FOLDER / f"paused-{seed}").touch()
    while not planted("told", seed):
        time.sleep(PAUSE_S)


def noting(handler, seed):
    def note(number, frame):
        handler(number, frame)
        (FOLDER / f"told-{seed}").touch()

    return note


store.Attempt.write_start = starting
store.Attempt.append = appending
