"""A run that is taken up: what stands, what is measured anew, and what its log says."""

import pytest

from bench import provenance, store
from bench.measure import Measurer
from bench.run import run

BATCHES, TIMED = 4, 2


@pytest.fixture
def config(configured, tiny_model, tmp_path):
    return configured(
        "+method=skipdecode",
        *tiny_model,
        "model.weights=random",
        "task.train_pairs=50",
        f"task.limit={BATCHES}",
        "decode=fixed",
        "decode.max_new_tokens=4",
        "meter.batch_size=1",
        f"meter.timed_batches={TIMED}",
        "meter.warmups=0",
        "meter.repeats=1",
        "verbosity=quiet",
        f"results_dir={tmp_path}",
    )


@pytest.fixture
def stopped(config, monkeypatch, tmp_path):
    """The attempt of a run that the user stops before its fourth batch."""
    batch = Measurer.batch

    def stopping(measurer, index, *given):
        if index == BATCHES - 1:
            raise KeyboardInterrupt
        return batch(measurer, index, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Measurer, "batch", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(config)
    [attempt] = [store.Attempt(path.parent) for path in tmp_path.glob("*/1/start.json")]
    return attempt


def lines(attempt):
    return (attempt.folder / "batches.jsonl").read_text(encoding="utf-8").splitlines()


def on_another_cpu(monkeypatch):
    collect = provenance.collect
    other = {"cpu_model": "another"}
    monkeypatch.setattr(provenance, "collect", lambda device: collect(device) | other)


def test_a_run_that_was_stopped_is_no_failure(stopped):
    assert stopped.status() == "stopped"
    assert [record.segment for record in stopped.batches()] == [0, 0, 0]


def test_on_the_same_machine_it_goes_on_at_the_first_batch_without_a_record(config, stopped):
    before = lines(stopped)
    run(config)
    assert lines(stopped)[:-1] == before
    assert [record.segment for record in stopped.batches()] == [0, 0, 0, 1]
    assert len(stopped.segments()) == 2


def test_on_another_machine_times_start_anew_and_quality_stays(config, stopped, monkeypatch):
    before = lines(stopped)
    on_another_cpu(monkeypatch)
    run(config)
    assert lines(stopped)[: len(before)] == before
    assert [record.segment for record in stopped.batches()] == [1, 1, 0, 1]
    assert stopped.header().num_batches == BATCHES
    assert stopped.header().columns["speedup"] is not None


def test_times_of_an_unknown_machine_are_taken_anew(config, stopped):
    (stopped.folder / "segments.jsonl").unlink()
    before = lines(stopped)
    run(config)
    # Two timed batches anew and the one that was missing, behind what was there.
    assert lines(stopped)[: len(before)] == before
    assert len(lines(stopped)) == len(before) + TIMED + 1


def test_the_log_tells_every_batch_and_what_ended_a_process(config, stopped):
    run(config)
    text = stopped.log.read_text(encoding="utf-8")
    for told in ("segment 0", "batch 3 of 4", "KeyboardInterrupt", "Traceback", "segment 1"):
        assert told in text
    assert text.index("Traceback") < text.index("segment 1") < text.index("batch 4 of 4")
