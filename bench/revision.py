"""Which code this is, so that a job can tell whether it runs what was submitted.

Apart from ``provenance.py``, which loads torch. By the content of the files: a commit alone says
nothing of edits. Not here: what to do about a difference (``slurm/payload.py``).
"""

import hashlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from bench.config import ROOT

# What a run executes.
_PACKAGES = ("bench", "methods", "slurm")


@dataclass(frozen=True, slots=True)
class Code:
    """The state of our code.

    Attributes:
        git_revision: commit; None without git.
        git_dirty: whether tracked files differ from it.
        files: hash of each source file, by its path below the project.
    """

    git_revision: str | None
    git_dirty: bool | None
    files: Mapping[str, str]


def current() -> Code:
    """The code as it lies on the disk now."""
    files = {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for package in _PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    return Code(git("rev-parse", "HEAD"), dirty(), files)


def changed(before: Code, now: Code) -> list[str]:
    """Files that were edited, added or removed, sorted."""
    names = before.files.keys() | now.files.keys()
    return sorted(name for name in names if before.files.get(name) != now.files.get(name))


def git(*arguments: str) -> str | None:
    """Output of a git command in the project, or None without git or a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def dirty() -> bool | None:
    """Whether tracked files differ from the commit; None where that cannot be known."""
    status = git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)
