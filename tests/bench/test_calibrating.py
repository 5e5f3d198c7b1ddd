"""A calibration from the command to the run that uses it: recorded, resumed, found again."""

import json
from dataclasses import replace

import pytest

from bench import calibrating, calibration_report, door, store
from bench.calibration_plan import plan_calibration
from bench.calibration_store import complete_ones
from bench.doctor import examine
from bench.errors import InputError
from bench.planning import plan
from bench.run import run

CALM = "+method=calm"
# 6 prompts in batches of 4 and 2; at these levels 3 would do.
PROMPTS, BATCHES, LADDER = 6, 2, (1.0, 0.5, 0.0)
LEAST = 3


@pytest.fixture
def settings(tmp_path):
    """Overrides of a run of the embedded model, and of its calibration."""
    return (
        CALM,
        *("gpu=cpu", "decode.max_new_tokens=12", "meter.batch_size=4"),
        *("calibrate.delta=0.5", "calibrate.epsilon=0.2", f"calibrate.limit={PROMPTS}"),
        f"calibrate.thresholds=[{','.join(map(str, LADDER))}]",
        *("task.limit=4", "meter.repeats=1", "verbosity=quiet", f"results_dir={tmp_path / 'runs'}"),
    )


@pytest.fixture
def calibration(configured, settings):
    """``calibration(*overrides)``: what ``action=calibrate`` would do."""
    return lambda *more: plan_calibration(configured(*settings, "action=calibrate", *more))


@pytest.fixture
def calibrated_run(configured, settings):
    """``calibrated_run(*overrides)``: a run on the other split."""
    given = ("method.threshold=calibrated", "task.split=test")
    return lambda *more: configured(*settings, *given, *more)


@pytest.fixture
def decoded(monkeypatch):
    """(leg, batch) of all that is decoded, as it is."""
    seen = []

    class Watched(calibrating.Measurer):
        def batch(self, index, examples, rows, first=0):
            (leg,) = self.runners
            seen.append((leg, index))
            assert first == 4 * index
            return super().batch(index, examples, rows, first)

    monkeypatch.setattr(calibrating, "Measurer", Watched)
    return seen


def lines(folder, name="parts.jsonl"):
    return [json.loads(line) for line in (folder.path / name).read_text().splitlines()]


@pytest.mark.parametrize("objective", ["textual", "risk"])
def test_what_was_decoded_and_found_is_recorded(objective, calibration, decoded):
    wanted = calibration(f"calibrate.objective={objective}")
    record = calibrating.make(wanted)
    assert replace(wanted.folder.record(), config={}) == replace(record, config={})
    assert record.calibration_id == wanted.calibration_id == wanted.folder.path.name
    assert (record.n, record.split, record.score) == (PROMPTS, "validation", "rouge_l")
    assert record.smallest_n == LEAST
    assert [each.threshold for each in record.tested] == list(LADDER)[: len(record.tested)]
    # The full model first, then no threshold behind the first that failed.
    walked = len(record.tested)
    assert decoded == [
        *(("baseline", batch) for batch in range(BATCHES)),
        *(("method", batch) for _ in range(walked) for batch in range(BATCHES)),
    ]
    parts = lines(wanted.folder)
    assert [len(part["texts"]) for part in parts] == [4, 2] * (1 + walked)
    for each in record.tested:
        of = [part["losses"] for part in parts if part["threshold"] == each.threshold]
        losses = [loss for losses in of for loss in losses]
        assert len(losses) == PROMPTS
        assert sum(losses) / PROMPTS == pytest.approx(each.mean_loss)
    # Whoever is never sure enough says what the full model says; whoever always is does not.
    losses = [each.mean_loss for each in record.tested]
    assert losses[0] == 0 < losses[-1]
    assert len(parts[0]["qualities"]) == (4 if objective == "risk" else 0)


class KilledError(Exception):
    pass


def test_a_killed_one_goes_on_at_the_first_batch_that_is_not_there(
    calibration, decoded, monkeypatch
):
    whole = calibrating.make(calibration("seed=7"))
    ran = list(decoded)
    calibration("seed=7").folder.set_aside()
    decoded.clear()
    watched = calibrating.Measurer.batch

    def kill(self, *given):
        if len(decoded) == 3:
            raise KilledError
        return watched(self, *given)

    monkeypatch.setattr(calibrating.Measurer, "batch", kill)
    with pytest.raises(KilledError):
        calibrating.make(calibration("seed=7"))
    folder = calibration("seed=7").folder
    assert folder.record() is None
    path = folder.path / "parts.jsonl"
    # The fourth line is torn.
    path.write_bytes(path.read_bytes() + b'{"threshold": 1.0, "ba')
    monkeypatch.setattr(calibrating.Measurer, "batch", watched)
    record = calibrating.make(calibration("seed=7"))
    assert decoded == ran
    assert record.tested == whole.tested
    assert record.threshold == whole.threshold


def test_a_risk_is_what_the_full_model_has_and_the_early_text_has_not(calibration):
    wanted = calibration("calibrate.objective=risk", "calibrate.delta=0.9")
    calibrating.make(wanted)
    parts = lines(wanted.folder)
    full = {part["batch"]: part["qualities"] for part in parts if part["threshold"] is None}
    losses = []
    for part in parts[BATCHES:]:
        pairs = zip(full[part["batch"]], part["qualities"], strict=True)
        assert part["losses"] == pytest.approx([max(0, best - early) for best, early in pairs])
        losses += part["losses"]
    assert max(losses) > 0.1


