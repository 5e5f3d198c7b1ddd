"""The table of runs from stores written by hand: every status, every format, every refusal."""

import csv
import io
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis import __main__ as program
from analysis import runs, selection
from bench import columns
from bench.errors import InputError
from bench.schema import SCHEMA_VERSION, Header, Start
from bench.store import Attempt

ROOT = Path(__file__).resolve().parents[2]
KNOWN = {
    "method": "skipdecode",
    "setting": "target=4;name=a,b",
    "model": "tiny",
    "task": "demo",
    "gpu": "cpu",
    "seed": 0,
    "batch_size": 8,
}
MANY = ROOT / "tests" / "benchmarks" / "many_runs.py"
MEASURED = {"examples": 12, "tokens": 123, "speedup": 1 / 3, "flops_executed_per_token": 1234567.5}


def _store(results, run_id, number=1, *, scores=("bleu",), header=True, failure=None, **changed):
    """One attempt at a run, as the suite writes it."""
    attempt = Attempt(results / run_id / str(number))
    known = KNOWN | {"run_id": run_id, "status": "running", "attempt": number}
    names = {"seed": changed.get("seed", 0), "limit": changed.pop("limit", 16)}
    with attempt.claim():
        attempt.write_start(
            Start(SCHEMA_VERSION, run_id, number, names, {}, known, {}, "2026-01-01")
        )
        if header:
            row = dict.fromkeys(columns.names(list(scores))) | known | {"status": "done"}
            row |= MEASURED | {f"score.{name}": 65.4321 for name in scores} | changed
            attempt.write_header(Header(SCHEMA_VERSION, row, 2, "2026-01-01"))
        if failure:
            attempt.write_failure(failure)
    return attempt


@pytest.fixture
def results(tmp_path):
    """A done run, a stopped one, a failed one, and one that ended before it wrote anything."""
    _store(tmp_path, "a0")
    _store(tmp_path, "b0", header=False)
    _store(tmp_path, "c0", header=False, failure="Traceback")
    Attempt(tmp_path / "d0" / "1").claim().close()
    return tmp_path


