"""Which settings make another run, field by field, and which do not."""

from dataclasses import asdict, fields, is_dataclass, replace

import pytest

from bench.identity import digest, identity, without_added
from bench.planning import plan

GIVEN = {
    "device": "cpu",
    "weights": {"method": "sha256:aa", "baseline": "sha256:bb"},
    "resolved": {"preset": "2x", "max_layers": 8, "schedule_length": 40},
    "examples": "0123",
}
# Where and how loudly a run is made, and what stands in the identity by its effect alone: the
# weights' fingerprint, the resolved settings, the hash of the examples, the limit in force.
WITHOUT_EFFECT = {
    "action",
    "results_dir",
    "rerun",
    "verbosity",
    "meter.margin",
    # Only where tokens are drawn.
    "decode.temperature",
    "decode.top_k",
    "decode.top_p",
    "method.params",
    "method.changed",
    "task.limit",
    "task.params",
}
GROUPS_WITHOUT_EFFECT = {"model", "train", "calibrate", "gpu", "launch", "tracking"}


@pytest.fixture(scope="module")
def config(configured):
    return configured("+method=skipdecode")


def run_id(config, **changes):
    return digest(identity(config, **GIVEN | changes))


def leaves(config, prefix=""):
    """Keys of all values of a configuration; params of methods and tasks are one each."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value) and each.name != "params":
            yield from leaves(value, f"{prefix}{each.name}.")
        else:
            yield prefix + each.name


def other(value):
    """Some other value."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return 7 if value is None else f"other than {value}"


def with_changed(config, key):
    first, _, rest = key.partition(".")
    value = getattr(config, first)
    return replace(config, **{first: with_changed(value, rest) if rest else other(value)})


def bears(key):
    return key not in WITHOUT_EFFECT and key.split(".")[0] not in GROUPS_WITHOUT_EFFECT


def test_every_field_bears_on_the_id_or_is_listed_as_one_that_does_not(config):
    keys = list(leaves(config))
    assert len(keys) > 40
    assert set(keys) >= WITHOUT_EFFECT
    changing = {key for key in keys if run_id(with_changed(config, key)) != run_id(config)}
    assert changing == {key for key in keys if bears(key)}
    assert changing >= {
        "seed",
        "method.name",
        "task.name",
        "task.split",
        "task.max_new_tokens",
        "meter.batch_size",
        "meter.repeats",
        "decode.length",
        "decode.max_new_tokens",
        "engine.dtype",
        "engine.packed",
    }


@pytest.mark.parametrize("setting", ["temperature", "top_k", "top_p"])
def test_how_tokens_are_drawn_bears_on_the_id_where_they_are(config, setting):
    drawn = with_changed(replace(config, decode=replace(config.decode, choose="sample")), "seed")
    assert run_id(with_changed(drawn, f"decode.{setting}")) != run_id(drawn)


OTHER_FACTS = {
    "a method's setting": {"resolved": GIVEN["resolved"] | {"preset": "4x"}},
    "a completed setting": {"resolved": GIVEN["resolved"] | {"schedule_length": 41}},
    "the method's weights": {"weights": GIVEN["weights"] | {"method": "sha256:cc"}},
    "the baseline's weights": {"weights": GIVEN["weights"] | {"baseline": "sha256:cc"}},
    "no baseline": {"weights": {"method": "sha256:aa"}},
    "the examples": {"examples": "4567"},
    "the device": {"device": "nvidia-h200"},
}


@pytest.mark.parametrize("name", OTHER_FACTS)
def test_other_facts_make_another_run(name, config):
    assert run_id(config, **OTHER_FACTS[name]) != run_id(config)


def test_the_same_limit_is_the_same_run_wherever_it_is_set(configured):
    of_task = configured("+method=skipdecode", "task.max_new_tokens=50")
    of_decode = configured("+method=skipdecode", "decode.max_new_tokens=50")
    assert run_id(of_task) == run_id(of_decode)


def test_the_digest_does_not_depend_on_the_order_of_keys():
    one = {"b": {"x": 1, "y": [1, 2]}, "a": None}
    two = {"a": None, "b": {"y": [1, 2], "x": 1}}
    assert list(one) != list(two)
    assert digest(one) == digest(two)
    assert digest(one) != digest({**one, "a": 0})


def test_the_digest_depends_on_the_order_of_lists():
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})


def test_the_digest_of_known_data_stays_the_same():
    # Ids stand in records on disk: a change here orphans every result.
    assert digest({"a": 1, "b": [True, None, "x"]}) == "eca8cfb31ab7"


def test_the_identity_is_plain_data(config):
    names = identity(config, **GIVEN)
    assert names["identity_version"] == 1
    assert names["method"]["name"] == "skipdecode"
    # What came later is left out while it has its old value.
    later = {"profile", "energy", "margin"}
    assert names["meter"] == {k: v for k, v in asdict(config.meter).items() if k not in later}


def test_a_field_added_with_its_old_value_changes_no_id(config):
    old = identity(config, **GIVEN)
    for path in ("energy", "meter.energy", "method.new_setting"):
        group, _, name = path.rpartition(".")
        new = {**old, group: {**old[group], name: "off"}} if group else {**old, name: "off"}
        assert digest(new) != digest(old)
        assert digest(without_added(new, {path: "off"})) == digest(old)
        assert digest(without_added(new, {path: "on"})) == digest(new)


@pytest.fixture
def planned_id(configured):
    """``planned_id(*overrides)``: the id that a plan gives, of random weights."""
    given = ("+method=dense", "model.weights=random", "task.limit=2", "gpu=cpu")
    return lambda *overrides: plan(configured(*given, *overrides)).run_id


def test_random_weights_of_another_shape_are_another_run(planned_id):
    ids = {planned_id(f"model={name}") for name in ("tiny", "opt125m", "opt350m")}
    assert len(ids | {planned_id("model=tiny", "model.shape.num_layers=6")}) == 4
    assert planned_id("model=tiny") in ids


def test_another_tokenizer_is_another_run(planned_id, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    first = planned_id("model=tiny", f"model.tokenizer={tmp_path}")
    assert first != planned_id("model=tiny")
    (tmp_path / "tokenizer.json").write_text("{ }")
    assert planned_id("model=tiny", f"model.tokenizer={tmp_path}") != first
