"""Uploads and live runs, by wandb's own client against a server on loopback."""

import csv
import io
import re
import signal
import time

import pytest

from analysis.__main__ import main as analyse
from bench.errors import InputError
from bench.run import run
from bench.tracking import actions, handover
from tests.tracked_runs import BATCHES, COMMAND, DEAD, Runs, batches_of, warnings
from tests.wandb_server import ENTITY, KEY, serving

LONGER = ("decode.max_new_tokens=48",)
ONLINE = (*LONGER, "tracking=online")
SOURCE = ("--source", f"wandb:{ENTITY}/skipbench")


@pytest.fixture
def server():
    with serving() as served:
        yield served


@pytest.fixture
def account(server):
    """The environment of a user who is logged in there."""
    return {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "runs")


@pytest.fixture
def suite(configured, runs, account, monkeypatch, capsys):
    """The suite in this process, of the user who is logged in."""

    class Suite:
        def become(self, **environment):
            for name, value in (account | environment).items():
                monkeypatch.setenv(name, value)

        def config(self, *more, method="dense"):
            given = (f"+method={method}", *COMMAND, "tracking.wandb_mode=null", "verbosity=quiet")
            return configured(*given, f"results_dir={runs.results}", *more)

        def run(self, *more, **given):
            """Its warnings."""
            handover.warn.cache_clear()
            capsys.readouterr()
            run(self.config(*more, **given))
            return warnings(capsys.readouterr().err)

        def sync(self, *more):
            """How many were uploaded now, before, and not at all."""
            capsys.readouterr()
            actions.upload(self.config(*more))
            last = capsys.readouterr().out.splitlines()[-1]
            return [int(number) for number in re.findall(r"\d+", last)]

        def table(self, *arguments):
            capsys.readouterr()
            assert analyse([*arguments, "--format", "csv"]) == 0
            return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))

    made = Suite()
    for name in ("home", "here"):
        (runs.results.parent / name).mkdir()
    made.become(HOME=str(runs.results.parent / "home"))
    monkeypatch.chdir(runs.results.parent / "here")
    return made


def only_run(server):
    [kept] = server.runs.values()
    return kept


def check_whole(server):
    kept = only_run(server)
    assert batches_of(kept.history) == list(range(BATCHES))
    assert (kept.state, kept.summary["status"]) == ("finished", "done")
    assert kept.config["meter"]["batch_size"] == 2


def test_sync_uploads_a_run_once_and_the_table_from_there_is_that_of_the_records(
    suite, runs, server
):
    assert suite.run(method="skipdecode") == []
    assert suite.sync() == [1, 0, 0]
    check_whole(server)
    assert any(name.startswith("records-") for name in only_run(server).artifacts)
    server.asked.clear()
    assert suite.sync() == [0, 1, 0]
    assert server.asked == []
    records = suite.table("runs", "--results", str(runs.results))
    assert len(records) == 1
    assert suite.table(*SOURCE) == records
    # Nothing is left where the commands were called, and no logs in the home folder.
    assert list((runs.results.parent / "here").iterdir()) == []
    assert [path for path in (runs.results.parent / "home").rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_two_runs_are_uploaded_as_two(suite, server):
    for seed in (0, 1):
        suite.run(f"seed={seed}")
    assert suite.sync() == [2, 0, 0]
    for kept in server.runs.values():
        assert batches_of(kept.history) == list(range(BATCHES))
        assert kept.state == "finished"
    assert len(server.runs) == 2


def test_a_live_run_is_whole_at_its_end_and_not_sent_twice(suite, server):
    assert suite.run(*ONLINE) == []
    check_whole(server)
    sent = len(server.asked)
    assert suite.run(*ONLINE) == []
    assert len(server.asked) == sent


@pytest.mark.slow
def test_sync_without_an_account_says_so_and_may_be_repeated(suite, runs, server, monkeypatch):
    suite.run()
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(InputError, match="wandb login"):
        suite.sync()
    suite.become()
    assert suite.sync() == [1, 0, 0]
    check_whole(server)


@pytest.mark.slow
def test_a_live_run_that_is_interrupted_goes_on_as_the_same_run(suite, runs, server, account):
    code = runs.killed_after(2, *ONLINE, signal_number=signal.SIGINT, **account)
    assert code == 130
    assert only_run(server).state == "preempted"
    assert suite.run(*ONLINE) == []
    check_whole(server)


@pytest.mark.slow
def test_a_live_run_that_is_killed_goes_on_as_the_same_run(suite, runs, server, account):
    assert runs.killed_after(2, *ONLINE, **account) == -signal.SIGKILL
    # The process that speaks to W&B sees that it is alone, and ends the run.
    for _ in range(600):
        if any(kept.exit_code is not None for kept in server.runs.values()):
            break
        time.sleep(0.05)
    assert suite.run(*ONLINE) == []
    check_whole(server)


@pytest.mark.slow
def test_a_run_that_failed_is_completed_in_w_and_b_by_sync(suite, runs, server):
    runs.flag.touch()
    assert runs.call(fault="RuntimeError('planted')").code == 1
    assert suite.sync() == [1, 0, 0]
    assert only_run(server).state == "failed"
    assert suite.run() == []
    assert suite.sync() == [1, 0, 0]
    check_whole(server)


@pytest.mark.slow
def test_where_nobody_answers_the_run_is_built_to_be_sent_later(suite, runs, server):
    suite.become(**DEAD)
    [warning] = suite.run(*ONLINE, "tracking.wait_s=10")
    assert "no answer in 10 s" in warning
    runs.check_records()
    runs.check_one_whole_run()
    suite.become()
    assert suite.sync() == [1, 0, 0]
    check_whole(server)


@pytest.mark.slow
def test_an_agent_of_w_and_b_finds_the_run_under_its_own_id(suite, server):
    suite.become(WANDB_SWEEP_ID="sweep1", WANDB_RUN_ID="run1")
    assert suite.run(*ONLINE) == []
    assert list(server.runs) == ["run1"]
    check_whole(server)
    assert "sweep1" in {each["sweep"] for each in only_run(server).upserts}


@pytest.mark.slow
def test_an_exported_run_id_without_a_sweep_is_nobodys(suite, server):
    suite.become(WANDB_RUN_ID="mine")
    for seed in (0, 1):
        assert suite.run(*ONLINE, f"seed={seed}") == []
    assert len(server.runs) == 2
    assert "mine" not in server.runs
