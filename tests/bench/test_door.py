"""What a user types wrong is refused at once, in a few words, before anything heavy is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench import command_line
from methods.registry import method_names

METHODS = ", ".join(method_names())
ROOT = Path(__file__).resolve().parents[2]
SWEEP = ("seed=0,1,2", "-m")

# name: (arguments, words that must stand in the refusal)
REFUSALS = {
    "no method": ((), ("needs a method", "+method=skipdecode", f"methods: {METHODS}")),
    "a misspelt method": (
        ("+method=skipdecod",),
        ("There is no method", "skipdecod (near: skipdecode)", METHODS),
    ),
    "a misspelt group with a plus": (
        ("+methd=dense",),
        ("Unknown setting methd, and no method", "methd=dense", "+method=NAME", METHODS),
    ),
    "a misspelt group without a plus": (
        ("methd=dense",),
        ("Unknown setting methd, and no method", "methd=dense", "+method=NAME"),
    ),
    "a misspelt model": (
        ("+method=dense", "model=tini"),
        ("There is no model", "tini (near: tiny)", "scratch"),
    ),
    "unknown keys and a wrong type at once": (
        ("+method=dense", "model.chekpoint=x", "nosuch=1", "meter.batch_size=4.7"),
        ("model.chekpoint", "near: checkpoint", "Unknown setting nosuch", "a whole number"),
    ),
    "a key of another method": (
        ("+method=dense", "method.preset=4x"),
        ("Unknown setting method.preset", "allowed: none"),
    ),
    "a number that is too small": (
        ("+method=dense", "meter.batch_size=0"),
        ("meter.batch_size is too small", "1 and up"),
    ),
    "settings on both sides of -m": (
        ("+method=dense", "-m", "seed=1,2"),
        ("both sides of -m", "+method=dense seed=1,2 -m", METHODS),
    ),
    "two methods": (
        ("+method=dense", "+method=skipdecode"),
        ("Multiple values for method", "+method=NAME"),
    ),
    "a word without =": (("+method=dense", "quick"), ("'quick'", "group.key=value")),
    "a reference to nothing": (
        ("+method=dense", "results_dir=${nosuch}"),
        ("'nosuch' not found", "group.key=value"),
    ),
    "no value for a group": (("+method=null",), ("+method=NAME", METHODS)),
}
NOISE = ("Traceback", "HYDRA_FULL_ERROR", "Config search path", "provider=", "To append to your")


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory):
    """An environment in which loading torch or transformers ends the process."""
    folder = tmp_path_factory.mktemp("poison")
    for name in ("torch", "transformers"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name} was loaded')\n")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_command_line_is_refused_with_2_and_words(name, call, no_torch, tmp_path):
    arguments, words = REFUSALS[name]
    own = () if name in ("no method", "a reference to nothing") else (f"results_dir={tmp_path}",)
    ended = call(*own, *arguments, **no_torch)
    assert ended.code == 2, ended.err
    assert ended.out == ""
    for word in words:
        assert word in ended.err
    for word in NOISE:
        assert word not in ended.err
    assert len(ended.err.splitlines()) < 25


def test_the_guard_against_torch_works(call, no_torch, tmp_path):
    ended = call("+method=dense", f"results_dir={tmp_path}", **no_torch)
    assert "torch was loaded" in ended.err
    assert ended.code not in (0, 2)


def test_training_is_refused_likewise(call, tmp_path):
    ended = call("+method=skipdecod", f"results_dir={tmp_path}", module="bench.train")
    assert ended.code == 2
    assert "near: skipdecode" in ended.err
    assert "Traceback" not in ended.err


# ---- what the work behind the door raises ----

PROCESS = """
import sys
from bench import door
from bench.errors import InputError, InvalidRunError

def work(config):
    {body}

sys.argv[1:] = ["+method=dense", *sys.argv[1:]]
door._enter(work)
"""


@pytest.fixture
def enter(tmp_path):
    """``enter(body, *arguments)``: a process whose work, a function of ``config``, is ``body``.

    A process of its own: Hydra's logging would outlive the test and flush streams of others.
    """

    def make(body, *arguments):
        code = PROCESS.format(body=body)
        command = [sys.executable, "-c", code, f"results_dir={tmp_path}", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    return make


def test_work_that_ends_well_ends_with_0(enter):
    ended = enter("print(config.method.name, config.seed)", "seed=3")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "dense 3\n", "")


def test_bad_input_ends_with_2(enter):
    ended = enter('raise InputError("No tokenizer", got="x", allowed="y", where="model.tokenizer")')
    assert ended.returncode == 2
    assert ended.stderr == "No tokenizer\n  got:     x\n  allowed: y\n  where:   model.tokenizer\n"


def test_an_invalid_run_ends_with_1(enter):
    ended = enter('raise InvalidRunError("example 7 is not finite")')
    assert (ended.returncode, ended.stderr) == (1, "example 7 is not finite\n")


@pytest.mark.parametrize("kind", ["RuntimeError", "ValueError", "KeyError"])
def test_a_fault_of_the_suite_keeps_its_traceback_and_ends_with_1(kind, enter):
    ended = enter(f'raise {kind}("a bug")')
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "line 7, in work" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(f"{kind}: ")


def test_a_refused_job_does_not_end_a_sweep(enter):
    refuse = 'raise InputError("No seed 1", got=1, allowed="another", where="seed")'
    ended = enter(f"print('seed', config.seed) if config.seed != 1 else exec({refuse!r})", *SWEEP)
    assert ended.returncode == 1
    assert "seed=1: No seed 1\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert [line for line in ended.stdout.splitlines() if line.startswith("seed")] == [
        "seed 0",
        "seed 2",
    ]


def test_a_sweep_whose_jobs_are_all_refused_ends_with_2(enter):
    ended = enter('raise InputError("No seed", got=config.seed, allowed="", where="seed")', *SWEEP)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == "3 of 3 runs failed"


def test_a_faulty_job_does_not_end_a_sweep_either(enter):
    ended = enter("print('seed', config.seed, 6 // (config.seed - 1))", *SWEEP)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    assert "line 7, in work" in ended.stderr
    assert "seed 0 -6" in ended.stdout
    assert "seed 2 6" in ended.stdout


SETTINGS = {
    "seed=1": "++seed=1",
    "meter.batch_size=4": "++meter.batch_size=4",
    "meter.batch_size=4,8": "++meter.batch_size=4,8",
    "model.shape.width=8": "++model.shape.width=8",
    "model=tiny": "model=tiny",
    "+method=dense": "+method=dense",
    "method=dense": "method=dense",
    "++seed=1": "++seed=1",
    "~decode": "~decode",
    "hydra.verbose=true": "hydra.verbose=true",
    "hydra/launcher=basic": "hydra/launcher=basic",
    "--cfg": "--cfg",
    "-m": "-m",
}


@pytest.mark.parametrize("argument", SETTINGS)
def test_only_settings_are_let_through_hydras_own_check(argument):
    assert command_line.arguments([argument]) == [SETTINGS[argument]]


def test_a_reader_that_has_seen_enough_is_no_fault():
    shown = subprocess.run(
        f"{sys.executable} -m bench action=list | head -1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (shown.stdout, shown.stderr) == ("+method=\n", "")


INTERRUPTED = """
import sys
from bench import door

def interrupted(config):
    raise KeyboardInterrupt

door._act = interrupted
sys.argv = ["bench", "action=list"]
door.main()
"""


def test_an_interrupt_says_how_to_go_on():
    # In a process of its own: Hydra leaves handlers behind that write to this one's streams.
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130
    assert ended.stderr == "stopped; the same command goes on where it was\n"
