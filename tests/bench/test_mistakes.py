"""Sixty and more mistakes of users: each ends with 2 and words that help, without a traceback."""

import json
import shutil
import sys
import time
import types
from pathlib import Path

import hydra._internal.hydra
import hydra.core.utils
import pytest

from bench import door, planning
from methods.registry import method_names

ROOT = Path(__file__).resolve().parents[2]
METHODS = ", ".join(method_names())
DENSE = "+method=dense"
SKIP = "+method=skipdecode"
CALM = ("+method=calm", "gpu=cpu")
LAYERS = (SKIP, "method.preset=null")
LEAST_MISTAKES, SECONDS = 60, 10

# name: (arguments, words of the refusal); {tmp} is a folder of the test, see `things`.
COMMAND_LINE = {
    "no method": ((), ("needs a method", "methods: " + METHODS, "--help")),
    "only settings": (("seed=1",), ("needs a method", METHODS)),
    "a misspelt method": (("+method=skipdecod",), ("There is no method", "near: skipdecode")),
    "a method in capitals": (("+method=Dense",), ("There is no method", "near: dense", METHODS)),
    "a misspelt group": (("+methd=dense",), ("Unknown setting methd", METHODS)),
    "a group without plus": (("methd=dense",), ("Unknown setting methd", "+method=NAME")),
    "a misspelt group beside a method": ((DENSE, "+taks=e2e"), ("Unknown setting taks", "(near:")),
    "an empty method": (("+method=",), ("method", METHODS)),
    "method as a setting": (("++method.name=dens",), ("There is no method", "near: dense")),
    "a list of methods": (("+method=[dense,skipdecode]",), ("one method", METHODS, "-m")),
    "the method twice": ((DENSE, SKIP), ("Multiple values for method",)),
    "a sweep without -m": (("+method=dense,skipdecode",), ("--multirun", "-m for sweeps")),
    "a sweep of values without -m": ((DENSE, "seed=0,1"), ("--multirun", "-m for sweeps")),
    "settings on both sides of -m": ((DENSE, "-m", "seed=1,2"), ("both sides", "seed=1,2 -m")),
    "both sides of --multirun": ((DENSE, "--multirun", "seed=1"), ("both sides of --multirun",)),
    "a word": ((DENSE, "fast"), ("'fast'", "group.key=value")),
    "an empty key": ((DENSE, "=3"), ("must be a string", "group.key=value")),
    "an open bracket": ((DENSE, "model.shape.eos_token_ids=[1,"), ("group.key=value",)),
    "an open brace": ((DENSE, "meter={repeats: 2"), ("group.key=value",)),
    "a reference to nothing": ((DENSE, "results_dir=${nosuch}"), ("'nosuch' not found",)),
    "removing a group": ((DENSE, "~decode"), ("Setting decode is missing",)),
    "removing what is not there": ((DENSE, "~nosuch"), ("nosuch", "group.key=value")),
    "forcing a group": ((DENSE, "++model=tiny"), ("force-add", "group=choice")),
}
CHOICES = {
    "a misspelt model": ((DENSE, "model=tini"), ("no model", "near: tiny", "opt1.3b")),
    "a model's hub name": ((DENSE, "model=facebook/opt-125m"), ("opt-125m", "near: opt125m")),
    "a misspelt task": ((DENSE, "task=e2"), ("no task", "near: e2e", "demo")),
    "a misspelt gpu": ((DENSE, "gpu=cpuu"), ("no gpu", "near: cpu", "auto")),
    "a misspelt decode": ((DENSE, "decode=until_eod"), ("no decode", "near: until_eos")),
    "a misspelt meter": ((DENSE, "meter=defualt"), ("no meter", "near: default")),
    "a misspelt engine": ((DENSE, "engine=deflt"), ("no engine", "near: default")),
    "a misspelt train": ((DENSE, "train=large"), ("no train", "allowed: default")),
    "a misspelt tracking": ((DENSE, "tracking=of"), ("no tracking", "near: off")),
    "an unknown action": ((DENSE, "action=pln"), ("no action", "near: plan", "prefetch")),
    "an unknown action, no method": (("action=lists",), ("no action", "near: list")),
    "no action": ((DENSE, "action=null"), ("no action", "got:     None", "doctor")),
    "an unknown launcher": ((DENSE, "hydra/launcher=locl", "-m"), ("launcher", "near: local")),
}
KEYS = {
    "an unknown key": ((DENSE, "nosuch=1"), ("Unknown setting nosuch", "results_dir")),
    "a key of model": ((DENSE, "model.chekpoint=x"), ("model.chekpoint", "near: checkpoint")),
    "a key of task": ((DENSE, "task.limt=3"), ("task.limt", "near: limit")),
    "a key of meter": ((DENSE, "meter.batchsize=3"), ("meter.batchsize", "near: batch_size")),
    "a key of decode": ((DENSE, "decode.max_tokens=3"), ("near: max_new_tokens",)),
    "a key of engine": ((DENSE, "engine.dtyp=x"), ("engine.dtyp", "near: dtype")),
    "a key of train": ((DENSE, "train.learning_rate=1"), ("train.learning_rate", "lr")),
    "a key of launch": ((DENSE, "launch.failfast=true"), ("launch.failfast", "near: fail_fast")),
    "a key of a shape": ((DENSE, "model.shape.layers=3"), ("model.shape.layers", "num_layers")),
    "a key of another method": ((DENSE, "method.preset=4x"), ("method.preset", "allowed: none")),
    "a key of another task": ((DENSE, "task.data_dir=x"), ("task.data_dir", "train_pairs")),
    "a key without its group": ((DENSE, "batch_size=4"), ("Unknown setting batch_size",)),
    "a group in place of a method's": ((SKIP, "skipdecode.preset=4x"), ("Unknown setting",)),
}
VALUES = {
    "a fraction": ((DENSE, "meter.batch_size=4.7"), ("4.7", "a whole number")),
    "a word for a number": ((DENSE, "meter.repeats=many"), ("'many'", "a whole number")),
    "a word for a seed": ((DENSE, "seed=random"), ("'random'", "a whole number")),
    "yes for true": ((DENSE, "rerun=yess"), ("'yess'", "true or false")),
    "no batch": ((DENSE, "meter.batch_size=0"), ("too small", "1 and up")),
    "a negative seed": ((DENSE, "seed=-1"), ("too small", "0 and up")),
    "a limit of none": ((DENSE, "task.limit=0"), ("too small", "1 and up")),
    "no new tokens": ((DENSE, "decode.max_new_tokens=0"), ("too small", "1 and up")),
    "a dtype's short name": ((DENSE, "engine.dtype=fp16"), ("'fp16'", "float32, bfloat16")),
    "a split": ((DENSE, "task.split=dev"), ("'dev'", "train, validation, test")),
    "a baseline": ((DENSE, "meter.baseline=hf"), ("'hf'", "auto, dense, own, none")),
    "a verbosity": ((DENSE, "verbosity=loud"), ("'loud'", "quiet, normal, debug")),
    "a way of weights": ((DENSE, "model.weights=rand"), ("'rand'", "checkpoint, random")),
    "null where a number must be": ((DENSE, "meter.repeats=null"), ("None", "a whole number")),
    "a value for a group": ((DENSE, "launch=3"), ("launch", "a group of settings")),
    "a family": ((DENSE, "model.shape.family=gpt2"), ("gpt2", "opt, llama")),
    "a decay": ((SKIP, "method.decay=cosine"), ("'cosine'", "linear, power")),
    "two faults at once": ((DENSE, "nosuch=1", "seed=x"), ("Unknown setting nosuch", "'x'")),
}
TOGETHER = {
    "preset and layers": ((SKIP, "method.max_layers=8"), ("preset=2x and max_layers=8",)),
    "neither preset nor layers": (LAYERS, ("both are needed", "where:   method.max_layers")),
    "more layers than there are": (
        (*LAYERS, "method.max_layers=13", "method.min_layers=4"),
        ("max_layers=13", "<= 12"),
    ),
    "fewer at most than at least": (
        (*LAYERS, "method.max_layers=4", "method.min_layers=8"),
        ("max_layers=4, min_layers=8", "min_layers <= max_layers"),
    ),
    "warm-up of all layers": ((SKIP, "method.warmup_layers=12"), ("warmup_layers=12", "0..11")),
    "a preset without x": ((SKIP, "method.preset='2'"), ("preset=2:", "such as 2x")),
    "a preset as a number": ((SKIP, "method.preset=2"), ("method.preset", "a text")),
    "a preset out of reach": ((SKIP, "method.preset=40x"), ("preset=40x", "12 layers")),
    "a power of nothing": ((SKIP, "method.power=0"), ("power=0", "above 0")),
    "nothing to calibrate": ((DENSE, "action=calibrate"), ("nothing to calibrate", "calm")),
    "too few prompts": (
        (*CALM, "action=calibrate", "calibrate.limit=28"),
        ("28 prompts", "at least 29 prompts", "calibrate.limit"),
    ),
    "thresholds that rise": (
        (*CALM, "calibrate.thresholds=[0.1,0.9]"),
        ("[0.1, 0.9]", "falling", "calibrate.thresholds"),
    ),
    "no calibration": (
        (*CALM, "method.threshold=calibrated"),
        ("no calibration", "+method=calm action=calibrate", "task=demo"),
    ),
    "a model that is to be trained": ((DENSE, "model=scratch"), ("no weights yet", "bench.train")),
}
FILES = {
    "no such checkpoint": ((DENSE, "model.checkpoint={tmp}/no"), ("{tmp}/no", "config.json")),
    "a file as checkpoint": ((DENSE, "model.checkpoint={tmp}/file"), ("{tmp}/file", "config.json")),
    "an empty checkpoint": ((DENSE, "model.checkpoint={tmp}/empty"), ("config.json", "Llama or")),
    "a checkpoint without weights": (
        (DENSE, "model.checkpoint={tmp}/bare"),
        ("lacks model.safetensors", "model.checkpoint"),
    ),
    "a checkpoint of another model": (
        (DENSE, "model=opt125m", "model.checkpoint={tmp}/tiny"),
        ("another architecture", "width=128 (config: 768)", "model=scratch"),
    ),
    "a checkpoint of an unknown kind": (
        (DENSE, "model.checkpoint={tmp}/bert"),
        ("bert", "OPT, Llama or Qwen2"),
    ),
    "a damaged config.json": ((DENSE, "model.checkpoint={tmp}/damaged"), ("config.json",)),
    "no classifier beside the checkpoint": (
        (*CALM, "method.measure=classifier", "model.checkpoint={tmp}/tiny"),
        ("no {tmp}/tiny/exit_classifier.safetensors", "bench.train", "method.stage=classifier"),
    ),
    "a classifier of other weights": (
        (*CALM, "method.measure=classifier", "model.checkpoint={tmp}/other"),
        ("trained on other weights", "of sha256:", "rerun=true"),
    ),
    "no such baseline": ((SKIP, "model.baseline={tmp}/no"), ("{tmp}/no", "config.json")),
    "no such e2e folder": (
        (DENSE, "task=e2e", "task.data_dir={tmp}/no"),
        ("{tmp}/no", "task.data_dir"),
    ),
    "an e2e folder without files": (
        (DENSE, "task=e2e", "task.data_dir={tmp}/empty"),
        ("devset.csv", "task.data_dir"),
    ),
    "an e2e file with other columns": (
        (DENSE, "task=e2e", "task.data_dir={tmp}/e2e"),
        ("mr", "task.data_dir"),
    ),
    "results in a file": ((DENSE, "results_dir={tmp}/file"), ("Cannot write", "results_dir")),
    "results below a file": ((DENSE, "results_dir={tmp}/file/runs"), ("is no folder",)),
    "records of no folder": (("action=doctor", "results_dir={tmp}/no"), ("no results folder",)),
    "pinning what is not on the hub": (("action=pin",), ("model=tiny", "a model with a hub_id")),
    "a prompt that is too long": (
        (DENSE, "action=check", "gpu=cpu", "decode.max_new_tokens=2030"),
        ("does not fit", "2048 in all", "decode.max_new_tokens"),
    ),
    "no tokenizer": (
        (DENSE, "action=check", "gpu=cpu", "model.tokenizer={tmp}/empty"),
        ("{tmp}/empty", "model.tokenizer"),
    ),
}
SWEEPS = {
    "one wrong model of two": (
        (DENSE, "model=tiny,tini", "-m"),
        ("1 of 2 jobs", "model=tini", "near: tiny"),
    ),
    "one wrong method of two": (("+method=dense,calmm", "-m"), ("1 of 2 jobs", METHODS)),
    "a wrong value of three": ((DENSE, "seed=0,x,1", "-m"), ("1 of 3 jobs", "seed=x", "'x'")),
    "a key that all lack": ((DENSE, "nosuch=1", "seed=0,1", "-m"), ("2 of 2", "and 1 more")),
    "two actions": ((DENSE, "action=plan,run", "-m"), ("one thing", "action=plan,run")),
    "a sweep into a file": (
        (DENSE, "seed=0,1", "results_dir={tmp}/file", "-m"),
        ("2 of 2", "Cannot write results"),
    ),
    "a continuous range": ((DENSE, "seed=interval(0,3)", "-m"), ("INTERVAL", "-m for sweeps")),
    "a sweep without a method": (("seed=0,1", "-m"), ("needs a method", METHODS)),
}
MISTAKES = COMMAND_LINE | CHOICES | KEYS | VALUES | TOGETHER | FILES | SWEEPS
NO_FOUR_PARTS = {"no method", "only settings", "a sweep without a method"}
NOISE = ("Traceback", "HYDRA_FULL_ERROR", "Config search path", "provider=")
REAL = ("no method", "a sweep without -m", "a dtype's short name", "results in a file")


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A folder of things that are not what they should be."""
    folder = tmp_path_factory.mktemp("things")
    (folder / "file").write_text("")
    dense = ROOT / "bench" / "embedded" / "tiny" / "dense"
    for name in ("empty", "bare", "bert", "damaged", "e2e"):
        (folder / name).mkdir()
    shutil.copytree(dense, folder / "tiny")
    shutil.copytree(dense, folder / "other")
    shutil.copy(dense.parent / "calm" / "exit_classifier.safetensors", folder / "other")
    shutil.copy(dense / "config.json", folder / "bare")
    (folder / "bert" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / "damaged" / "config.json").write_text("{")
    (folder / "e2e" / "devset.csv").write_text("a,b\n1,2\n")
    return folder


@pytest.fixture
def command(monkeypatch, capsys):
    """``command(arguments)``: exit code, output and errors of the door in this process."""

    def ran(config):
        pytest.fail(f"it ran: {config}")

    monkeypatch.setitem(sys.modules, "bench.run", types.SimpleNamespace(run=ran))
    # The door sets these; so they are put back.
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    # Hydra would close the handlers of all libraries, and with them the streams of pytest.
    for module in (hydra.core.utils, hydra._internal.hydra):
        monkeypatch.setattr(module, "configure_log", lambda *given: None)

    def call(arguments):
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        code = 0
        try:
            door.main()
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    yield call
    # It keeps the examples of a process that ends.
    planning._decoded.cache_clear()


def filled(text, things):
    return text.replace("{tmp}", str(things))


def check(name, things, code, out, err):
    assert code == 2, err or out
    for word in MISTAKES[name][1]:
        assert filled(word, things) in err
    for word in NOISE:
        assert word not in err
    if name not in NO_FOUR_PARTS:
        parts = [line.split(":")[0].strip() for line in err.splitlines() if line[:2] == "  "]
        assert {"got", "allowed", "where"} <= set(parts), err
    assert len(err.splitlines()) < 30


def arguments_of(name, things, tmp_path):
    given = [filled(each, things) for each in MISTAKES[name][0]]
    says_where = any("results_dir" in each for each in given) or not given
    return given if says_where else [f"results_dir={tmp_path / 'runs'}", *given]


def test_there_are_mistakes_enough():
    groups = (COMMAND_LINE, CHOICES, KEYS, VALUES, TOGETHER, FILES, SWEEPS)
    assert len(MISTAKES) == sum(map(len, groups)) >= LEAST_MISTAKES


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_with_2_and_words_that_help(name, things, command, tmp_path):
    code, out, err = command(arguments_of(name, things, tmp_path))
    check(name, things, code, out, err)
    assert out == ""
    # Nothing was written.
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REAL)
def test_a_refusal_comes_soon_and_loads_no_torch(name, things, call, tmp_path, tmp_path_factory):
    poison = tmp_path_factory.mktemp("poison")
    for module in ("torch", "transformers"):
        (poison / f"{module}.py").write_text(f"raise SystemExit('{module} was loaded')\n")
    began = time.monotonic()
    ended = call(*arguments_of(name, things, tmp_path), PYTHONPATH=str(poison))
    took_s = time.monotonic() - began
    check(name, things, ended.code, ended.out, ended.err)
    assert took_s < SECONDS
