"""What a program in the sandbox sees of the file system: an interpreter, four devices, a folder.

Apart from ``jail.py``, because the order of mounts is a matter of its own. Everything else is not
hidden but out of the tree: home and data, ``/etc``, ``/proc``, sockets, GPUs. Of the standard
library alone. Not here: who is in there (``jail.py``).
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from bench.sandbox import kernel

_MAIN_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64")
_DEVICES = ("null", "zero", "urandom", "random")
# White space and backslashes in the kernel's list of mounts.
_OCTAL = re.compile(r"\\([0-7]{3})")
_KEPT = {
    "nodev": kernel.MS_NODEV,
    "noexec": kernel.MS_NOEXEC,
    "noatime": kernel.MS_NOATIME,
    "nodiratime": kernel.MS_NODIRATIME,
    "relatime": kernel.MS_RELATIME,
}


def build(prefixes: Sequence[str], folder_bytes: int) -> None:
    """A root with the interpreter, four devices and an empty folder; all else is out of the tree.

    Raises:
        OSError: if the kernel refuses a mount.
    """
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=1m")
    Path("/tmp/old").mkdir()
    Path("/tmp/jail").mkdir()
    kernel.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    for name in _MAIN_FOLDERS:
        _copy_or_bind(Path("/old", name), Path("/jail", name))
    for prefix in prefixes:
        if not Path(f"/jail{prefix}").is_dir():
            _bind(Path(f"/old{prefix}"), Path(f"/jail{prefix}"))
    Path("/jail/dev").mkdir()
    for name in _DEVICES:
        Path(f"/jail/dev/{name}").touch()
        kernel.mount(f"/old/dev/{name}", f"/jail/dev/{name}", flags=kernel.MS_BIND)
    for point, kept in _mounts_below("/jail"):
        flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kept
        kernel.mount("none", point, flags=flags)
    Path("/jail/tmp").mkdir()
    options = f"mode=1777,size={folder_bytes},nr_inodes=1024"
    kernel.mount("tmpfs", "/jail/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    kernel.detach("/old")
    Path("/old").rmdir()
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
    kernel.mount("none", "/", flags=flags | kernel.MS_NOSUID | kernel.MS_NODEV)
    # The kernel gives no user namespace to a process whose root is not that of its mounts.
    os.chroot("/jail")
    os.chdir("/tmp")


def _copy_or_bind(source: Path, target: Path) -> None:
    """A main folder, or the link that stands in its place; nothing where there is neither."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        _bind(source, target)


def _bind(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    # With what is mounted below: the kernel does not let a user take a tree apart.
    kernel.mount(str(source), str(target), flags=kernel.MS_BIND | kernel.MS_REC)


def _mounts_below(folder: str) -> list[tuple[str, int]]:
    """Mount points, and the flags that a remount must not lose."""
    found = []
    for line in Path("/old/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
        if point.startswith(f"{folder}/"):
            kept = sum(_KEPT.get(option, 0) for option in fields[5].split(","))
            found.append((point, kept))
    return found
