"""Hostile programs: each is stopped, counts as failed, and leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from bench.meters.clock import seconds
from bench.sandbox import pool
from bench.sandbox.execution import execute
from bench.sandbox.limits import Limits

ROOT = Path(__file__).resolve().parents[2]
# Enough for what ends by itself; what does not costs each test as much.
LIMITS = Limits(timeout_s=1.0, grace_s=1.0)
PATIENCE_S = 30.0

# Makes a process that /proc knows by a name, and that no signal but one ends.
HARDENED = """
import ctypes, os, signal, sys, time
def harden(name):
    ctypes.CDLL(None).prctl(15, name.encode())
    for number in set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
        signal.signal(number, signal.SIG_IGN)
"""


@pytest.fixture(autouse=True)
def _with_sandbox():
    why = pool.why_not()
    if why is not None:
        pytest.skip(f"no sandbox here: {why}")


@pytest.fixture
def name():
    """A process name of this test alone; the kernel keeps 15 characters."""
    return uuid.uuid4().hex[:12]


def outcome(program, **limits):
    return execute(program, Limits(**{"timeout_s": 1.0, "grace_s": 1.0} | limits)).outcome


def alive(name):
    """Processes of this name; zombies have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            _, _, rest = (folder / "stat").read_text().partition(f"({name}) ")
        except OSError:
            continue
        if rest and rest[0] not in "ZX":
            found.append(folder.name)
    return found


def wait_until(condition):
    last = seconds() + PATIENCE_S
    while not condition():
        assert seconds() < last
        os.sched_yield()


def test_a_program_that_runs_to_its_end_passes():
    assert outcome("print('hello')\nassert sum(range(4)) == 6\n") == "passed"


def test_a_wrong_assertion_fails_with_its_text():
    found = execute("assert 1 + 1 == 3, 'not three'", LIMITS)
    assert found.outcome == "failed"
    assert found.detail.endswith("AssertionError: not three")


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time\ntime.sleep(3600)",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()",
    ],
    ids=["a loop", "a sleeper", "a loop that ignores the limit", "a thread that goes on"],
)
def test_what_does_not_end_is_stopped_at_its_time(program):
    assert outcome(program, timeout_s=0.3, grace_s=0.2) == "timeout"


def test_computing_is_stopped_by_its_own_time_however_busy_the_machine():
    loop = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    found = execute(loop, Limits(timeout_s=1.0, grace_s=600.0))
    assert found.outcome == "timeout"


def test_a_fork_bomb_ends_and_leaves_no_process(name):
    program = f"""{HARDENED}
harden({name!r})
forked = 0
while True:
    try:
        if os.fork() == 0:
            forked = 0
        else:
            forked += 1
    except OSError:
        sys.stderr.write("full\\n")
        sys.stderr.flush()
        time.sleep(0.05)
"""
    found = execute(program, LIMITS)
    assert found.outcome == "timeout"
    assert "full" in found.detail
    assert alive(name) == []


def test_the_neighbour_of_a_fork_bomb_is_not_disturbed():
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    good = [f"import os\nif os.fork() == 0: os._exit(0)\nos.wait()  # {i}" for i in range(4)]
    limits = Limits(timeout_s=1.0, grace_s=2.0)
    found = pool.execute_all([bomb, *good], limits, workers=2)
    assert [each.outcome for each in found[1:]] == ["passed"] * 4


def test_a_child_that_left_every_group_and_ignores_signals_dies_with_the_program(name):
    program = f"""{HARDENED}
ready, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        harden({name!r})
        os.write(told, b"!")
        time.sleep(3600)
    os._exit(0)
os.read(ready, 1)
sys.stderr.write("it runs")
"""
    found = execute(program, Limits())
    assert found.outcome == "passed"
    assert found.detail == "it runs"
    assert alive(name) == []


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("x = bytearray(8 << 30)", "memory"),
        (
            "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
            "        x = b'1' * (200 << 20)\n        time.sleep(3600)\ntime.sleep(3600)",
            "memory",
        ),
        ("for i in range(99): open(f'{i}', 'wb').write(bytes(1 << 20))", "failed"),
        ("open('large', 'wb').write(bytes(8 << 20))", "failed"),
        ("files = [open('/dev/null') for _ in range(1000)]", "failed"),
    ],
    ids=["one array", "many children", "a full folder", "a large file", "many files"],
)
def test_memory_and_files_are_bounded(program, expected):
    assert outcome(program, timeout_s=10.0) == expected


@pytest.mark.parametrize(
    "program",
    [
        "while True: print('x' * 1000)",
        "import os\nline = b'x' * (1 << 20)\nwhile True: os.write(1, line)",
        "import sys\nwhile True: sys.stderr.write('x' * 1000)",
        "import os\nwhile True: os.write(1, bytes([255, 0, 10]))",
    ],
    ids=["lines", "one long line", "standard error", "bytes that are no text"],
)
def test_gigabytes_of_output_end_the_program(program):
    found = execute(program, Limits())
    assert found.outcome == "output_limit"
    assert len(found.detail) < 2**12


