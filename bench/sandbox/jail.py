"""Becomes the jail: a process that leaves all it could harm behind, then runs a program.

Apart, because it runs in a process of its own that loads nothing else: the harness is full of
threads, and must lose none of its rights. Three processes come of it: this one, which makes the
namespaces and waits; the first of the new PID namespace, whose end ends all that is in it; and the
program, without rights. Nothing of ours runs in the last but ``_DRIVER``. Not here: limits on time
and output, which need someone outside (``execution.py``); what the program sees of the file system
(``tree.py``).
"""

import fcntl
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from bench.sandbox import kernel, tree

# Standard output and error are the program's; on this one the driver says that all checks passed.
VERDICT_FD = 3
# What the launcher's status says of a program stopped by the kernel for its CPU time.
OUT_OF_TIME = 128 + signal.SIGXCPU
# What the fault pipe holds once all is set up, and nothing else where nothing went wrong.
STARTED = b"+"
_FAULT = 97
# The uid inside. Outside it is one that nobody has, if root may choose; else that of the user.
_INSIDE = 1000
_OUTSIDE, _OUTSIDE_RANGE = 60000, 5000
# From here on the kernel counts processes by user namespace and not by user alone.
_COUNTS_BY_NAMESPACE = (5, 14)
# Equal hashes in every process, or the order of a set could decide a verdict.
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}
_DRIVER = f"""
import os

def drive(write=os.write):
    with open(0, "rb", closefd=False) as given:
        token, _, source = given.read().partition(b"\\n")
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    text = source.decode("utf-8", "surrogatepass")
    exec(compile(text, "<program>", "exec"), {{}})
    write({VERDICT_FD}, token)

drive()
"""


def main() -> NoReturn:
    """Runs the program on standard input as the first argument, in JSON, says."""
    settings = json.loads(sys.argv[1])
    faults = settings["fault_fd"]
    os.set_inheritable(faults, False)
    try:
        kernel.die_with_parent()
        if os.getppid() != settings["parent"]:
            os._exit(_FAULT)
        baseline = _processes_of_user()
        as_root = _enter_namespaces()
        tree.build(settings["prefixes"], settings["limits"]["folder_bytes"])
        first = os.fork()
        if first == 0:
            _be_first(settings, as_root=as_root, baseline=baseline)
    except OSError as error:
        os.write(faults, str(error).encode())
        os._exit(_FAULT)
    # Once this one has ended, nothing is left: the kernel waits for all of a namespace.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
    os.close(faults)
    # Its own copies of the program's pipes stay open: their end tells that all of it is over.
    os._exit(_status(os.waitpid(first, 0)[1]))


def _enter_namespaces() -> bool:
    """New namespaces; whether this process is root in them, with a uid to drop to.

    Raises:
        OSError: if the kernel does not give them.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID
    flags |= kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if uid == 0:
        entered, go = os.pipe()
        mapper = os.fork()
        if mapper == 0:
            os.close(go)
            _map_for(os.getppid(), entered)
        os.close(entered)
        kernel.unshare(flags)
        os.write(go, b"!")
        os.close(go)
        if os.waitpid(mapper, 0)[1] == 0:
            return True
    else:
        kernel.unshare(flags)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{_INSIDE} {uid} 1")
    _write("/proc/self/gid_map", f"{_INSIDE} {gid} 1")
    return False


def _map_for(pid: int, entered: int) -> NoReturn:
    """From outside, as root: gives a process in a new user namespace root and one more uid."""
    done = 1
    try:
        if os.read(entered, 1):
            outside = _OUTSIDE + pid % _OUTSIDE_RANGE
            for name in ("uid_map", "gid_map"):
                _write(f"/proc/{pid}/{name}", f"0 0 1\n{_INSIDE} {outside} 1\n")
            done = 0
    except OSError:
        # Root of a container that has no such uid: the launcher maps its own alone.
        pass
    finally:
        os._exit(done)


def _be_first(settings: dict[str, Any], *, as_root: bool, baseline: int) -> NoReturn:
    """PID 1: no signal from inside reaches it; when it ends, the kernel ends all others."""
    faults = settings["fault_fd"]
    try:
        kernel.die_with_parent()
        kernel.hide()
        # A handler, such as Python's own for this one, could be set off from inside.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        program = os.fork()
        if program == 0:
            _be_program(settings, as_root=as_root, baseline=baseline)
    except OSError as error:
        os.write(faults, str(error).encode())
        os._exit(_FAULT)
    os.close(faults)
    allowed = settings["limits"]["timeout_s"]
    while True:
        pid, status, usage = os.wait4(-1, 0)
        if pid == program:
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            if killed and usage.ru_utime + usage.ru_stime >= allowed:
                os._exit(OUT_OF_TIME)
            os._exit(_status(status))


def _be_program(settings: dict[str, Any], *, as_root: bool, baseline: int) -> NoReturn:
    """Gives up every right, sets the limits, and executes the interpreter."""
    # Out of the way of the verdict's.
    faults = fcntl.fcntl(settings["fault_fd"], fcntl.F_DUPFD_CLOEXEC, VERDICT_FD + 1)
    try:
        os.setsid()
        kernel.drop_bounding_set()
        if as_root:
            os.setgroups([])
            os.setresgid(_INSIDE, _INSIDE, _INSIDE)
            os.setresuid(_INSIDE, _INSIDE, _INSIDE)
        kernel.drop_capabilities()
        _limit(settings["limits"], baseline)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if settings["verdict_fd"] != VERDICT_FD:
            os.dup2(settings["verdict_fd"], VERDICT_FD)
            os.close(settings["verdict_fd"])
        kernel.no_new_privileges()
        kernel.filter_calls()
        python = settings["python"]
        os.write(faults, STARTED)
        os.execve(python, [python, "-S", "-s", "-B", "-X", "utf8", "-c", _DRIVER], _ENVIRONMENT)
    except OSError as error:
        os.write(faults, str(error).encode())
    finally:
        os._exit(_FAULT)


def _limit(limits: dict[str, Any], baseline: int) -> None:
    seconds = max(1, round(limits["timeout_s"]))
    hard = {
        resource.RLIMIT_AS: limits["address_space_bytes"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: limits["processes"] + baseline,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, value in hard.items():
        most = resource.getrlimit(kind)[1]
        bound = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (bound, bound))
    # The soft limit sends a signal that may be ignored, the hard one kills.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _processes_of_user() -> int:
    """Threads that the user already has, on a kernel whose limit counts them; else 0."""
    version = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if version >= _COUNTS_BY_NAMESPACE or os.geteuid() == 0:
        return 0
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if folder.stat().st_uid == os.geteuid():
                    total += sum(1 for _ in (folder / "task").iterdir())
            except OSError:
                # It ended meanwhile.
                continue
    return total


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8")


def _status(status: int) -> int:
    """An exit status as a shell has it: 128 and the signal's number for one that was killed."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
