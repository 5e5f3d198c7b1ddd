"""Offline tracking as a user has it: what a command leaves for W&B, read back from the file."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from bench.tracking import readback
from tests.tracked_runs import BATCHES, ROWS, Runs, warnings

NO_NETWORK = ("unshare", "-n")
HAS_NAMESPACES = not subprocess.run(
    [*NO_NETWORK, "true"], capture_output=True, check=False
).returncode
LONGER = ("decode.max_new_tokens=32",)


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "runs")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run that went through, without a network where that can be had, and its home folder."""
    made = Runs(tmp_path_factory.mktemp("done") / "runs")
    home = made.results.with_name("home")
    home.mkdir()
    within = NO_NETWORK if HAS_NAMESPACES else ()
    words = ("tracking.tags=[a,b]", "tracking.notes=why")
    ended = made.call(*words, within=within, HOME=str(home))
    assert ended.code == 0, ended.err
    return made, home, ended


def test_a_run_is_one_w_and_b_run_with_every_batch_in_order(done):
    made, _, ended = done
    made.check_records()
    made.check_one_whole_run()
    assert warnings(ended.err) == []
    assert f"W&B: {made.files()[0].parent}" in ended.err


def test_configuration_arrives_nested_with_numbers_and_resolved_references(done):
    config = done[0].logged().config
    start = json.loads((done[0].attempt() / "start.json").read_text(encoding="utf-8"))
    for name in ("meter", "decode", "model", "task", "seed", "identity", "shapes"):
        expected = start["config"].get(name, start.get(name))
        assert config[name] == expected, name
    assert config["meter"]["batch_size"] == ROWS
    ours = {name: value for name, value in config.items() if not name.startswith("_wandb")}
    assert "${" not in json.dumps(ours)
    assert config["provenance"]["python"]
    assert config["units"]["ttft_s"] == "s"


def test_the_summary_is_the_row_of_the_table(done):
    logged = done[0].logged()
    header = json.loads((done[0].attempt() / "header.json").read_text(encoding="utf-8"))
    known = {name: value for name, value in header["columns"].items() if value is not None}
    assert {name: logged.summary.get(name) for name in known} == known
    # What history says batch by batch stays out of it.
    assert [name for name in logged.summary if name.startswith("method/")] == []


def test_batches_are_the_x_axis_of_what_is_told_of_them(done):
    axes = done[0].logged().x_axes
    assert axes.keys() >= {"method/*", "baseline/*", "own_dense/*", "pair/*"}
    assert set(axes.values()) == {"batch"}


def test_names_tags_tables_and_record_files_are_there(done):
    logged = done[0].logged()
    run_id = done[0].attempt().parent.name
    assert (logged.run.run_id, logged.run.project) == (f"{run_id}-1", "skipbench")
    assert (logged.run.job_type, logged.run.notes) == ("dense", "why")
    assert sorted(logged.run.tags) == ["a", "b"]
    tables = {path.name.split("_")[0]: path for path in done[0].results.rglob("*.table.json")}
    assert {"generations", "example", "layers"} <= tables.keys()
    shown = json.loads(tables["generations"].read_text(encoding="utf-8"))
    assert len(shown["data"]) == BATCHES * ROWS
    first = dict(zip(shown["columns"], shown["data"][0], strict=True))
    # The embedded model has 12 layers; each token ran all of them.
    assert first["method.layers"] == " ".join(["12"] * 6)
    assert first["prompt"]
    assert first["references"]
    records = logged.artifacts[f"records-{run_id}-1"]
    assert set(records) == {
        "start.json",
        "segments.jsonl",
        "batches.jsonl",
        "header.json",
        "log.txt",
    }


def test_w_and_b_writes_below_the_results_folder_only(done):
    made, home, _ = done
    left = {path.relative_to(home) for path in home.rglob("*") if path.is_file()}
    assert [path for path in left if "wandb" in str(path)] == []
    inside = {path.name for path in made.attempt().iterdir()}
    assert inside - {"start.json", "segments.jsonl", "batches.jsonl", "header.json"} == {
        *("lock", "log.txt", "wandb"),
    }


def test_the_same_command_again_hands_over_nothing_anew(done):
    made, _, _ = done
    before = {path: path.stat().st_mtime_ns for path in made.results.rglob("*")}
    ended = made.call()
    assert ended.code == 0
    assert {path: path.stat().st_mtime_ns for path in made.results.rglob("*")} == before


@pytest.mark.skipif(not HAS_NAMESPACES, reason="this system gives no network namespace")
def test_no_network_is_needed(done):
    made, _, ended = done
    assert made.logged().exit_code == 0
    assert warnings(ended.err) == []