def test_no_network_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
        server.setblocking(False)
        name = f"\0{uuid.uuid4().hex}"
        named.bind(name)
        named.listen()
        named.setblocking(False)
        calls = [
            f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)",
            "socket.create_connection(('192.0.2.1', 80), 1)",
            f"socket.socket(socket.AF_UNIX).connect({name!r})",
            "socket.getaddrinfo('example.com', 80)",
        ]
        for call in calls:
            assert outcome(f"import socket\n{call}") == "failed", call
        for listening in (server, named):
            with pytest.raises(BlockingIOError):
                listening.accept()


def test_no_file_outside_its_folder_is_seen_or_changed(tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    tries = [
        f"os.remove({str(canary)!r})",
        f"open({str(canary)!r}, 'w')",
        f"os.remove({str(ROOT / 'pyproject.toml')!r})",
        f"os.listdir({str(Path.home() / '.ssh')!r})",
        "open('/etc/passwd').read()",
        "open('/usr/canary', 'w')",
        "os.chmod('/usr', 0o777)",
        "os.listdir('/proc')",
    ]
    for each in tries:
        assert outcome(f"import os\n{each}") == "failed", each
    tree = "import os, shutil\nfor name in ('/tmp', '/dev', '/bin'):\n"
    tree += "    shutil.rmtree(name, ignore_errors=True)\nassert not os.listdir('/tmp')"
    assert outcome(tree) == "passed"
    assert canary.read_text() == "alive"
    assert (ROOT / "pyproject.toml").is_file()
    assert Path("/bin/sh").exists()


def test_a_signal_to_its_parent_reaches_nobody():
    assert outcome(f"import os\nos.kill({os.getpid()}, 9)") == "failed"
    program = """
import os, signal
for target in (1, os.getppid(), -1):
    for number in range(1, 65):
        if target != -1 or number not in (9, 19):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
            try:
                os.kill(target, number)
            except OSError:
                pass
"""
    assert outcome(program) == "passed"
    assert outcome(f"{program}\nassert False") == "failed"


def test_the_environment_of_the_suite_is_not_there(monkeypatch):
    monkeypatch.setenv("MARKED", "do not tell")
    assert outcome("import os\nprint(os.environ['MARKED'])") == "failed"
    program = """
import os
assert "do not tell" not in repr(os.environ)
assert set(os.environ) <= {"PATH", "PYTHONHASHSEED", "LC_CTYPE"}
for number in range(3, 256):
    try:
        os.fstat(number)
    except OSError:
        continue
    assert number == 3, number  # the verdict's pipe
"""
    found = execute(program, LIMITS)
    assert found.outcome == "passed", found.detail


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "raise SystemExit",
        "import os\nos.closerange(0, 64)",
        "import builtins\nbuiltins.exec = builtins.compile = print = None\nassert False",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "input()",
        "def f(): f()\nf()",
        "[" * 10_000,
        "x = '\ud800'",
        "x = 1\0",
    ],
)
def test_what_ends_before_its_last_line_fails(program):
    assert outcome(program) == "failed"


@pytest.mark.parametrize(
    "act",
    [
        "os.setuid(0)",
        "os.setgroups([])",
        "os.chroot('/tmp')",
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "resource.setrlimit(resource.RLIMIT_NPROC, (4096, 4096))",
        "resource.setrlimit(resource.RLIMIT_CPU, (600, 600))",
        "call('unshare', 0x10000000)",
        "call('unshare', 0x00020000)",
        "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
        "call('ptrace', 16, 1, 0, 0)",
        "call('shmget', 0, 1 << 30, 0o1600)",
    ],
)
def test_no_right_is_left(act):
    program = f"""
import ctypes, os, resource
def call(name, *arguments):
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
{act}
"""
    found = execute(program, LIMITS)
    assert found.outcome == "failed"
    assert "Error" in found.detail.rpartition("\n")[2]


def test_many_at_once_have_the_verdicts_of_one_at_a_time():
    programs = [
        f"assert {i} % 3\n" + "import time; time.sleep(60)" * (i % 4 == 1) for i in range(8)
    ]
    done = []
    limits = Limits(timeout_s=0.5, grace_s=1.0)
    several = pool.execute_all(programs, limits, workers=4, on_done=done.append)
    assert [each.outcome for each in several] == [
        "failed",
        "timeout",
        "passed",
        "failed",
        "passed",
        "timeout",
        "failed",
        "passed",
    ]
    assert done == list(range(1, 9))
    alone = pool.execute_all(programs, limits, workers=1)
    assert [each.outcome for each in alone] == [each.outcome for each in several]


def test_nothing_is_left_when_the_suite_is_killed(name):
    program = f"{HARDENED}\nharden({name!r})\ntime.sleep(3600)"
    script = (
        "from bench.sandbox.execution import execute\nfrom bench.sandbox.limits import Limits\n"
        f"execute({program!r}, Limits(timeout_s=600.0))"
    )
    suite = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    try:
        wait_until(lambda: alive(name))
    finally:
        suite.send_signal(signal.SIGKILL)
        suite.wait()
    wait_until(lambda: not alive(name))
