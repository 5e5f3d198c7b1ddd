"""The calls of Linux that a jail needs and Python lacks: namespaces, mounts, privileges, a filter.

Apart, because each is a number and a C signature. Of the standard library alone, since it is loaded
by the process that becomes the jail. Sources: the man pages unshare(2), mount(2), pivot_root(2),
prctl(2), capabilities(7), seccomp(2). Not here: in which order they are called (``jail.py``).
"""

import ctypes
import errno
import os
import platform
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME = 32, 1024, 2048
MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 4096, 16384, 1 << 18, 1 << 21
_MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000
# x86 calls of the x32 ABI, which have numbers of their own.
_X32 = 0x40000000

# Audit number of an architecture, and what is refused there. A network namespace does not hold
# sockets to a hypervisor, nor does an address space hold shared memory that nobody maps; the rest
# are doors to the kernel that no solution of a problem needs.
_REFUSED = {
    "x86_64": (
        0xC000003E,
        {
            "shmget": 29,
            "socket": 41,
            "semget": 64,
            "msgget": 68,
            "ptrace": 101,
            "pivot_root": 155,
            "mount": 165,
            "umount2": 166,
            "mq_open": 240,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "unshare": 272,
            "perf_event_open": 298,
            "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "memfd_create": 319,
            "bpf": 321,
            "userfaultfd": 323,
            "io_uring_setup": 425,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "unshare": 97,
            "ptrace": 117,
            "mq_open": 180,
            "msgget": 186,
            "semget": 190,
            "shmget": 194,
            "socket": 198,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "perf_event_open": 241,
            "setns": 268,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "memfd_create": 279,
            "bpf": 280,
            "userfaultfd": 282,
            "io_uring_setup": 425,
        },
    ),
}

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """``struct sock_fprog``: a filter's length and its instructions."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def unshare(flags: int) -> None:
    """Leaves the namespaces that ``flags`` name for new ones."""
    _call("unshare", ctypes.c_int(flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mounts a file system, binds a folder, or changes how one is mounted."""
    texts = [_text(source), _text(target), _text(kind)]
    _call("mount", *texts, ctypes.c_ulong(flags), _text(options), about=target)


def detach(target: str) -> None:
    """Takes a mount out of the tree, with all below it."""
    _call("umount2", _text(target), ctypes.c_int(_MNT_DETACH), about=target)


def pivot_root(new: str, old: str) -> None:
    """Makes ``new`` the root, and hangs the old one at ``old`` below it."""
    _call("pivot_root", _text(new), _text(old), about=new)


def die_with_parent() -> None:
    """Asks for SIGKILL when the thread that started this process ends."""
    _prctl(_PR_SET_PDEATHSIG, 9)


def hide() -> None:
    """Keeps processes of the same user from looking into this one."""
    _prctl(_PR_SET_DUMPABLE, 0)


def drop_bounding_set() -> None:
    """Gives up every capability that an executed file could bring."""
    for capability in range(64):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            # The first number that this kernel does not know.
            if error.errno != errno.EINVAL:
                raise
            return


def drop_capabilities() -> None:
    """Gives up every capability held, for good."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def no_new_privileges() -> None:
    """Executed files give no more rights from here on."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def filters_calls() -> bool:
    """Whether this architecture's calls are known, so that some are refused."""
    return platform.machine() in _REFUSED


def filter_calls() -> None:
    """Refuses some calls of the kernel from here on; does nothing on an unknown architecture."""
    if not filters_calls():
        return
    code = _filter(*_REFUSED[platform.machine()])
    program = _Program(len(code) // 8, code)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _filter(architecture: int, refused: dict[str, int]) -> bytes:
    """Instructions of ``struct sock_filter``: another architecture kills, some numbers fail."""
    numbers = sorted(refused.values())
    checks = [(_JUMP_AT_LEAST, len(numbers) + 1, _X32)]
    checks += [(_JUMP_EQUAL, len(numbers) - i, number) for i, number in enumerate(numbers)]
    instructions = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        *[(kind, over, 0, value) for kind, over, value in checks],
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *each) for each in instructions)


def _prctl(option: int, *values: int) -> None:
    given = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _call("prctl", ctypes.c_int(option), *given)


def _call(name: str, *arguments: object, about: str | None = None) -> None:
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}", about)


def _text(text: str) -> ctypes.c_char_p:
    return ctypes.c_char_p(os.fsencode(text))