def _command(*arguments):
    command = [sys.executable, "-m", "analysis", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _csv(*results):
    return list(csv.DictReader(io.StringIO(runs.rendered(runs.rows(results), "csv"))))


def test_the_columns_are_those_of_the_list_in_its_order(results):
    first = runs.rendered(runs.rows([results]), "csv").split("\n", 1)[0]
    assert first.split(",") == columns.names(["bleu"])


def test_csv_holds_all_digits_whole_numbers_and_empty_cells(results):
    done, stopped, *_ = _csv(results)
    assert (done["tokens"], done["seed"], done["batch_size"]) == ("123", "0", "8")
    assert (done["speedup"], done["flops_executed_per_token"]) == (
        "0.3333333333333333",
        "1234567.5",
    )
    assert (done["ttft_s"], done["acceptance_rate"]) == ("", "")
    assert (stopped["tokens"], stopped["speedup"], stopped["score.bleu"]) == ("", "", "")
    assert done["setting"] == "target=4;name=a,b"


def test_json_holds_nulls_and_numbers_as_they_were_recorded(results):
    done, stopped, *_ = json.loads(runs.rendered(runs.rows([results]), "json"))
    assert list(done) == columns.names(["bleu"])
    assert (done["tokens"], done["speedup"], done["score.bleu"]) == (123, 1 / 3, 65.4321)
    assert done["ttft_s"] is None
    assert (stopped["method"], stopped["seed"], stopped["tokens"]) == ("skipdecode", 0, None)


def test_each_run_has_its_status(results):
    with Attempt(results / "e0" / "1").claim():
        found = {row["run_id"]: row["status"] for row in runs.rows([results])}
    expected = {"a0": "done", "b0": "stopped", "c0": "failed", "d0": "stopped", "e0": "running"}
    assert found == expected


def test_a_run_that_wrote_nothing_has_its_id_attempt_and_status_alone(results):
    last = runs.rows([results])[-1]
    known = {name: value for name, value in last.items() if value is not None}
    assert known == {"run_id": "d0", "attempt": 1, "status": "stopped"}


def test_the_newest_complete_attempt_is_shown(tmp_path):
    _store(tmp_path, "a0", 1)
    _store(tmp_path, "a0", 2, tokens=456)
    _store(tmp_path, "a0", 3, header=False)
    (row,) = runs.rows([tmp_path])
    assert (row["attempt"], row["tokens"], row["status"]) == (2, 456, "done")


def test_scores_of_all_runs_are_columns_as_they_first_appear(tmp_path):
    _store(tmp_path, "a0", scores=("rouge_l",))
    _store(tmp_path, "b0", scores=("bleu", "rouge_l"))
    first, second = runs.rows([tmp_path])
    assert list(first) == list(second) == columns.names(["rouge_l", "bleu"])
    assert (first["score.bleu"], second["score.bleu"]) == (None, 65.4321)


def test_runs_of_several_folders_follow_each_other(tmp_path):
    _store(tmp_path / "two", "a0")
    _store(tmp_path / "one", "b0")
    _store(tmp_path / "one", "a0", tokens=456)
    found = [
        (row["run_id"], row["tokens"]) for row in runs.rows([tmp_path / "one", tmp_path / "two"])
    ]
    assert found == [("a0", 456), ("b0", 123), ("a0", 123)]


def test_a_folder_given_twice_is_read_once(tmp_path):
    _store(tmp_path, "a0")
    assert len(runs.rows([tmp_path, tmp_path / "a0" / ".."])) == 1


def test_a_column_that_is_not_in_the_list_is_not_in_the_table(tmp_path):
    _store(tmp_path, "a0", warp_factor=9)
    (row,) = runs.rows([tmp_path])
    assert "warp_factor" not in row


def test_the_frame_has_whole_numbers_numbers_and_text(results):
    frame = runs.table([results])
    assert list(frame.columns) == columns.names(["bleu"])
    assert str(frame["tokens"].dtype) == "Int64"
    assert str(frame["speedup"].dtype) == "float64"
    # Nothing is known of the third; it is a column of numbers all the same.
    assert str(frame["ttft_s"].dtype) == "float64"
    assert str(frame["method"].dtype) == str(frame["checkpoint"].dtype) == "object"
    assert frame["tokens"].sum() == 123
    assert frame["tokens"].isna().tolist() == [False, True, True, True]


def test_csv_read_back_by_pandas_is_the_frame(results, tmp_path):
    text = runs.rendered(runs.rows([results]), "csv")
    back, frame = pd.read_csv(io.StringIO(text)), runs.table([results])
    assert back["speedup"].tolist()[0] == frame["speedup"].tolist()[0] == 1 / 3
    assert back.isna().equals(frame.isna())


def test_the_table_for_the_eye_drops_what_is_empty_and_says_once_what_is_the_same(results):
    _store(results, "f0", tokens=456)
    text = runs.rendered(runs.rows([results / "."]), "table")
    assert "ttft_s" not in text
    assert [word for word in ("65.4", "0.333", "1.23e+06", "456") if word not in text] == []
    only_done = [row for row in runs.rows([results]) if row["status"] == "done"]
    first, *rest = runs.rendered(only_done, "table").splitlines()
    assert "model=tiny" in first
    assert "tiny" not in "".join(rest)
    assert [line.split()[0] for line in rest if line.startswith(("a0", "f0"))] == ["a0", "f0"]


def test_a_table_too_wide_goes_on_below_and_names_its_rows_again(results):
    lines = runs.rendered(runs.rows([results]), "table", 60).splitlines()
    assert max(map(len, lines)) <= 60
    blocks = [line for line in lines if line.startswith("run_id")]
    assert len(blocks) > 1
    shown = [name for line in blocks for name in line.split()[2:]]
    wide = runs.rendered(runs.rows([results]), "table").splitlines()
    heading = next(line for line in wide if line.startswith("run_id"))
    assert shown == heading.split()[2:]


def test_brackets_in_a_setting_are_shown_as_they_are(tmp_path):
    _store(tmp_path, "a0", setting="layers=[bold]")
    assert "layers=[bold]" in runs.rendered(runs.rows([tmp_path]), "table")


@pytest.mark.parametrize("form", runs.FORMATS)
def test_the_program_writes_each_format(results, tmp_path, capsys, form):
    out = tmp_path / "out.txt"
    arguments = ["runs", "--results", str(results), "--format", form]
    assert program.main(arguments) == 0
    shown = capsys.readouterr()
    assert program.main([*arguments, "--out", str(out)]) == 0
    assert shown.out == out.read_text(encoding="utf-8")
    assert "a0" in shown.out
    assert shown.err == capsys.readouterr().out == ""


def _four_parts(error):
    return [line.split(":")[0].strip() for line in error.splitlines()[1:]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["runs", "--results", "{tmp}/nowhere"], "nowhere"),
        (["runs", "--results", "{tmp}/empty"], "no runs"),
        (["runs", "--results", "{tmp}/filled", "{tmp}/empty"], "empty"),
        (["runs", "--results", "{tmp}/filled", "--format", "xml"], "xml"),
        (["runs", "--results", "{tmp}/newer"], "newer skipbench"),
        (["runs", "--results", "{tmp}/filled", "--out", "{tmp}/nowhere/runs.csv"], "runs.csv"),
        (["runs", "--reslts", "{tmp}/filled"], "--reslts"),
        (["chart"], "chart"),
        (["runs", "--results", "{tmp}/filled", "--where", "speedpu>1"], "near: speedup"),
        (["runs", "--results", "{tmp}/filled", "--where", "method=calm"], "NAME==VALUE"),
        (["runs", "--results", "{tmp}/filled", "--where", "tokens>many"], "holds numbers"),
        (["runs", "--results", "{tmp}/filled", "--where", "speedup<nan"], "holds numbers"),
        (["runs", "--results", "{tmp}/filled", "--columns", "method,taks"], "near: task"),
        (["runs", "--results", "{tmp}/filled", "--columns", "settings"], "near: setting"),
        (["runs", "--results", "{tmp}/filled", "--group", "method"], "--group"),
        (["runs", "--results", "{tmp}/filled", "--attempts", "oldest"], "--attempts"),
        (["runs", "--results", "{tmp}/twice", "--attempts", "all", "--group", "seed"], "twice"),
        (["runs", "--results", "{tmp}/damaged"], "action=doctor"),
    ],
    ids=[
        "a folder that is not there",
        "a folder without runs",
        "one of two folders without runs",
        "a format that is not one",
        "a newer schema",
        "an output folder that is not there",
        "a misspelt option",
        "a command that is not one",
        "a condition on a misspelt column",
        "a condition without an operator",
        "a condition of numbers on a text",
        "a condition on what is no number",
        "a misspelt column",
        "a column that is none",
        "a grouping that is not one",
        "attempts that are not a choice",
        "a mean that would count a run twice",
        "a damaged record",
    ],
)
def test_what_cannot_be_answered_is_refused_in_four_parts(tmp_path, capsys, arguments, told):
    (tmp_path / "empty").mkdir()
    _store(tmp_path / "filled", "a0")
    for number in (1, 2):
        _store(tmp_path / "twice", "a0", number)
    damaged = _store(tmp_path / "damaged", "a0")
    (damaged.folder / "header.json").write_text("{", encoding="utf-8")
    newer = _store(tmp_path / "newer", "a0")
    newer.write_header(Header(SCHEMA_VERSION + 1, {}, 2, "2026-01-01"))
    assert program.main([argument.format(tmp=tmp_path) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in shown.err
    assert _four_parts(shown.err) == ["got", "allowed", "where"]


def test_a_refusal_is_an_input_error_in_python(tmp_path):
    with pytest.raises(InputError, match="no results folder"):
        runs.table([tmp_path / "nowhere"])


def test_the_program_ends_with_2_and_no_traceback_on_a_refusal(tmp_path):
    done = _command("runs", "--results", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("There is no results folder here\n  got:     ")
    assert "Traceback" not in done.stderr


def test_the_program_without_a_command_explains_itself_and_ends_with_2():
    done = _command()
    assert (done.returncode, done.stdout) == (2, "")
    assert "python -m analysis runs --format csv" in done.stderr


def test_the_program_reads_records_without_torch(results):
    code = (
        "import sys; from analysis.__main__ import main; code = main(sys.argv[1:])\n"
        "sys.exit(code or sorted({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", code, "runs", "--results", str(results), "--format", "csv"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 5


def test_help_names_the_formats_and_the_document_of_the_columns():
    done = _command("runs", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in (*runs.FORMATS, "docs/results.md") if word not in done.stdout] == []


def _shown(results, *arguments, form="json"):
    """What the program writes."""
    out = results / "out.txt"
    options = ["--results", str(results), "--format", form, "--out", str(out)]
    assert program.main(["runs", *options, *arguments]) == 0
    text = out.read_text(encoding="utf-8")
    return json.loads(text) if form == "json" else text


@pytest.mark.parametrize(
    ("conditions", "met"),
    [
        (["method==skipdecode"], "abcd"),
        (["method==calm"], "e"),
        (["method!=calm"], "abcd"),
        (["  method ==  calm "], "e"),
        (["tokens>123"], "bd"),
        (["tokens >= 123"], "abd"),
        (["tokens<1.235e2"], "a"),
        (["tokens<=123", "method==skipdecode"], "a"),
        (["speedup==0.5"], "b"),
        (["speedup!=0.5"], "ad"),
        (["seed==1"], "d"),
        (["attempt<2"], "abcde"),
        (["setting==target=4;name=a,b"], "abe"),
        (["setting!=target=4;name=a,b"], "cd"),
        (["setting=="], "d"),
        (["tokens=="], "ce"),
        (["tokens!="], "abd"),
        (["checkpoint==x"], ""),
        (["checkpoint=="], "abcde"),
        (["ttft_s>0"], ""),
        (["score.bleu>60", "status==done"], "abd"),
        (["status==stopped"], "ce"),
        (["run_id>=b0", "run_id<d"], "bc"),
    ],
)
def test_rows_are_chosen_by_conditions(tmp_path, conditions, met):
    _store(tmp_path, "a0")
    _store(tmp_path, "b0", tokens=456, speedup=0.5)
    with Attempt(tmp_path / "c0" / "1").claim():
        start = Start(SCHEMA_VERSION, "c0", 1, {}, {}, KNOWN | {"setting": "x"}, {}, "2026")
        Attempt(tmp_path / "c0" / "1").write_start(start)
    _store(tmp_path, "d0", tokens=789, seed=1, setting="")
    _store(tmp_path, "e0", header=False)
    path = tmp_path / "e0" / "1" / "start.json"
    path.write_text(path.read_text(encoding="utf-8").replace("skipdecode", "calm"), "utf-8")
    arguments = [part for condition in conditions for part in ("--where", condition)]
    assert "".join(row["run_id"][0] for row in _shown(tmp_path, *arguments)) == met


@pytest.mark.parametrize("form", runs.FORMATS)
def test_no_row_that_is_as_asked_for_is_an_answer_and_no_fault(results, form):
    text = _shown(results, "--where", "method==medusa", "--columns", "run_id,seed", form=form)
    nothing = {"table": "no run is as asked for\n", "csv": "run_id,seed\n", "json": []}
    assert text == nothing[form]


def test_columns_are_picked_in_the_order_asked_for(results):
    rows = _shown(results, "--columns", "tokens, run_id,tokens")
    assert [list(row) for row in rows] == [["tokens", "run_id"]] * 4
    assert [row["tokens"] for row in rows] == [123, None, None, None]
    first, rule, *rows = _shown(results, "--columns", "run_id,task,ttft_s", form="table").split(
        "\n"
    )
    # What was asked for is shown, be it empty or the same in all rows.
    assert first.split() == ["run_id", "task", "ttft_s"]
    assert set(rule) == {"─"}
    assert rows[0].split() == ["a0", "demo"]
    assert _shown(results, "--columns", "run_id", form="table").split()[2:] == [
        "a0",
        "b0",
        "c0",
        "d0",
    ]


def test_all_attempts_are_rows_on_request(tmp_path):
    for number, tokens in [(1, 1), (2, 2), (10, 10)]:
        _store(tmp_path, "a0", number, tokens=tokens)
    _store(tmp_path, "a0", 11, header=False)
    found = [
        (row["attempt"], row["tokens"], row["status"])
        for row in _shown(tmp_path, "--attempts", "all")
    ]
    assert found == [(1, 1, "done"), (2, 2, "done"), (10, 10, "done"), (11, None, "stopped")]
    assert [row["attempt"] for row in _shown(tmp_path, "--attempts", "newest")] == [10]


def test_runs_that_differ_by_their_seed_alone_become_one_row_of_means(tmp_path):
    tokens, speedups = [120, 125, 124], [1.5, 1.75, 2.5]
    for seed, (count, speedup) in enumerate(zip(tokens, speedups, strict=True)):
        _store(tmp_path, f"a{seed}", seed=seed, tokens=count, speedup=speedup)
    _store(tmp_path, "b0", seed=0, setting="target=2", tokens=7)
    first, second = _shown(tmp_path, "--group", "seed")
    assert (first["seeds"], second["seeds"]) == (3, 1)
    assert first["tokens"] == pytest.approx(statistics.fmean(tokens), rel=1e-12)
    assert first["tokens.sd"] == pytest.approx(statistics.stdev(tokens), rel=1e-12)
    assert first["speedup"] == pytest.approx(statistics.fmean(speedups), rel=1e-12)
    assert first["speedup.sd"] == pytest.approx(statistics.stdev(speedups), rel=1e-12)
    assert (first["score.bleu"], first["score.bleu.sd"]) == (pytest.approx(65.4321), 0.0)
    # A setting, not a measurement, though it has a unit.
    assert (first["batch_size"], "batch_size.sd" in first) == (8, False)
    assert (second["tokens"], second["tokens.sd"], second["ttft_s"]) == (7, None, None)
    assert [name for name in ("run_id", "attempt", "seed", "settings") if name in first] == []
    assert list(first)[:4] == ["status", "method", "setting", "model"]


@pytest.mark.parametrize(
    "other",
    [{"method": "calm"}, {"batch_size": 1}, {"gpu": "h100"}, {"limit": 32}, {"header": False}],
    ids=["method", "batch size", "device", "what no column shows", "status"],
)
def test_runs_that_differ_by_more_than_their_seed_are_never_averaged(tmp_path, other):
    _store(tmp_path, "a0", seed=0, tokens=1)
    _store(tmp_path, "a1", **({"seed": 1, "tokens": 2} | other))
    assert [row["seeds"] for row in _shown(tmp_path, "--group", "seed")] == [1, 1]


def test_a_mean_is_empty_where_one_of_its_runs_has_no_value(tmp_path):
    _store(tmp_path, "a0", seed=0, speedup=1.5)
    _store(tmp_path, "a1", seed=1, speedup=None)
    (row,) = _shown(tmp_path, "--group", "seed")
    assert (row["seeds"], row["speedup"], row["speedup.sd"]) == (2, None, None)


def test_runs_of_which_nothing_is_known_are_never_grouped(tmp_path):
    for run in ("a0", "b0"):
        Attempt(tmp_path / run / "1").claim().close()
    assert [row["seeds"] for row in _shown(tmp_path, "--group", "seed")] == [1, 1]


def test_conditions_come_before_means_and_columns_after(tmp_path):
    for seed, tokens in enumerate([1, 2, 300]):
        _store(tmp_path, f"a{seed}", seed=seed, tokens=tokens)
    asked = ["--group", "seed", "--where", "tokens<100", "--columns", "tokens,tokens.sd,seeds"]
    assert _shown(tmp_path, *asked) == [
        {"tokens": 1.5, "tokens.sd": pytest.approx(0.5**0.5), "seeds": 2}
    ]
    text = _shown(tmp_path, "--group", "seed", "--columns", "method,seeds", form="csv")
    assert text == "method,seeds\nskipdecode,3\n"


def test_rows_are_as_before_where_no_means_are_asked_for(results):
    assert list(runs.rows([results])[0]) == columns.names(["bleu"])
    assert selection.where(runs.rows([results]), []) == runs.rows([results])


def test_characters_of_two_places_keep_the_columns_straight(tmp_path):
    _store(tmp_path, "a0", setting="日本", tokens=1)
    _store(tmp_path, "b0", setting="x", tokens=2)
    lines = _shown(tmp_path, "--columns", "setting,tokens", form="table").splitlines()
    assert lines == ["setting   tokens", "─" * 16, "日本           1", "x              2"]


def test_listing_many_runs_opens_one_record_of_each_and_looks_into_each_folder_once(tmp_path):
    # Not a time: a count that tells whether the work grows with the runs alone.
    count = 500
    runpy.run_path(str(MANY))["make"](tmp_path, count)
    Attempt(tmp_path / "z0" / "1").claim().close()
    code = """
import collections, sys
from pathlib import Path
from analysis import runs
opened = collections.Counter()
def note(event, arguments):
    if event in ("open", "os.scandir", "os.listdir") and sys.argv[1] in str(arguments[0]):
        opened[event if event != "open" else Path(arguments[0]).name] += 1
sys.addaudithook(note)
runs.rendered(runs.rows([Path(sys.argv[1])]), "table")
print(dict(sorted(opened.items())))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # The lock and the start (which is not there) of the run that has no header; no batches at all.
    expected = {"header.json": count, "lock": 1, "os.scandir": count + 2, "start.json": 1}
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


@pytest.mark.slow
def test_ten_thousand_runs_are_listed_in_five_seconds_of_processor_time_and_one_gigabyte():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(MANY), "10000"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    pattern = r"10000 runs, (.+): .+ s \((.+) s of processor time\), (\d+) MB"
    found = re.findall(pattern, done.stdout)
    assert len(found) == 5
    assert {name: (s, mb) for name, s, mb in found if float(s) >= 5 or int(mb) >= 1000} == {}
