"""Which calibration a run takes, what is refused, and what may be asked of a calibration."""

import json
from dataclasses import replace

import pytest

from bench import calibrated
from bench.binding import bind
from bench.calibration_settings import CalibrateConfig
from bench.calibration_store import Calibration, complete_ones, folder_of
from bench.errors import FaultsError, InputError
from bench.planning import plan
from bench.schema import SCHEMA_VERSION
from bench.scores import bleu, rouge_l, slot_error_rate
from bench.scores.contract import quality, similarity
from bench.tasks.contract import Example
from bench.tasks.demo import Params, Task

ASKED = "method.threshold=calibrated"


@pytest.fixture
def running(configured, tmp_path):
    """``running(*overrides)``: a run on the test split with a calibrated threshold."""
    given = ("+method=calm", "model.weights=random", "gpu=cpu", "task.limit=2", "task.split=test")
    return lambda *more: configured(*given, ASKED, f"results_dir={tmp_path}", *more)


@pytest.fixture
def calibrate(running, configured, tmp_path):
    """``calibrate(id, *overrides, **fields)``: puts a calibration of such a run on record."""

    def make(calibration_id, *overrides, **fields):
        config = running(*overrides)
        never = replace(config.method, params=replace(config.method.params, threshold="never"))
        names = plan(replace(config, method=never)).identity
        known = complete_ones(tmp_path)
        record = Calibration(
            schema_version=SCHEMA_VERSION,
            calibration_id=calibration_id,
            number=len(known) + 1,
            setting="threshold",
            promise=calibrated.promise(config, names, "threshold"),
            threshold=0.75,
            tested=[],
            thresholds=[0.75],
            score="rouge_l",
            split="validation",
            examples="0123",
            n=40,
            smallest_n=29,
        )
        folder = folder_of(tmp_path, calibration_id)
        folder.path.mkdir(parents=True)
        folder.complete(replace(record, **fields))
        return folder

    return make


def refusal(config):
    with pytest.raises(InputError) as caught:
        plan(config)
    return caught.value


ONE, TWO, THREE = "0" * 12, "1" * 12, "2" * 12


def test_the_newest_that_fits_is_taken_whatever_its_id(running, calibrate):
    calibrate(TWO, threshold=0.9)
    calibrate(ONE, threshold=0.6)
    planned = plan(running())
    assert planned.calibration.calibration_id == ONE
    assert planned.identity["method"]["threshold"] == 0.6
    assert planned.known["calibrated_threshold"] == 0.6


def test_none_accepted_is_to_never_exit(running, calibrate):
    calibrate(ONE, threshold=None)
    assert plan(running()).identity["method"]["threshold"] == "never"


def test_a_run_that_asks_for_none_needs_none(running, calibrate):
    calibrate(ONE)
    planned = plan(running("method.threshold=0.5"))
    assert planned.calibration is None
    assert planned.identity["method"]["threshold"] == 0.5


def test_without_a_calibration_the_command_that_makes_one_is_named(running):
    error = refusal(running("method.decay=4", "calibrate.objective=risk"))
    assert "no calibration in" in error.got
    for words in (
        "python -m bench +method=calm action=calibrate",
        "method.decay=4",
        "model=tiny",
        "task=demo",
        "meter.batch_size=8",
        "calibrate.objective=risk",
        "calibrate.delta=0.1",
    ):
        assert words in error.allowed
    assert "calibrated" not in error.allowed
    assert "method.threshold" in error.where


# What a calibration decoded with and the run does not, and the key that tells it.
UNLIKE = {
    "method.decay=4": "method.decay=4.0 (here None)",
    "method.measure=state": "method.measure=state (here softmax)",
    "method.batch_policy=all": "method.batch_policy=all (here rows)",
    "meter.batch_size=4": "meter.batch_size=4 (here 8)",
    "engine.dtype=bfloat16": "engine.dtype=bfloat16 (here float32)",
    "decode.max_new_tokens=20": "decode.max_new_tokens=20 (here 96)",
    "decode.length=fixed": "decode.length=fixed (here until_eos)",
    "seed=1": "weights.method=random:1",
    "calibrate.delta=0.2": "calibrate.delta=0.2 (here 0.1)",
    "calibrate.epsilon=0.1": "calibrate.epsilon=0.1 (here 0.05)",
    "calibrate.objective=risk": "calibrate.objective=risk (here textual)",
}


@pytest.mark.parametrize("override", UNLIKE)
def test_one_of_another_pipeline_is_refused_with_what_differs(override, running, calibrate):
    calibrate(ONE, override)
    error = refusal(running())
    assert UNLIKE[override] in error.got
    assert ONE in error.got
    # With the same it is found.
    assert plan(running(override)).calibration.calibration_id == ONE


def test_what_bears_on_no_text_may_differ(running, calibrate):
    calibrate(ONE)
    for same in ("meter.repeats=5", "engine.packed=off", "task.limit=3", "calibrate.step=0.1"):
        assert plan(running(same)).calibration.calibration_id == ONE, same