def test_the_id_is_of_all_that_bears_on_it_and_of_nothing_else(calibration):
    first = calibration().calibration_id
    for same in ("method.threshold=0.3", "task.limit=2", "task.split=test", "meter.repeats=2"):
        assert calibration(same).calibration_id == first, same
    others = (
        "calibrate.objective=risk",
        "calibrate.delta=0.4",
        "calibrate.limit=5",
        "calibrate.split=test",
        "calibrate.thresholds=[0.5]",
        "method.decay=4",
        "method.batch_policy=all",
        "meter.batch_size=2",
        "decode.max_new_tokens=13",
        "engine.dtype=bfloat16",
        "seed=1",
    )
    ids = {calibration(other).calibration_id for other in others}
    assert len(ids | {first}) == len(others) + 1


def test_one_that_is_done_is_shown_and_kept_if_made_again(calibration, capsys):
    wanted = calibration("verbosity=normal")
    assert not calibration_report.show_if_done(wanted)
    record = calibrating.make(wanted)
    capsys.readouterr()
    assert calibration_report.show_if_done(wanted)
    shown = capsys.readouterr()
    assert "already done" in shown.err
    assert f"calibration {record.calibration_id}" in shown.out
    assert "0.5" in shown.out
    assert "method.threshold=calibrated task.split=test" in shown.out
    again = calibration("rerun=true", "verbosity=quiet")
    assert not calibration_report.show_if_done(again)
    aside = wanted.folder.path.with_name(f"{record.calibration_id}.1")
    assert (aside / "calibration.json").exists()
    assert calibrating.make(again).tested == record.tested
    assert [each.number for each in complete_ones(wanted.folder.path.parent.parent)] == [1]


def test_too_few_prompts_are_refused_with_the_least_number(calibration, tmp_path):
    with pytest.raises(InputError) as caught:
        calibration(f"calibrate.limit={LEAST - 1}")
    assert f"{LEAST - 1} prompts" in caught.value.got
    assert f"at least {LEAST} prompts" in caught.value.allowed
    assert calibration(f"calibrate.limit={LEAST}")
    assert not (tmp_path / "runs").exists()


def test_a_method_without_a_threshold_has_nothing_to_calibrate(calibration, configured):
    with pytest.raises(InputError) as caught:
        plan_calibration(configured("+method=dense", "action=calibrate"))
    assert caught.value.got == "dense"
    assert "calm" in caught.value.allowed.split(", ")
    assert "dense" not in caught.value.allowed


def test_a_calibrated_run_has_the_threshold_and_names_where_it_is_from(
    calibration, calibrated_run, configured, settings
):
    record = calibrating.make(calibration())
    planned = plan(calibrated_run())
    # None accepted is a value too.
    value = "never" if record.threshold is None else record.threshold
    assert planned.identity["method"]["threshold"] == value
    by_hand = configured(*settings, f"method.threshold={value}", "task.split=test")
    assert planned.run_id == plan(by_hand).run_id
    header = run(calibrated_run()).header()
    assert header.columns["setting"] == f"threshold=calibrated:{value}@{record.calibration_id}"
    # Neither the table of runs nor the doctor takes calibrations for runs.
    results = calibration().folder.path.parent.parent
    assert [each.folder.parent.name for each in store.listed(results)] == [planned.run_id]
    assert examine(results) == []


def test_the_doctor_tells_a_damaged_calibration(calibration):
    wanted = calibration()
    calibrating.make(wanted)
    (wanted.folder.path / "calibration.json").write_text('{"schema_version": 1}')
    (finding,) = examine(wanted.folder.path.parent.parent)
    assert finding.path == wanted.folder.path
    assert "rm -r" in finding.mend


def test_the_door_calibrates_once(monkeypatch, configured, settings, capsys):
    config = configured(*settings, "action=calibrate", "verbosity=normal")
    door._act(config)
    assert "accepted" in capsys.readouterr().out
    monkeypatch.setattr(calibrating, "make", lambda wanted: pytest.fail("it was done before"))
    door._act(config)
    assert "already done" in capsys.readouterr().err


def test_a_loss_is_of_the_texts_and_not_of_the_ids(calibration, monkeypatch):
    """Equal texts are no distance apart, even empty ones, which no score of words can tell."""
    original = calibrating.measuring_plan
    monkeypatch.setattr(
        calibrating,
        "measuring_plan",
        lambda prepared: replace(original(prepared), decode_text=lambda ids: ""),
    )
    record = calibrating.make(calibration())
    assert [each.mean_loss for each in record.tested] == [0.0] * len(LADDER)
    assert record.threshold == LADDER[-1]


def test_a_p_value_is_that_of_the_mean_loss(calibration):
    first = calibrating.make(calibration()).tested[0]
    # At a loss of 0: the chance that as many coins of delta all fall one way.
    assert (first.mean_loss, first.p_value) == (0.0, pytest.approx(0.5**PROMPTS))
