"""Whatever happens to a run or to W&B: records whole, one warning, and the same run completes it.

In this process, so that a fault strikes at a known moment; tests/endtoend has processes killed at
any moment.
"""

import os
import signal
import subprocess
from contextlib import suppress

import pytest
import torch

from bench import lock as locks
from bench import run as running
from bench.errors import InputError, InvalidRunError
from bench.measure import Measurer
from bench.planning import plan
from bench.session import Interrupted, Session
from bench.store import Attempt, next_attempt
from bench.tracking import actions, files, handover
from tests.tracked_runs import COMMAND, DEAD, Runs, batches_of, descendants, warnings

STRIKES = 3


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "runs")


@pytest.fixture
def config(configured, runs):
    """``config(*overrides)``: of the run."""
    given = ("+method=dense", *COMMAND, "tracking.wandb_mode=null", "verbosity=quiet")
    return lambda *more: configured(*given, f"results_dir={runs.results}", *more)


@pytest.fixture
def make(config, capsys):
    """``make(*overrides)``: makes the run here, and gives the warnings; or raises as it does."""

    def call(*more):
        handover.warn.cache_clear()
        capsys.readouterr()
        running.run(config(*more))
        return warnings(capsys.readouterr().err)

    return call


@pytest.fixture
def strike(monkeypatch):
    """``strike(work)``: ``work(measurer)`` once, before batch 3."""
    measured = Measurer.batch

    def plant(work):
        def batch(self, index, *given):
            if index == STRIKES:
                monkeypatch.setattr(Measurer, "batch", measured)
                work(self)
            return measured(self, index, *given)

        monkeypatch.setattr(Measurer, "batch", batch)

    return plant


@pytest.fixture
def fake_wandb(tmp_path, monkeypatch):
    """``fake_wandb(code)``: a package of that code in W&B's place, until ``unset``."""

    def plant(code):
        package = tmp_path / "fake" / "wandb"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    plant.unset = lambda: monkeypatch.delenv("PYTHONPATH")
    return plant


def out_of_memory(measurer):
    raise torch.OutOfMemoryError("planted")


def not_a_number(measurer):
    model = measurer.runners["method"].model
    head = model.head
    model.head = lambda *given, **named: head(*given, **named) * float("nan")


@pytest.mark.parametrize(
    ("fault", "error"),
    [(out_of_memory, torch.OutOfMemoryError), (not_a_number, InvalidRunError)],
    ids=["out of memory", "not a number"],
)
def test_a_run_that_cannot_go_on_fails_in_w_and_b_too_and_is_completed(
    fault, error, runs, make, strike
):
    strike(fault)
    with pytest.raises(error):
        make()
    assert runs.recorded() == STRIKES
    failed = runs.logged()
    assert (failed.exit_code, failed.summary["status"]) == (1, "failed")
    assert batches_of(failed.history) == list(range(STRIKES))
    before = runs.whole_lines()
    assert make() == []
    # What was measured stands, and the rest has batches of the same size.
    assert runs.whole_lines().startswith(before)
    runs.check_records()
    runs.check_one_whole_run()


def test_a_run_stopped_three_times_is_one_run(config, runs):
    class Stopped(Session):
        left = 2

        def check(self):
            self.left -= 1
            if not self.left:
                raise Interrupted

    def go_on(session):
        planned = plan(config())
        attempt = next_attempt(runs.results, planned.run_id, rerun=False)
        with handover.beside(attempt, config()) as settle:
            running.make(planned, attempt, settle, session)

    for stops in (1, 2, 3):
        with pytest.raises(Interrupted):
            go_on(Stopped())
        assert (runs.recorded(), runs.files()) == (stops, [])
    go_on(Session())
    runs.check_records()
    runs.check_one_whole_run()
    assert runs.logged().config["segments"] == 4


def test_without_w_and_b_a_run_completes_with_one_warning_and_is_handed_over_later(
    runs, make, fake_wandb
):
    fake_wandb("raise ImportError('planted')")
    [warning] = make()
    assert "ImportError: planted" in warning
    runs.check_records()
    assert runs.files() == []
    fake_wandb.unset()
    assert make() == []
    runs.check_one_whole_run()


def test_a_w_and_b_that_hangs_is_given_up(runs, make, fake_wandb):
    fake_wandb("import signal; signal.pause()")
    [warning] = make("tracking.wait_s=1")
    assert "no answer in 1 s" in warning
    runs.check_records()


@pytest.mark.slow
def test_what_w_and_b_prints_as_it_is_loaded_is_no_answer(runs, make, fake_wandb):
    fake_wandb(
        "import sys; print('planted'); sys.path = [p for p in sys.path if '/fake' not in p]\n"
        "del sys.modules['wandb']; import wandb"
    )
    assert make() == []
    runs.check_one_whole_run()


def test_a_folder_that_cannot_be_written_is_one_warning(runs, config, make, strike):
    # A file in its place refuses root as well.
    strike(lambda _: (runs.attempt() / "wandb").write_text(""))
    assert len(make()) == 1
    runs.check_records()
    (runs.attempt() / "wandb").unlink()
    actions.export(config())
    runs.check_one_whole_run()


@pytest.fixture
def small_disk(runs):
    """``small_disk(size)``: the results folder has no more; again for another size."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    runs.results.mkdir()

    def resize(size):
        options = f"remount,size={size}" if runs.results.is_mount() else f"size={size}"
        mount = ("mount", "-t", "tmpfs", "-o", options, "none", str(runs.results))
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this system lets nobody mount")

    yield resize
    if runs.results.is_mount():
        subprocess.run(("umount", "-l", str(runs.results)), check=True)


def test_where_the_records_do_not_fit_what_was_recorded_is_gone_on_with(runs, make, small_disk):
    small_disk("16k")
    with pytest.raises(InputError, match="No space left"):
        make()
    whole = runs.whole_lines()
    small_disk("64m")
    assert make() == []
    assert runs.whole_lines().startswith(whole)
    runs.check_records()
    runs.check_one_whole_run()


def test_where_what_w_and_b_writes_does_not_fit_it_is_written_later(runs, make, small_disk):
    small_disk("88k")
    assert len(make()) == 1
    runs.check_records()
    assert files.mark(Attempt(runs.attempt())) is None
    small_disk("64m")
    assert make() == []
    runs.check_one_whole_run()


def test_a_run_that_another_process_makes_is_left_to_it(runs, config, make):
    attempt = next_attempt(runs.results, plan(config()).run_id, rerun=False)
    with attempt.claim(), pytest.raises(InputError, match="another process"):
        make()
    assert not (attempt.folder / "wandb").exists()


def test_a_w_and_b_run_that_another_process_builds_is_left_to_it(runs, config, make):
    make("tracking=off")
    folder = runs.attempt() / "wandb"
    folder.mkdir()
    with locks.take(folder / files.LOCK):
        assert make() == []
        assert runs.files() == []


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_w_and_b_killed_in_mid_run_does_not_end_it(number, runs, config, make, strike, monkeypatch):
    """Online, against an address where nobody answers."""
    for name, value in DEAD.items():
        monkeypatch.setenv(name, value)

    def kill(_):
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    strike(kill)
    assert len(make("tracking=online", "tracking.wait_s=5")) == 1
    runs.check_records()
    # Built by now, where that took no longer than 5 s.
    actions.export(config())
    runs.check_one_whole_run()