def test_the_nearest_is_told(running, calibrate):
    calibrate(ONE, "method.decay=4", "meter.batch_size=4")
    calibrate(TWO, "meter.batch_size=4")
    assert TWO in refusal(running()).got


def test_a_run_on_the_calibration_prompts_is_refused_unless_asked_for(running, calibrate):
    calibrate(ONE)
    error = refusal(running("task.split=validation"))
    assert "task.split=validation" in error.got
    assert "calibrate.same_split=true" in error.allowed
    on_purpose = plan(running("task.split=validation", "calibrate.same_split=true"))
    assert on_purpose.calibration.calibration_id == ONE
    # One of another split goes before, even an older one.
    calibrate(TWO, split="test")
    assert plan(running()).calibration.calibration_id == ONE
    assert plan(running("task.split=validation")).calibration.calibration_id == TWO


def test_one_that_is_not_complete_or_was_set_aside_is_not_taken(running, calibrate, tmp_path):
    folder = calibrate(ONE)
    folder.set_aside()
    assert (tmp_path / "calibrations" / f"{ONE}.1").is_dir()
    folder_of(tmp_path, TWO).path.mkdir()
    assert complete_ones(tmp_path) == []
    assert "no calibration in" in refusal(running()).got


def test_a_damaged_one_and_one_of_a_newer_suite_are_told(running, calibrate):
    path = calibrate(ONE).path / "calibration.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"schema_version": SCHEMA_VERSION + 1}))
    assert "newer" in refusal(running()).failed
    path.write_text("{")
    assert str(path) in refusal(running()).got


# ---- what is asked ----


def config_of(**changes):
    given = {
        "objective": "textual",
        "delta": 0.1,
        "epsilon": 0.05,
        "step": 0.05,
        "thresholds": None,
        "split": "validation",
        "limit": None,
        "same_split": False,
    }
    return bind(CalibrateConfig, given | changes, "calibrate", [])


def test_a_step_gives_thresholds_from_1_down_to_0():
    assert config_of(step=0.25).ladder() == (1.0, 0.75, 0.5, 0.25, 0.0)
    fine = config_of().ladder()
    assert len(fine) == 21
    assert (fine[0], fine[3], fine[-1]) == (1.0, 0.85, 0.0)
    # One that does not divide 1 ends above 0.
    assert config_of(step=0.3).ladder() == (1.0, 0.7, 0.4, 0.1)
    assert config_of(step=0.3, thresholds=[0.9, 0.2]).ladder() == (0.9, 0.2)


@pytest.mark.parametrize("thresholds", [[], [0.5, 0.9], [0.9, 0.9], [1.2, 0.9], [0.9, -0.1]])
def test_thresholds_out_of_order_are_refused(thresholds):
    (fault,) = config_of(thresholds=thresholds).faults()
    assert fault.where == "calibrate.thresholds"
    assert config_of(thresholds=[0.9, 0.5]).faults() == []


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("calibrate.delta=0", "too small"),
        ("calibrate.delta=1", "too large"),
        ("calibrate.epsilon=1.5", "too large"),
        ("calibrate.step=0", "too small"),
        ("calibrate.step=2", "too large"),
        ("calibrate.limit=0", "too small"),
    ],
)
def test_levels_out_of_range_are_refused(override, what, configured):
    with pytest.raises(FaultsError) as caught:
        configured("+method=calm", override)
    (fault,) = caught.value.faults
    assert fault.where == override.split("=")[0]
    assert what in fault.failed


def test_a_step_of_1_is_allowed(configured):
    assert configured("+method=calm", "calibrate.step=1").calibrate.ladder() == (1.0, 0.0)


# ---- one text alone ----


def test_a_quality_is_a_share_and_higher_is_better():
    example = Example("0", "", ("the hut has eight beds",))
    assert quality(rouge_l, "the hut has eight beds", example) == pytest.approx(1.0)
    # 4 words of 4 and of 5.
    assert quality(rouge_l, "the hut has beds", example) == pytest.approx(2 * 4 / 9)
    assert quality(rouge_l, "", example) == 0.0
    assert 0 <= quality(bleu, "the hut has beds", example) <= 1
    (demo,) = Task(Params(1)).examples("validation")[:1]
    right, wrong = demo.references[0], "Nothing is known."
    assert quality(slot_error_rate, right, demo) == 1.0
    assert quality(slot_error_rate, wrong, demo) == 0.0


def test_a_similarity_reads_the_other_text_alone():
    example = Example("0", "", ("something else",))
    assert similarity(rouge_l, "a b c", "a b d", example) == pytest.approx(2 / 3)
    assert similarity(rouge_l, "something else", "a b", example) == 0.0
    # Equal texts without a word: 1, though the score finds nothing to count.
    assert quality(rouge_l, "", replace(example, references=("",))) == 0.0
    assert similarity(rouge_l, "", "", example) == 1.0
