"""Runs that differ are refused by name: planted differences, one at a time, in records by hand."""

from dataclasses import replace

import pytest

from bench import gate
from bench.errors import InputError
from bench.meters.clock import Timing
from bench.schema import SCHEMA_VERSION, BatchRecord, Leg, Segment, Start
from bench.store import Attempt
from methods.engine.ledger import Sums

PROVENANCE = {
    "git_revision": "a" * 40,
    "git_dirty": False,
    "packages": {"torch": "2.4.0", "transformers": "4.44.0"},
    "python": "3.11.9",
    "cpu_model": "EPYC",
    "threads": 2,
    "device": "cuda",
    "device_name": "A100",
    "driver": "550.54",
    "environment": {"OMP_WAIT_POLICY": None},
    "hostname": "node1",
}
IDENTITY = {
    "method": {"name": "skipdecode", "target": 4},
    "weights": {"method": "sha256:own", "baseline": "sha256:dense"},
    "task": {"name": "demo", "split": "test", "examples": "0123"},
    "decode": {"length": "until_eos", "max_new_tokens": 64, "choose": "greedy"},
    "meter": {"batch_size": 2, "warmups": 1, "repeats": 1, "timed_batches": 2},
    "engine": {"dtype": "float32", "packed": "auto"},
    "gpu": "a100",
    "seed": 0,
}
START = Start(
    schema_version=SCHEMA_VERSION,
    run_id="0a1b",
    attempt=1,
    identity=IDENTITY,
    config={"model": {"name": "tiny"}},
    columns={},
    shapes={"method": {"num_layers": 4, "width": 8, "pad_token_id": 1}},
    started_at="2026-01-01T00:00:00+00:00",
)
SEGMENT = Segment(PROVENANCE, "2026-01-01T00:00:00+00:00")


def _batch(index, *, timed=True, segment=0, ids=("a", "b"), prompt_tokens=(9, 11)):
    leg = Leg(
        ids=[[5, 6, 2], [7, 8]],
        texts=["", ""],
        layers=[[4, 4, 4], [4, 4]],
        statistics={},
        scores={},
        timings=[Timing(0.1, 0.2)] if timed else [],
        rounds=3,
        prompt_executed=Sums(),
        decode_executed=Sums(),
        decode_required=Sums(),
    )
    names = [f"{name}{index}" for name in ids]
    return BatchRecord(index, names, list(prompt_tokens), {"method": leg}, [["method"]], segment)


BATCHES = [_batch(0), _batch(1), _batch(2, timed=False)]


def _with(mapping, path, value):
    """A copy with one value changed; dots lead into groups."""
    name, _, rest = path.partition(".")
    return {**mapping, name: _with(mapping[name], rest, value) if rest else value}


def _conditions(*, start=START, segments=(SEGMENT,), batches=BATCHES):
    return gate.conditions(start, segments, batches)


def _other(**changed):
    """The conditions of a second run, with changes by path: identity, provenance, shape."""
    start, segment = replace(START, run_id="2c3d"), SEGMENT
    for kind, (path, value) in changed.items():
        if kind == "identity":
            start = replace(start, identity=_with(IDENTITY, path, value))
        elif kind == "shape":
            start = replace(start, shapes={"method": _with(START.shapes["method"], path, value)})
        else:
            segment = replace(segment, provenance=_with(PROVENANCE, path, value))
    return _conditions(start=start, segments=(segment,))


PLANTED = {
    "device": {"provenance": ("device", "cpu")},
    "device_name": {"provenance": ("device_name", "H100")},
    "driver": {"provenance": ("driver", "535.12")},
    "cpu_model": {"provenance": ("cpu_model", "Xeon")},
    "threads": {"provenance": ("threads", 4)},
    "OMP_WAIT_POLICY": {"provenance": ("environment.OMP_WAIT_POLICY", "PASSIVE")},
    "git_revision": {"provenance": ("git_revision", "b" * 40)},
    "git_dirty": {"provenance": ("git_dirty", True)},
    "torch": {"provenance": ("packages.torch", "2.5.0")},
    "python": {"provenance": ("python", "3.12.1")},
    "engine.dtype": {"identity": ("engine.dtype", "bfloat16")},
    "engine.packed": {"identity": ("engine.packed", "off")},
    "engine.drop_finished": {"identity": ("engine.drop_finished", True)},
    "engine.cuda_graphs": {"identity": ("engine.cuda_graphs", "on")},
    "meter.batch_size": {"identity": ("meter.batch_size", 8)},
    "task.name": {"identity": ("task.name", "e2e")},
    "task.examples": {"identity": ("task.examples", "4567")},
    "decode.max_new_tokens": {"identity": ("decode.max_new_tokens", 128)},
    "decode.choose": {"identity": ("decode.choose", "sample")},
    "decode.length": {"identity": ("decode.length", "fixed")},
    "checkpoint": {"identity": ("weights.baseline", "sha256:another")},
    "weights": {"identity": ("weights.method", "sha256:another")},
    "model.tokenizer": {"identity": ("weights.tokenizer", "sha256:another")},
    "shape.width": {"shape": ("width", 16)},
}


