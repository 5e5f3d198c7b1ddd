"""When W&B is spoken to: never beside what is timed, never for nothing, once for one end."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from bench import provenance
from bench.run import run
from bench.store import Attempt
from bench.tracking import asking, files, handover, online, process, readback
from bench.tracking.files import Mark
from tests.tracked_runs import ROOT, Runs

QUICK = ("model.weights=random", "gpu=cpu", "task.limit=2", "meter.repeats=1", "meter.warmups=0")


class FakeWriter:
    """Notes what it is asked, in the order of all events."""

    events: ClassVar[list] = []

    def __init__(self, wait_s):
        self.events.append("made")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.events.append("closed")

    def start(self):
        self.events.append("started")

    def settle(self):
        self.events.append("sleeps")

    def build(self, job):
        self.events.append(("built", job.attempt.status()))
        return job.folder


@pytest.fixture
def events(monkeypatch):
    monkeypatch.setattr(FakeWriter, "events", [])
    monkeypatch.setattr(handover, "Writer", FakeWriter)
    return FakeWriter.events


@pytest.fixture
def config(configured, tmp_path):
    """``config(*overrides)``: a small run that is handed over."""
    given = ("+method=dense", *QUICK, "decode.max_new_tokens=2", "tracking.wandb_mode=null")
    return lambda *more: configured(*given, f"results_dir={tmp_path}", "verbosity=quiet", *more)


def test_what_speaks_to_w_and_b_sleeps_before_anything_is_measured(config, events, monkeypatch):
    collect = provenance.collect

    def collected(device):
        events.append("measures")
        return collect(device)

    monkeypatch.setattr(provenance, "collect", collected)
    run(config())
    assert events == ["made", "started", "sleeps", "measures", ("built", "done"), "closed"]


def test_two_runs_in_one_process_are_two_runs(config, tmp_path):
    for seed in (0, 1):
        run(config(f"seed={seed}"))
    logged = [readback.read(path) for path in Runs(tmp_path).files()]
    assert len({each.run.run_id for each in logged}) == 2
    assert sorted(each.config["seed"] for each in logged) == [0, 1]
    assert [each.exit_code for each in logged] == [0, 0]


def test_with_tracking_off_nothing_is_started(config, events):
    run(config("tracking=off"))
    run(config("tracking=off"))
    assert events == []


def test_a_done_run_that_was_not_handed_over_is_at_the_next_start(config, events):
    attempt = run(config("tracking=off"))
    run(config())
    assert ("built", "done") in events
    events.clear()
    (attempt.folder / "wandb").mkdir()
    mark = Mark(**files.state(attempt), project="p", entity=None, folder="offline-run-1")
    files.write_mark(attempt, mark)
    run(config())
    assert events == ["made", "closed"]
    # Asked for elsewhere, it is not there yet.
    run(config("tracking.project=other"))
    assert ("built", "done") in events


@pytest.mark.parametrize(
    ("name", "switch", "mode"),
    [
        ("offline", None, "offline"),
        ("online", None, "online"),
        ("online", "offline", "offline"),
        ("offline", "online", "offline"),
        ("online", "disabled", "off"),
        ("off", "online", "off"),
    ],
)
def test_w_and_bs_own_switch_allows_less_and_never_more(config, name, switch, mode):
    found = replace(config().tracking, name=name, wandb_mode=switch)
    assert found.mode == mode


def test_a_sweep_is_one_group_by_what_it_runs(config):
    first = ["+method=dense,calm", "seed=0,1", "results_dir=here", "tracking=online"]
    again = ["+method=dense,calm", "seed=0,1", "rerun=true", "verbosity=quiet"]
    groups = {handover.of_sweep(config().tracking, each).group for each in (first, again)}
    assert groups == {"method=dense,calm seed=0,1"}
    named = replace(config().tracking, group="mine")
    assert handover.of_sweep(named, first).group == "mine"


def test_long_sweeps_keep_groups_of_their_own(config):
    long = [f"method.setting{number}=1,2" for number in range(30)]
    groups = [handover.of_sweep(config().tracking, [*long, f"seed={n}"]).group for n in (0, 1)]
    assert [len(group) for group in groups] == [128, 128]
    assert groups[0] != groups[1]


def test_runs_of_a_sweep_do_not_share_an_agents_id(config):
    one = replace(config().tracking, agent_run_id="r", agent_sweep_id="s")
    found = handover.of_sweep(one, ["seed=0,1"])
    assert (found.agent_run_id, found.agent_sweep_id) == (None, None)


def test_a_warning_is_told_once(capsys):
    for _ in range(3):
        handover.warn("planted once")
    assert capsys.readouterr().err == "warning: planted once\n"


def test_references_are_those_that_were_decoded_or_none(config):
    attempt = run(config("tracking=off"))
    start = attempt.start()
    known = asking.references(start, 1)
    [(name, found)] = known.items()
    assert name == attempt.batches()[0].example_ids[0]
    assert found.prompt
    assert found.texts
    other = replace(start, identity={**start.identity, "task": {"examples": "changed"}})
    assert asking.references(other, 1) == {}
    foreign = replace(start, config={**start.config, "task": {"name": "gone", "params": {}}})
    assert asking.references(foreign, 1) == {}


def test_the_upload_is_w_and_bs_own_command(config):
    found = replace(config().tracking, project="p", entity="e")
    command = online.command([Path("a"), Path("b")], found)
    assert command[1:] == [
        *("-m", "wandb", "sync", "--yes"),
        *("--project", "p", "--entity", "e"),
        *("a", "b"),
    ]


def test_what_the_documented_sweep_makes_of_its_parameters_is_a_command_of_ours(configured):
    """As W&B's agent forms it; only the agent's talk with its server is left out."""
    text = (ROOT / "docs" / "tracking.md").read_text(encoding="utf-8")
    sweep = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    assert sweep["command"][-1] == "${args_no_hyphens}"
    some = {
        name: each.get("value", each.get("values", [None])[-1])
        for name, each in sweep["parameters"].items()
    }
    some |= {"rerun": True, "tracking.tags": "[a,b]"}
    args = {"args": {name: {"value": value} for name, value in some.items()}}
    found = configured(*create_sweep_command_args(args)["args_no_hyphens"])
    assert (found.method.name, found.method.changed["preset"]) == ("skipdecode", "4x")
    assert (found.tracking.name, found.seed, found.rerun) == ("online", 1, True)
    assert found.tracking.tags == ("a", "b")


def test_no_variable_of_w_and_b_makes_another_run_of_it(monkeypatch):
    for name in ("WANDB_RUN_ID", "WANDB_MODE", "WANDB_RESUME", "WANDB_DIR", "WANDB_SWEEP_ID"):
        monkeypatch.setenv(name, "planted")
    monkeypatch.setenv("WANDB_BASE_URL", "kept")
    handed = process.environment()
    assert "planted" not in handed.values()
    assert handed["WANDB_BASE_URL"] == "kept"
    assert os.environ["WANDB_RUN_ID"] == "planted"


def test_a_mark_that_cannot_be_read_is_none(tmp_path):
    attempt = Attempt(tmp_path / "abc" / "1")
    (attempt.folder / "wandb").mkdir(parents=True)
    for text in ("", "{", "[]", '{"status": "done"}'):
        (attempt.folder / "wandb" / "handed-over.json").write_text(text)
        assert files.mark(attempt) is None


def test_clearing_notes_what_was_uploaded_and_leaves_no_mark(tmp_path):
    attempt = Attempt(tmp_path / "abc" / "1")
    run_folder = attempt.folder / "wandb" / "offline-run-1-abc"
    run_folder.mkdir(parents=True)
    (run_folder / "run-abc.wandb").touch()
    (attempt.folder / "wandb" / "latest-run").symlink_to("gone-run-2")
    state = {"status": "stopped", "recorded_bytes": 0}
    files.write_mark(attempt, Mark(**state, project="p", entity=None, folder="x"))
    files.clear(attempt)
    assert list((attempt.folder / "wandb").iterdir()) == []
    run_folder.mkdir()
    (run_folder / "run-abc.wandb.synced").touch()
    files.clear(attempt)
    assert files.is_seen(attempt)
