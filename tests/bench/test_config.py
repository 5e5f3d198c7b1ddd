"""Every file of conf/ composes, binds and says how it is used; every fault is told with its key."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bench.config import FaultsError, ModelConfig
from bench.errors import InputError

CONF = Path(__file__).resolve().parents[2] / "conf"
FILES = sorted(p.relative_to(CONF) for p in CONF.rglob("*.yaml") if not p.match("gpu/cpu-*.yaml"))
# A study is several sweeps, whose lines are composed by tests/slurm/test_studies.py.
CHOICES = [path for path in FILES if len(path.parts) == 2 and path.parts[0] != "study"]
LEAST_FILES, LEAST_MODELS, LEAST_METHODS = 14, 2, 2


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=[str(path) for path in paths])


def faults(bound, values):
    """Key -> fault of a configuration that is refused."""
    with pytest.raises(FaultsError) as caught:
        bound(values)
    found = {fault.where: fault for fault in caught.value.faults}
    assert len(found) == len(caught.value.faults)
    return found


def changed(values, key, value):
    """A copy with one value set; keys are written with dots."""
    first, _, rest = key.partition(".")
    inner = changed(values.get(first, {}), rest, value) if rest else value
    return {**values, first: inner}


def without(values, key):
    first, _, rest = key.partition(".")
    if rest:
        return {**values, first: without(values[first], rest)}
    return {name: value for name, value in values.items() if name != first}


@pytest.fixture(scope="module")
def values(composed):
    return composed("+method=skipdecode")


def test_there_are_files_to_look_at():
    assert len(FILES) >= LEAST_FILES
    groups = [path.parts[0] for path in CHOICES]
    assert groups.count("model") >= LEAST_MODELS
    assert groups.count("method") >= LEAST_METHODS


@named(FILES)
def test_a_file_begins_with_what_it_is_and_how_it_is_run(path):
    lines = (CONF / path).read_text(encoding="utf-8").splitlines()
    head = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    assert head, f"{path} has no head comment"
    commands = [line for line in head if line.startswith(("# Run:", "# Train:"))]
    assert commands, f"{path} does not say how it is run"
    assert "python -m bench" in commands[0]
    # The command selects this very file, or is about the whole.
    group, name = (path.parts[0], path.stem) if len(path.parts) == 2 else ("method", "")
    text = " ".join(head)
    assert f"{group}={name}" in text or name == "default"


@named(CHOICES)
def test_each_choice_composes_and_binds(path, configured):
    group, name = path.parts[0], path.stem
    choices = [f"{group}={name}"]
    if group != "method":
        choices.append("+method=skipdecode")
    if group == "train":
        # What a paper does not state is null there: the user's to give.
        own = OmegaConf.load(CONF / path)
        gaps = [key for key in ("steps", "batch_size", "lr") if key in own and own[key] is None]
        choices += [f"train.{key}=1" for key in gaps]
    config = configured(*choices)
    bound = getattr(config, group)
    # Variants of one name (decode, meter, engine, train) are told apart by their fields.
    assert getattr(bound, "name", name) == name


@named([path for path in CHOICES if path.parts[0] == "model"])
def test_each_model_has_a_shape(path, configured):
    shape = configured("+method=dense", f"model={path.stem}").model.configured_shape()
    assert shape.num_layers > 0
    assert shape.num_heads * shape.head_dim == shape.query_width


@named([path for path in CHOICES if path.parts[0] == "method"])
def test_a_method_is_selected_with_and_without_a_plus(path, composed):
    assert composed(f"+method={path.stem}") == composed(f"method={path.stem}")


@named([path for path in CHOICES if path.parts[0] == "method"])
def test_a_method_has_no_changed_settings_as_it_stands(path, configured):
    assert configured(f"+method={path.stem}").method.changed == {}


def test_changed_settings_are_those_that_differ(configured):
    config = configured("+method=skipdecode", "method.preset=4x", "method.clock=generated")
    assert config.method.changed == {"preset": "4x"}


def test_the_limit_in_force_is_that_of_decode_else_of_the_task(configured):
    assert configured("+method=dense", "task=e2e").max_new_tokens == 80
    config = configured("+method=dense", "task=e2e", "decode.max_new_tokens=7")
    assert config.max_new_tokens == 7


UNKNOWN = {
    "nosuch": (),
    "method.presett": ("near: preset",),
    "model.chekpoint": ("near: checkpoint",),
    "task.trainpairs": ("near: train_pairs",),
    "meter.batchsize": ("near: batch_size",),
    "gpu.nosuch": ("name",),
}


@pytest.mark.parametrize("key", UNKNOWN)
def test_an_unknown_key_is_refused_with_its_full_name(key, values, bound):
    found = faults(bound, changed(values, key, 1))
    assert found.keys() == {key}
    assert f"Unknown setting {key}\n" in str(found[key])
    for words in UNKNOWN[key]:
        assert words in str(found[key])


WRONG = {
    "4.7 for a whole number": ("meter.batch_size", 4.7),
    "true for a whole number": ("meter.repeats", True),
    "a text for a whole number": ("seed", "three"),
    "a number for true or false": ("rerun", 1),
    "a number for a text": ("results_dir", 3),
    "nothing for a whole number": ("meter.warmups", None),
    "true for a number": ("train.lr", True),
    "a list for a text": ("gpu.name", ["cpu"]),
    "a word that is no choice": ("decode.length", "until_eod"),
    "a number for a choice": ("engine.dtype", 32),
    "a value for a group": ("meter", 3),
    "a wrong type in a method": ("method.warmup_layers", 1.5),
    "no choice of a method": ("method.decay", "cosine"),
    "a wrong type in a task": ("task.train_pairs", "many"),
    "a split that is none": ("task.split", "dev"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_with_what_was_got_and_what_is_allowed(name, values, bound):
    key, value = WRONG[name]
    found = faults(bound, changed(values, key, value))
    assert found.keys() == {key}
    assert found[key].got == repr(value)
    assert found[key].allowed
    assert f"Setting {key} has a wrong value" in str(found[key])


def test_a_whole_number_does_for_a_number(values, bound):
    config = bound(changed(values, "train.lr", 1))
    assert isinstance(config.train.lr, float)


@pytest.mark.parametrize(
    "key", ["seed", "gpu", "meter.batch_size", "task.split", "task.train_pairs", "model.name"]
)
def test_a_missing_setting_is_told(key, values, bound):
    found = faults(bound, without(values, key))
    assert found.keys() == {key}
    assert f"Setting {key} is missing" in str(found[key])


SMALL = [
    ("task.limit", 0),
    ("task.max_new_tokens", 0),
    ("decode.max_new_tokens", 0),
    ("meter.batch_size", 0),
    ("meter.repeats", 0),
    ("meter.timed_batches", 0),
    ("meter.warmups", -1),
    ("train.steps", 0),
    ("train.batch_size", -4),
    ("train.accumulate", 0),
    ("train.save_every_steps", 0),
    ("train.warmup_steps", -1),
    ("train.seed", -1),
    ("seed", -1),
]


@pytest.mark.parametrize(("key", "value"), SMALL, ids=[f"{key}={value}" for key, value in SMALL])
def test_a_number_that_is_too_small_is_refused_and_the_least_one_is_not(key, value, values, bound):
    found = faults(bound, changed(values, key, value))
    assert found.keys() == {key}
    assert found[key].got == value
    least = 1 if value == 0 or key == "train.batch_size" else 0
    assert found[key].allowed == f"{least} and up"
    assert bound(changed(values, key, least))


def test_all_faults_are_told_at_once(values, bound):
    broken = values
    for key, value in [
        ("nosuch", 1),
        ("meter.batch_size", 4.7),
        ("meter.repeets", 3),
        ("method.nosuch", 1),
        ("method.preset", 2),
        ("task.nosuch", 1),
        ("task.split", "dev"),
    ]:
        broken = changed(broken, key, value)
    broken = without(broken, "engine.dtype")
    assert set(faults(bound, broken)) == {
        "nosuch",
        "meter.batch_size",
        "meter.repeets",
        "method.nosuch",
        "method.preset",
        "task.nosuch",
        "task.split",
        "engine.dtype",
    }


def test_all_numbers_that_are_too_small_are_told_at_once(values, bound):
    broken = changed(changed(values, "seed", -1), "train.steps", 0)
    assert set(faults(bound, broken)) == {"seed", "train.steps"}


@pytest.mark.parametrize("margin", [0, -0.01])
def test_a_margin_of_nothing_is_refused(margin, values, bound):
    found = faults(bound, changed(values, "meter.margin", margin))
    assert found["meter.margin"].allowed == "above 0"


def test_an_unknown_method_is_answered_with_near_names_and_the_list(values, bound):
    found = faults(bound, changed(values, "method", {"name": "skipdecod"}))
    [fault] = found.values()
    assert fault.where == "+method=NAME"
    assert "near: skipdecode" in fault.allowed
    assert "dense, " in fault.allowed


def test_no_method_at_all_is_told(values, bound):
    with pytest.raises(FaultsError, match=r"got:     nothing\n  allowed: calm, dense, "):
        bound({**values, "method": {"name": None}})


def test_an_unknown_task_is_answered_with_near_names_and_the_list(values, bound):
    found = faults(bound, changed(values, "task.name", "dem"))
    [fault] = found.values()
    assert "near: demo" in fault.got
    assert {"demo", "e2e"} <= set(fault.allowed.split(", "))


def test_faults_of_method_and_task_are_told_together(values, bound):
    broken = changed(changed(values, "task.name", "dem"), "method.name", "skipdecod")
    assert len(faults(bound, broken)) == 2


SHAPE = {
    "family": "opt",
    "num_layers": 2,
    "width": 8,
    "num_heads": 2,
    "ffn_width": 16,
    "vocab_size": 300,
    "max_positions": 64,
}


def test_a_shape_is_completed_from_its_family():
    shape = ModelConfig("own", SHAPE).configured_shape()
    assert (shape.head_dim, shape.norm, shape.eos_token_ids) == (4, "layernorm", ())


@pytest.mark.parametrize(
    ("key", "value"),
    [("widht", 8), ("num_layers", "two"), ("family", "gpt"), ("eos_token_ids", [2.5])],
)
def test_a_fault_in_a_shape_has_its_full_key(key, value):
    with pytest.raises(FaultsError) as caught:
        ModelConfig("own", SHAPE | {key: value}).configured_shape()
    assert any(f"model.shape.{key}" in fault.where for fault in caught.value.faults)
    assert all(isinstance(fault, InputError) for fault in caught.value.faults)


def test_a_missing_size_of_a_shape_is_told():
    given = {key: value for key, value in SHAPE.items() if key != "ffn_width"}
    with pytest.raises(FaultsError, match=r"Setting model\.shape\.ffn_width is missing"):
        ModelConfig("own", given).configured_shape()
