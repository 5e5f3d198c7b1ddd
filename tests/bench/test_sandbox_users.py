"""The sandbox of a user without rights, and its refusal where the kernel gives no namespaces."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.errors import InputError
from bench.sandbox import kernel, pool, processes
from bench.sandbox.execution import Execution, SandboxError, execute
from bench.sandbox.limits import Limits
from bench.sandbox.processes import Usage

ROOT = Path(__file__).resolve().parents[2]
# Nobody's: what runs as it has no right to anything.
UID = 54321
PROGRAMS = {
    "passes": "assert sum(range(4)) == 6",
    "fails": "assert False",
    "has no right": "import os\nos.setuid(0)",
    "hears nothing": "import os\nfor n in (1, 2, 9, 15): os.kill(1, n)",
    "loops": "while True: pass",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fills memory": "x = bytearray(8 << 30)",
    "calls": "import socket\nsocket.create_connection(('127.0.0.1', 9))",
    "deletes": "import os\nos.remove(MINE)",
    "talks": "while True: print('x' * 1000)",
    "reads the environment": "import os\nos.environ['MARKED']",
    "goes on": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(3600)",
}
EXPECTED = {
    "passes": "passed",
    "fails": "failed",
    "has no right": "failed",
    "hears nothing": "passed",
    "loops": "timeout",
    "forks": "timeout",
    "fills memory": "memory",
    "calls": "failed",
    "deletes": "failed",
    "talks": "output_limit",
    "reads the environment": "failed",
    "goes on": "passed",
}
SCRIPT = """
import json, os, sys, tempfile
from bench.sandbox import pool
from bench.sandbox.limits import Limits
why = pool.why_not()
if why is not None:
    sys.exit(f"no sandbox: {why}")
with tempfile.NamedTemporaryFile() as mine:
    given = json.loads(sys.argv[1])
    programs = [f"MINE = {mine.name!r}\\n{each}" for each in given.values()]
    found = pool.execute_all(programs, Limits(timeout_s=1.0, grace_s=1.0), workers=2)
    assert os.path.exists(mine.name)
numbers = [name for name in os.listdir("/proc") if name.isdigit()]
left = [each for each in numbers if os.stat(f"/proc/{each}").st_uid == os.getuid()]
assert left == [str(os.getpid())], left
print(json.dumps(dict(zip(given, (each.outcome for each in found)))))
"""


def run_as(user, *command, **more):
    quiet = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "MARKED": "do not tell"}
    given = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    return subprocess.run(
        command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False, **given, **more
    )


def interpreter_for(user):
    """One that this user can start and that finds the suite; skips without one."""
    probe = "import sys, bench.errors; sys.exit(sys.version_info < (3, 10))"
    for path in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")):
        try:
            if path and run_as(user, path, "-c", probe).returncode == 0:
                return path
        except OSError:
            continue
    pytest.skip(f"no interpreter and source tree that uid {user} can read")


def test_a_user_without_rights_has_the_same_sandbox():
    user = UID if os.geteuid() == 0 else None
    done = run_as(user, interpreter_for(user), "-c", SCRIPT, json.dumps(PROGRAMS))
    if done.stderr.startswith("no sandbox"):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED


def test_the_probe_says_why_where_the_kernel_gives_no_user_namespace():
    if shutil.which("unshare") is None:
        pytest.skip("no unshare on PATH")
    turn_off = "echo 0 > /proc/sys/user/max_user_namespaces || exit 77; "
    command = f'{turn_off}exec "$0" -m bench.sandbox'
    done = run_as(None, "unshare", "--user", "--map-root-user", "sh", "-c", command, sys.executable)
    if done.returncode == 77 or done.stderr.startswith("unshare"):
        pytest.skip(f"a namespace without namespaces cannot be made here: {done.stderr}")
    assert done.returncode == 1
    assert done.stdout.startswith("no sandbox: ")
    assert "unshare" in done.stdout
    assert done.stdout.endswith("model-written code is not run here\n")


def test_what_cannot_be_confined_is_refused_and_never_run(monkeypatch):
    monkeypatch.setattr(pool, "why_not", lambda: "unshare: Operation not permitted")
    with pytest.raises(InputError) as refused:
        pool.refuse_without()
    assert refused.value.got == "unshare: Operation not permitted"
    assert "docs/sandbox.md" in refused.value.where


@pytest.fixture
def fresh_probe():
    pool.why_not.cache_clear()
    yield
    pool.why_not.cache_clear()


@pytest.mark.usefixtures("fresh_probe")
def test_a_probe_that_was_not_confined_counts_as_no_sandbox(monkeypatch):
    monkeypatch.setattr(pool, "execute", lambda *_: Execution("failed", "not confined"))
    assert "not confined" in pool.why_not()


def test_a_jail_that_cannot_be_set_up_is_an_error_and_no_failed_program(monkeypatch):
    if pool.why_not() is not None:
        pytest.skip(f"no sandbox here: {pool.why_not()}")
    # More than there is: the mount of its folder is refused.
    with pytest.raises(SandboxError, match="mount"):
        execute("pass", Limits(folder_bytes=-1))


def test_the_first_error_of_the_sandbox_ends_all(monkeypatch):
    started = []

    def broken(program, limits):
        started.append(program)
        raise SandboxError("it broke")

    monkeypatch.setattr(pool, "execute", broken)
    with pytest.raises(SandboxError, match="it broke"):
        pool.execute_all([str(i) for i in range(50)], Limits(), workers=1)
    assert len(started) < 50


def test_equal_programs_run_once(monkeypatch):
    started = []
    monkeypatch.setattr(pool, "execute", lambda program, limits: started.append(program) or program)
    assert pool.execute_all(["a", "b", "a"], Limits(), workers=1) == ["a", "b", "a"]
    assert sorted(started) == ["a", "b"]


@pytest.mark.parametrize(
    ("usage", "wall_s", "expected"),
    [
        (Usage(0, 1.0, 0.0), 4.9, None),
        (Usage(0, 1.0, 0.0), 5.1, "timeout"),
        (Usage(0, 1.0, 10.0), 12.0, None),
        (Usage(0, 1.0, 10.0), 15.1, "timeout"),
        (Usage(0, 5.1, 10.0), 6.0, "timeout"),
        (Usage(2**20 + 1, 0.0, 0.0), 0.1, "memory"),
        (Usage(0, 0.0, None), 90.0, None),
        (Usage(0, 0.0, 1e9), 101.0, "timeout"),
    ],
)
def test_time_without_a_cpu_does_not_count_up_to_a_bound(usage, wall_s, expected):
    limits = Limits(timeout_s=3.0, grace_s=2.0, memory_bytes=2**20)
    assert limits.reached(usage, wall_s) == expected


def test_usage_is_of_all_below_and_not_of_the_process_itself():
    child = "import sys; x = b'1' * (64 << 20); print(flush=True); sys.stdin.read()"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        found = processes.below(process.pid)
        process.stdin.close()
    if found == Usage(0, 0.0, None):
        pytest.skip("this kernel does not list the children of a process")
    assert 64 << 20 < found.memory_bytes < 1 << 30
    assert found.cpu_s > 0


def test_calls_are_filtered_on_the_usual_architectures(monkeypatch):
    for name in ("x86_64", "aarch64"):
        monkeypatch.setattr(kernel.platform, "machine", lambda name=name: name)
        assert kernel.filters_calls()
    monkeypatch.setattr(kernel.platform, "machine", lambda: "riscv64")
    assert not kernel.filters_calls()
    # Does nothing, and must not fail.
    kernel.filter_calls()
