"""Files as the store needs them: read, appended to or replaced; never left half changed.

Apart, because a full disk, a disk that may only be read and a missing right are told in one way,
whatever the file holds. Free of torch. Not here: the names of files, and what is in them
(``store.py``).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.errors import InputError

# Of a file that is written beside the one it is to replace.
PART = ".part"


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name; nothing if it is no folder."""
    with reading(folder), suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as it:
        return sorted(it, key=lambda entry: entry.name)
    return []


def content(path: Path) -> bytes | None:
    """What is in a file; None if there is none."""
    with reading(path), suppress(FileNotFoundError, NotADirectoryError):
        return path.read_bytes()
    return None


def append(path: Path, data: bytes) -> None:
    """Adds to the end, flushed to disk; what was written of it is cut again if that fails."""
    # Unbuffered: a buffer would try once more to write what did not fit, behind the cut.
    with writing(path), path.open("ab", buffering=0) as file:
        whole = file.tell()
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file.fileno(), left) :]
            os.fsync(file.fileno())
        except OSError:
            # Where that fails too, ``cut_torn_line`` is left to do it.
            with suppress(OSError):
                os.ftruncate(file.fileno(), whole)
            raise


def cut_torn_line(path: Path) -> None:
    """Cuts what is behind the last line break."""
    data = content(path)
    if data and not data.endswith(b"\n"):
        # In place: needs no room on a disk that may be full.
        with writing(path):
            os.truncate(path, data.rfind(b"\n") + 1)


def replace(path: Path, data: bytes) -> None:
    """Writes a file in one step, so that it is there whole or not at all."""
    temporary = path.with_suffix(PART)
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tells what the file system refuses to show."""
    with _told(path, "Cannot read results", "a folder that can be read"):
        yield


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tells what the file system refuses to take, and that nothing recorded is lost by it."""
    allowed = (
        "a folder that can be written, on a disk with room and file locks; "
        "what was recorded before is whole, and the same command goes on with it"
    )
    with _told(path, "Cannot write results", allowed):
        yield


@contextmanager
def _told(path: Path, failed: str, allowed: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        got = f"{path}: {error.strerror or error}"
        raise InputError(failed, got=got, allowed=allowed, where="results_dir") from error