@pytest.mark.parametrize("field", PLANTED)
def test_a_planted_difference_is_refused_with_its_name_and_both_values(field):
    found = gate.differences(_conditions(), _other(**PLANTED[field]))
    assert [each.field for each in found] == [field]
    with pytest.raises(InputError, match="cannot be compared") as refused:
        gate.refuse(found)
    (_, value), *_ = PLANTED[field].values()
    assert refused.value.got.startswith(f"{field}: ")
    assert str(value)[:40] in refused.value.got
    assert "equal" in refused.value.allowed
    assert gate.OVERRIDE in refused.value.where


@pytest.mark.parametrize(
    ("field", "batches", "values"),
    [
        (
            "example_ids",
            [BATCHES[0], _batch(1, ids=("a", "x")), BATCHES[2]],
            ("batch 1: a1 b1", "batch 1: a1 x1"),
        ),
        (
            "prompt_tokens",
            [BATCHES[0], BATCHES[1], _batch(2, prompt_tokens=(9, 12))],
            ("batch 2: 9 11", "batch 2: 9 12"),
        ),
    ],
)
def test_prompts_are_compared_batch_by_batch(field, batches, values):
    found = gate.differences(_conditions(), _conditions(batches=batches))
    assert found == [gate.Difference(field, *values)]
    with pytest.raises(InputError, match=field):
        gate.refuse(found)


def test_prompts_in_another_order_and_fewer_of_them_are_differences():
    swapped = [replace(BATCHES[0], example_ids=["b0", "a0"]), *BATCHES[1:]]
    assert gate.differences(_conditions(), _conditions(batches=swapped))[0].field == "example_ids"
    found = gate.differences(_conditions(), _conditions(batches=BATCHES[:2]))
    assert found[0] == gate.Difference("example_ids", "3 batches", "2 batches")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"identity": ("method.target", 2)},
        {"identity": ("seed", 1)},
        {"identity": ("gpu", "auto")},
        {"identity": ("meter.repeats", 5)},
        {"provenance": ("hostname", "node2")},
        {"provenance": ("packages.transformers", "4.45.0")},
        {"shape": ("pad_token_id", 0)},
    ],
    ids=lambda changed: next(iter(changed.values()), ("nothing",))[0],
)
def test_what_bears_on_no_time_is_no_difference(changed):
    found = gate.differences(_conditions(), _other(**changed))
    assert found == []
    gate.refuse(found)
    assert (gate.mark(found), gate.fields(found)) == ("", None)


def test_methods_may_differ_in_weights_that_were_trained_for_them():
    identity = _with(IDENTITY, "weights.method", "sha256:another")
    for path, value in (("method.name", "calm"), ("method.target", 2)):
        start = replace(START, identity=_with(identity, path, value))
        assert gate.differences(_conditions(), _conditions(start=start)) == []


def test_dense_alone_is_measured_against_its_own_weights():
    def alone(fingerprint):
        identity = IDENTITY | {"method": {"name": "dense"}, "weights": {"method": fingerprint}}
        return _conditions(start=replace(START, identity=identity))

    assert gate.differences(_conditions(), alone("sha256:dense")) == []
    (found,) = gate.differences(_conditions(), alone("sha256:another"))
    assert found == gate.Difference("checkpoint", "sha256:dense", "sha256:another")


def test_without_a_dense_leg_the_models_name_stands_for_the_checkpoint():
    def without(name):
        identity = IDENTITY | {"weights": {"method": "sha256:own"}}
        start = replace(START, identity=identity, config={"model": {"name": name}})
        return _conditions(start=start)

    assert gate.differences(without("tiny"), without("tiny")) == []
    for other in (without("opt125m"), _conditions()):
        found = gate.differences(without("tiny"), other)
        assert [each.field for each in found] == ["checkpoint"]


