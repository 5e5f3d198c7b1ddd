"""The lock on one attempt: held as long as a process works on it, and saying which process that is.

Apart, because whether a lock is held and what stands in its file are two things: a killed process
leaves the text behind, never the lock. Free of torch. Not here: what is locked, and the refusal of
a second process (``store.py``).
"""

import fcntl
import json
import os
import platform
import time
from pathlib import Path
from typing import TextIO

from bench.meters.clock import now_utc

# Who looks (``is_held``) holds the lock for a moment: that alone must not turn a run away.
_TRIES, _PAUSE_S = 5, 0.02


def take(path: Path) -> TextIO | None:
    """Takes the lock, which ends with the process or on close; None if another process holds it.

    Raises:
        OSError: the file cannot be written, or its file system has no locks.
    """
    lock = path.open("a+", encoding="utf-8")
    try:
        if not _locked(lock):
            lock.close()
            return None
        lock.truncate(0)
        holder = {"pid": os.getpid(), "host": platform.node(), "since": now_utc()}
        lock.write(json.dumps(holder) + "\n")
        lock.flush()
    except OSError:
        lock.close()
        raise
    return lock


def _locked(lock: TextIO) -> bool:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def is_held(path: Path) -> bool:
    """Whether a process holds the lock.

    Raises:
        OSError: the file cannot be read, or its file system has no locks.
    """
    # Shared and read-only: looking needs no right to write, and two who look see no lock.
    try:
        file = path.open(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def holder(path: Path) -> str:
    """Which process holds a lock that is held, in words."""
    try:
        known = json.loads(path.read_bytes())
        return f"pid {known['pid']} on {known['host']} since {known['since']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "a process that has not said which"
