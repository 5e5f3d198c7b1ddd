"""Uploads and live runs, by wandb's own client against a server on loopback."""

import csv
import io
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.tracked_runs import BATCHES, ROOT, Runs, batches_of, warnings
from tests.wandb_server import ENTITY, KEY, serving

LONGER = ("decode.max_new_tokens=48",)
ONLINE = (*LONGER, "tracking=online")


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


def only_run(server):
    [kept] = server.runs.values()
    return kept


def check_whole(server):
    kept = only_run(server)
    assert batches_of(kept.history) == list(range(BATCHES))
    assert (kept.state, kept.summary["status"]) == ("finished", "done")
    assert kept.config["meter"]["batch_size"] == 2


def table(*arguments, **account):
    done = subprocess.run(
        [sys.executable, "-m", "analysis", *arguments],
        cwd=ROOT,
        env=os.environ | {"WANDB_MODE": "online"} | account,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_sync_uploads_each_run_once(runs, server, account):
    assert runs.call("seed=0,1", "-m").code == 0
    first = runs.call("action=sync", **account)
    assert first.code == 0, first.err
    assert first.out.endswith("W&B runs: 2 uploaded, 0 uploaded before, 0 failed\n")
    server.asked.clear()
    again = runs.call("action=sync", **account)
    assert again.out.endswith("W&B runs: 0 uploaded, 2 uploaded before, 0 failed\n")
    assert server.asked == []
    assert len(server.runs) == 2
    for kept in server.runs.values():
        assert batches_of(kept.history) == list(range(BATCHES))
        assert kept.state == "finished"
        assert any(name.startswith("records-") for name in kept.artifacts)


def test_sync_without_an_account_says_so_and_may_be_repeated(runs, server, account):
    assert runs.call().code == 0
    home = runs.results.with_name("home")
    home.mkdir()
    nobody = {"WANDB_BASE_URL": server.url, "HOME": str(home)}
    refused = runs.call("action=sync", **nobody)
    assert refused.code == 2
    assert "wandb login" in refused.err
    assert "Traceback" not in refused.err
    assert runs.call("action=sync", **account).code == 0
    check_whole(server)


def test_the_table_from_w_and_b_is_the_table_from_the_records(runs, server, account):
    assert runs.call("seed=0,1", "-m", method="skipdecode").code == 0
    assert runs.call("action=sync", **account).code == 0
    wanted = ("runs", "--format", "csv")
    source = ("--source", f"wandb:{ENTITY}/skipbench")
    records = table(*wanted, "--results", str(runs.results))
    assert len(records) == 2
    assert table(*wanted, *source, **account) == records
    assert table(*source, "--format", "csv", **account) == records


def test_a_live_run_is_whole_at_its_end_and_not_sent_twice(runs, server, account):
    ended = runs.call(*ONLINE, **account)
    assert (ended.code, warnings(ended.err)) == (0, [])
    check_whole(server)
    sent = len(server.asked)
    again = runs.call(*ONLINE, **account)
    assert "already done" in again.err
    assert len(server.asked) == sent


def test_a_live_run_that_is_interrupted_goes_on_as_the_same_run(runs, server, account):
    code = runs.killed_after(2, *ONLINE, signal_number=signal.SIGINT, **account)
    assert code == 130
    assert only_run(server).state == "preempted"
    ended = runs.call(*ONLINE, **account)
    assert (ended.code, warnings(ended.err)) == (0, [])
    check_whole(server)


def test_a_live_run_that_is_killed_goes_on_as_the_same_run(runs, server, account):
    assert runs.killed_after(2, *ONLINE, **account) == -signal.SIGKILL
    # The process that speaks to W&B sees that it is alone, and ends the run.
    for _ in range(600):
        if any(kept.exit_code is not None for kept in server.runs.values()):
            break
        time.sleep(0.05)
    ended = runs.call(*ONLINE, **account)
    assert (ended.code, warnings(ended.err)) == (0, [])
    check_whole(server)


def test_a_run_that_failed_is_completed_in_w_and_b_by_sync(runs, server, account):
    runs.flag.touch()
    assert runs.call(fault="RuntimeError('planted')").code == 1
    assert runs.call("action=sync", **account).code == 0
    assert only_run(server).state == "failed"
    runs.flag.unlink()
    assert runs.call().code == 0
    assert runs.call("action=sync", **account).code == 0
    check_whole(server)


def test_where_nobody_answers_the_run_is_built_to_be_sent_later(runs, server, account):
    dead = account | {"WANDB_BASE_URL": "http://127.0.0.1:9"}
    ended = runs.call(*ONLINE, "tracking.wait_s=5", **dead)
    assert ended.code == 0
    assert len(warnings(ended.err)) == 1
    assert "action=sync" in ended.err
    runs.check_records()
    runs.check_one_whole_run()
    assert runs.call("action=sync", **account).code == 0
    check_whole(server)


def test_an_agent_of_w_and_b_finds_the_run_under_its_own_id(runs, server, account):
    agent = account | {"WANDB_SWEEP_ID": "sweep1", "WANDB_RUN_ID": "run1"}
    assert runs.call(*ONLINE, **agent).code == 0
    assert list(server.runs) == ["run1"]
    check_whole(server)
    assert "sweep1" in {each["sweep"] for each in only_run(server).upserts}


def test_an_exported_run_id_without_a_sweep_is_nobodys(runs, server, account):
    ended = runs.call(*ONLINE, "seed=0,1", "-m", WANDB_RUN_ID="mine", **account)
    assert ended.code == 0, ended.err
    assert len(server.runs) == 2
    assert "mine" not in server.runs