@pytest.mark.parametrize("path", ["driver", "device_name", "git_revision", "packages", "threads"])
def test_null_is_equal_to_null_and_differs_from_a_value(path):
    segment = replace(SEGMENT, provenance=_with(PROVENANCE, path, None))
    unknown = _conditions(segments=(segment,))
    assert gate.differences(unknown, unknown) == []
    for pair in ((unknown, _conditions()), (_conditions(), unknown)):
        found = gate.differences(*pair)
        assert [each.field for each in found] == ["torch" if path == "packages" else path]
        assert None in (found[0].mine, found[0].theirs)
        with pytest.raises(InputError, match="not known"):
            gate.refuse(found)


def test_uncommitted_changes_are_a_difference_even_on_both_sides():
    dirty = _conditions(
        segments=(replace(SEGMENT, provenance=_with(PROVENANCE, "git_dirty", True)),)
    )
    assert gate.differences(dirty, dirty) == [gate.Difference("git_dirty", True, True)]


def test_an_option_that_came_later_has_its_old_value_in_older_records(monkeypatch):
    monkeypatch.setattr(gate, "ADDED_LATER", {"engine.compile": False, "meter.energy": False})
    identity = IDENTITY | {"engine": IDENTITY["engine"] | {"compile": False}}
    same = _conditions(start=replace(START, identity=identity))
    assert gate.differences(_conditions(), same) == []
    identity = IDENTITY | {"engine": IDENTITY["engine"] | {"compile": True}}
    found = gate.differences(_conditions(), _conditions(start=replace(START, identity=identity)))
    assert found == [gate.Difference("engine.compile", False, True)]


def test_the_override_lets_pass_and_marks():
    found = gate.differences(
        _conditions(), _other(provenance=("threads", 4), identity=("engine.dtype", "bfloat16"))
    )
    gate.refuse(found, allow_unlike=True)
    assert gate.fields(found) == "threads, engine.dtype"
    assert gate.mark(found) == "! unlike: threads, engine.dtype"
    assert gate.explained(found) == "threads: 2 / 4; engine.dtype: float32 / bfloat16"


def test_the_two_stop_rules_never_meet_whatever_the_override():
    found = gate.differences(_conditions(), _other(**PLANTED["decode.length"]))
    with pytest.raises(InputError, match="until_eos / fixed") as refused:
        gate.refuse(found, allow_unlike=True)
    assert "does not let it pass" in refused.value.allowed


def test_all_differing_fields_are_named_at_once_and_long_values_are_cut():
    other = _other(provenance=("device_name", "H100 " * 40), identity=("decode.choose", "sample"))
    with pytest.raises(InputError) as refused:
        gate.refuse(gate.differences(_conditions(), other))
    assert "device_name: A100 / H100 H100" in refused.value.got
    assert "decode.choose: greedy / sample" in refused.value.got
    assert len(refused.value.got) < 200


def _segments(**changed):
    return (SEGMENT, replace(SEGMENT, provenance=PROVENANCE | changed))


def test_a_run_that_was_resumed_with_other_code_is_flagged_by_itself():
    batches = [_batch(0), _batch(1, segment=1), _batch(2, timed=False)]
    mixed = _conditions(segments=_segments(git_revision="b" * 40), batches=batches)
    assert [each.field for each in mixed.within] == ["git_revision"]
    found = gate.differences(_conditions(), mixed)
    assert [each.field for each in found] == ["git_revision within 0a1b"]
    with pytest.raises(InputError, match=r"git_revision within 0a1b: a+ / b+"):
        gate.refuse(found)


def test_only_segments_that_timed_a_batch_count():
    batches = [_batch(0), _batch(1), _batch(2, timed=False, segment=1)]
    resumed = _conditions(segments=_segments(device_name="H100"), batches=batches)
    assert (resumed.within, gate.differences(_conditions(), resumed)) == ((), [])


def test_a_segment_whose_record_was_lost_is_of_an_unknown_machine():
    lost = _conditions(batches=[_batch(0), _batch(1, segment=7)])
    assert "device_name" in {each.field for each in lost.within}


def test_records_from_the_store_have_the_conditions_of_those_that_were_written(tmp_path):
    attempt = Attempt(tmp_path / "0a1b" / "1")
    with attempt.claim():
        attempt.write_start(START)
        for record in (SEGMENT, *BATCHES):
            attempt.append(record)
    read = gate.conditions(attempt.start(), attempt.segments(), attempt.batches())
    assert read == _conditions()
