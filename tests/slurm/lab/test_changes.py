"""Between submission and start files are edited; folders have names that need quoting."""

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[3]
NASTY = """it's a "nasty" näme (1) & $more"""
SKIPDECODE = Path("conf/method/skipdecode.yaml")
SOURCE = Path("methods/skipdecode/method.py")


@pytest.fixture
def copied(handed, tmp_path):
    """A copy of the project in a folder of a nasty name, with results in another."""
    tree = tmp_path / NASTY
    tree.mkdir()
    for name in ("bench", "methods", "slurm", "conf"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    return handed(tree=tree, results=tmp_path / f"rüns of {NASTY}")


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def release(made, sweep):
    """Lets the one job of a sweep start that was handed in as held."""
    [state] = made.states(sweep)
    assert state["status"] == "queued"
    made.lab.call("scontrol", "release", state["slurm_id"])


def test_the_job_runs_what_was_submitted_and_notices_changed_code(copied):
    made, held = copied, "launch.slurm.extra={hold: true}"
    common = ("gpu=lab_a", "launch.wait=false", held, "method.decay=power")
    for sweep, policy in (("0", "refuse"), ("1", "record")):
        ended = made.call(
            *common, f"seed={sweep}", f"launch.changed_code={policy}", method="skipdecode"
        )
        assert ended.code == 0, ended.err
    # A value that the run would take, had it been composed when it started.
    edit(made.tree / SKIPDECODE, "\npower: 1.0", "\npower: 3.0")
    with (made.tree / SOURCE).open("a") as file:
        file.write("# edited\n")
    release(made, 1)
    release(made, 2)
    assert made.slurm("status", "1", "--watch").code == 1
    assert made.slurm("status", "2", "--watch").code == 0
    [refused], [recorded] = made.states(1), made.states(2)
    assert refused["status"] == "failed"
    assert "The code is not the one that was submitted" in refused["note"]
    failure = made.results / refused["run_id"] / "1" / "failure.txt"
    assert str(SOURCE) in failure.read_text()
    [segment] = made.lines(recorded, "segments")
    assert segment["provenance"]["job"]["code_changed"] == [str(SOURCE)]
    columns = made.header(recorded)["columns"]
    assert columns["setting"].startswith("decay=power;")
    start = (made.results / recorded["run_id"] / "1" / "start.json").read_text()
    assert '"power": 1.0' in start
    # A retry is a new submission, of the code as it is now.
    assert made.slurm("retry", "1").code == 0
    release(made, 1)
    assert made.slurm("status", "1", "--watch").code == 0