def test_a_run_killed_in_its_middle_is_one_run_in_the_end(runs):
    assert runs.killed_after(2, *LONGER) == -signal.SIGKILL
    before = runs.whole_lines()
    assert runs.files() == []
    ended = runs.call(*LONGER)
    assert (ended.code, warnings(ended.err)) == (0, [])
    assert runs.whole_lines().startswith(before)
    runs.check_records()
    runs.check_one_whole_run()


@pytest.mark.slow
def test_two_runs_of_a_sweep_are_two_runs_of_one_group(runs):
    ended = runs.call("seed=0,1", "-m")
    assert ended.code == 0, ended.err
    logged = [readback.read(path) for path in runs.files()]
    assert len({each.run.run_id for each in logged}) == len(logged) == 2
    assert sorted(each.config["seed"] for each in logged) == [0, 1]
    [group] = {each.run.run_group for each in logged}
    assert group.startswith("method=dense model.weights=random")


@pytest.mark.slow
def test_a_sweep_hands_over_what_was_killed_before_it_was(runs):
    assert runs.call("seed=0,1", "-m").code == 0
    for folder in runs.results.glob("*/1/wandb"):
        shutil.rmtree(folder)
    again = runs.call("seed=0,1", "-m")
    assert "left out, already done: 2 of 2" in again.err
    assert len(runs.files()) == 2


@pytest.mark.slow
def test_a_failing_run_ends_with_1_also_in_w_and_b_and_is_whole_once_it_is_completed(runs):
    runs.flag.touch()
    assert runs.call(fault="RuntimeError('planted')").code == 1
    failed = runs.logged()
    assert (failed.exit_code, failed.summary["status"]) == (1, "failed")
    runs.flag.unlink()
    assert runs.call().code == 0
    runs.check_records()
    runs.check_one_whole_run()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_ended_and_resumed_three_times_is_one_run(number, runs):
    for lines in (1, 3, 5):
        assert runs.killed_after(lines, *LONGER, signal_number=number) != 0
        assert runs.files() == []
    assert runs.call(*LONGER).code == 0
    runs.check_records()
    runs.check_one_whole_run()
    assert runs.logged().config["segments"] == 4


@pytest.mark.slow
def test_a_full_disk_is_told_without_a_traceback_and_the_same_command_completes_the_run(runs):
    runs.results.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=16k", "none", str(runs.results))
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount")
    try:
        ended = runs.call(*LONGER)
        assert ended.code == 2
        assert "No space left" in ended.err
        assert "Traceback" not in ended.err
        whole = runs.whole_lines()
        subprocess.run(("mount", "-o", "remount,size=64m", str(runs.results)), check=True)
        assert runs.call(*LONGER).code == 0
        assert runs.whole_lines().startswith(whole)
        runs.check_records()
        runs.check_one_whole_run()
    finally:
        subprocess.run(("umount", str(runs.results)), check=True)


@pytest.mark.slow
def test_who_may_not_write_what_w_and_b_writes_has_one_warning(runs):
    assert runs.call("tracking=off").code == 0
    # Root without the rights of root.
    plain = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    runs.attempt().chmod(0o500)
    ended = runs.call(within=plain)
    assert ended.code == 0, ended.err
    [warning] = warnings(ended.err)
    assert "Permission denied" in warning
    assert "Traceback" not in ended.err
    runs.check_records()
    runs.attempt().chmod(0o700)
    assert runs.call().code == 0
    runs.check_one_whole_run()


@pytest.mark.slow
def test_of_two_processes_on_one_run_one_is_refused_and_w_and_b_has_it_once(runs):
    both = [runs.start(*LONGER) for _ in range(2)]
    ends = [process.communicate(timeout=180) for process in both]
    # The second may also come when the first is done, and then shows it.
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 2]), ends
    runs.check_records()
    runs.check_one_whole_run()


@pytest.mark.slow
def test_export_builds_runs_of_any_folder_and_again_only_when_asked(runs):
    assert runs.call("tracking=off").code == 0
    assert not (runs.attempt() / "wandb").exists()
    first = runs.call("action=export-wandb", "tracking.project=mine")
    assert first.out == "W&B runs: 1 built, 0 left as they are, 0 failed\n"
    assert runs.logged().run.project == "mine"
    again = runs.call("action=export-wandb")
    assert again.out == "W&B runs: 0 built, 1 left as they are, 0 failed\n"
    anew = runs.call("action=export-wandb", "rerun=true")
    assert anew.out == "W&B runs: 1 built, 0 left as they are, 0 failed\n"
    runs.check_one_whole_run()
    refused = runs.call("action=export-wandb", "tracking.runs=[zz]")
    assert (refused.code, "no run of this id" in refused.err) == (2, True)
