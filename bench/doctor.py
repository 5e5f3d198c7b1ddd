"""What is wrong below a results folder, and the command that mends it; changes nothing itself.

Apart, because a fault in the records is met by whatever reads them, and is told how to mend in one
place. Free of torch. Not here: where records lie and how a damaged one is noticed (``store.py``).
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import calibration_store, disk, store
from bench.calibration_store import Folder
from bench.errors import InputError
from bench.store import Attempt, DamagedError, NewerError

_OURS = {
    store.START,
    store.SEGMENTS,
    store.BATCHES,
    store.HEADER,
    store.FAILURE,
    store.LOCK,
    store.LOG,
    store.WANDB,
}
_AGAIN = "then run the same command again"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Attributes:
        path: the file or folder.
        wrong: what is wrong with it.
        mend: a command, or what to do.
    """

    path: Path
    wrong: str
    mend: str


def show(results_dir: Path) -> int:
    """Prints what is wrong; 1 if anything is, else 0.

    Raises:
        InputError: if there is no such folder.
    """
    findings = examine(results_dir)
    sys.stdout.write(report(findings))
    return 1 if findings else 0


def report(findings: Sequence[Finding]) -> str:
    """The findings as lines of text."""
    if not findings:
        return "nothing is wrong with these records\n"
    lines = [f"{each.path}\n  wrong: {each.wrong}\n  mend:  {each.mend}\n" for each in findings]
    return "".join(lines) + f"{len(findings)} found; nothing was changed\n"


def examine(results_dir: Path) -> list[Finding]:
    """All faults below a results folder, by name. What a process works on is left alone.

    Raises:
        InputError: if there is no such folder.
    """
    found: list[Finding] = []
    for entry in store.entries(results_dir):
        folder = results_dir / entry.name
        if entry.is_dir():
            found += _reached(folder, _of_run(folder))
        else:
            found.append(_foreign(folder))
    for calibration in calibration_store.folders(results_dir):
        found += _reached(calibration.path, _of_calibration(calibration))
    return found


def _reached(folder: Path, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings, up to where the file system refuses to show more."""
    try:
        yield from findings
    except InputError as error:
        yield Finding(folder, f"{error.failed}: {error.got}", _command("chmod -R u+rwX", folder))


def _of_run(folder: Path) -> Iterator[Finding]:
    known = store.attempts(folder.parent, folder.name)
    if not known:
        yield Finding(
            folder,
            "holds no attempt at a run",
            f"if it is not wanted: {_command('rm -r', folder)}; else move it elsewhere",
        )
        return
    numbers = [attempt.number for attempt in known]
    missing = [str(number) for number in range(1, numbers[-1]) if number not in numbers]
    if missing:
        yield Finding(
            folder,
            f"attempt {', '.join(missing)} is missing before attempt {numbers[-1]}",
            "bring it back from a copy; if it was not wanted, nothing: the others are whole",
        )
    for entry in disk.entries(folder):
        if not store.is_attempt(entry):
            yield _foreign(folder / entry.name)
    for attempt in known:
        yield from _reached(attempt.folder, _of_attempt(attempt))


def _of_attempt(attempt: Attempt) -> Iterator[Finding]:
    # A process is at work: what looks unfinished is.
    if attempt.status() == "running":
        return
    names = {entry.name for entry in disk.entries(attempt.folder)}
    for name in sorted(names - _OURS):
        path = attempt.folder / name
        if path.suffix == disk.PART:
            yield Finding(path, "was left by a process that was killed", _command("rm", path))
        else:
            yield _foreign(path)
    if {store.FAILURE, store.HEADER} <= names:
        path = attempt.folder / store.FAILURE
        yield Finding(path, "says that a run failed which is complete", _command("rm", path))
    try:
        yield from _of_start(attempt)
        yield from _of_batches(attempt)
    except NewerError as error:
        # Its batches may have a form that is only strange to this code.
        yield Finding(attempt.folder, f"{error.failed}: {error.got}", error.where)


def _of_start(attempt: Attempt) -> Iterator[Finding]:
    """A missing or damaged start; written anew only where nothing was measured under it yet."""
    path = attempt.folder / store.START
    again = f"run the same command again; {_command('rm', path)} first if it is there"
    if attempt.is_done() or (attempt.folder / store.BATCHES).exists():
        again = f"bring it back from a copy; else {_command('rm -r', attempt.folder)}, {_AGAIN}"
    try:
        start = attempt.start()
    except DamagedError as error:
        yield Finding(path, f"is damaged: {error.reason}", again)
        return
    if start is None:
        yield Finding(path, "is missing: what was run is not known", again)
    elif (start.run_id, start.attempt) != (attempt.folder.parent.name, attempt.number):
        yield Finding(
            attempt.folder,
            f"holds attempt {start.attempt} at run {start.run_id}: it was copied or renamed",
            f"move it back to {start.run_id}/{start.attempt}, or out of the results folder",
        )


def _of_batches(attempt: Attempt) -> Iterator[Finding]:
    """Faults of the batches, and of a header that does not fit them."""
    header = attempt.folder / store.HEADER
    compute = f"{_command('rm', header)}, {_AGAIN}: it is computed anew from the batches"
    try:
        complete = attempt.header()
    except DamagedError as error:
        yield Finding(header, f"is damaged: {error.reason}", compute)
        complete = None
    path = attempt.folder / store.BATCHES
    lines = (disk.content(path) or b"").split(b"\n")
    try:
        count = len(attempt.batches())
    except DamagedError as error:
        whole = (error.line or 1) - 1
        cut = _command(f"truncate -s {sum(len(line) + 1 for line in lines[:whole])}", path)
        if attempt.is_done():
            cut += f" && {_command('rm', header)}"
        wrong = f"line {error.line} is damaged: {error.reason}"
        yield Finding(path, wrong, f"{cut}, {_AGAIN}: it goes on behind batch {whole}")
        return
    if complete is not None and complete.num_batches != count:
        yield Finding(header, f"is of {complete.num_batches} batches; {count} are there", compute)
    if lines[-1]:
        cut = _command(f"truncate -s {sum(len(line) + 1 for line in lines[:-1])}", path)
        mend = cut if attempt.is_done() else f"run the same command again, or {cut}"
        yield Finding(path, "its last line is torn, and left out where it is read", mend)


def _of_calibration(folder: Folder) -> Iterator[Finding]:
    """A damaged record or text; texts that were decoded for it are decoded again."""
    again = f"{_command('rm -r', folder.path)}, then calibrate again"
    try:
        folder.record()
        folder.parts()
    except NewerError as error:
        yield Finding(folder.path, f"{error.failed}: {error.got}", error.where)
    except DamagedError as error:
        yield Finding(folder.path, f"a record in it is damaged: {error.got}", again)


def _foreign(path: Path) -> Finding:
    return Finding(path, "is not of this suite, and not read", "move it elsewhere if it matters")


def _command(command: str, path: Path) -> str:
    return f"{command} {shlex.quote(str(path))}"
