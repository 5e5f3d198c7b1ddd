"""Runs beside a reference: numbers by hand, refusals, marks, and how runs are found."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import __main__ as program
from analysis import compare, record
from bench import stats

ROOT = Path(__file__).resolve().parents[2]
SCORE = "slot_error_rate"
FIXED = {"decode": {"length": "fixed", "max_new_tokens": 64, "choose": "greedy"}}
REFERENCE = [[0.4], [0.5], [0.4], [0.6], [0.4], [0.5], []]
# Each batch in two passes, whose mean counts.
FASTER = [[0.1, 0.3], [0.2, 0.2], [0.2, 0.3], [0.2, 0.4], [0.1, 0.1], [0.3, 0.3], []]


def _rows(results, *wanted):
    reference, *others = record.found([results], wanted)
    return compare.compared(reference, others)


def _call(results, *arguments, form="json"):
    """Exit code and text of the program."""
    out = results / "out.txt"
    options = ["--results", str(results), "--format", form, "--out", str(out)]
    code = program.main(["compare", *arguments, *options])
    return code, out.read_text(encoding="utf-8") if out.exists() else ""


@pytest.fixture
def two(stored):
    """A reference, and a run that is faster and makes more errors."""
    stored("a0", seconds=REFERENCE, errors=(1, 0), method="calm")
    stored("b0", seconds=FASTER, errors=(2, 1), method="layerskip")


def test_the_ratio_is_of_method_legs_with_repeats_averaged(two, tmp_path):
    reference, other = _rows(tmp_path, "a0", "b0")
    mine, theirs = [0.4, 0.5, 0.4, 0.6, 0.4, 0.5], [0.2, 0.2, 0.25, 0.3, 0.1, 0.3]
    assert other["ratio"] == pytest.approx(sum(mine) / sum(theirs))
    _, (low, high) = stats.speedup(mine, [5] * 6, theirs, [5] * 6)
    assert (other["ratio_low"], other["ratio_high"]) == pytest.approx((low, high))
    assert low < other["ratio"] < high
    assert (other["batches"], other["measured_in"]) == (6, "separate processes")
    alone = ("ratio", "ratio_low", "batches", "measured_in", "unlike", f"diff.{SCORE}")
    assert [reference[name] for name in alone] == [None] * len(alone)


def test_the_runs_own_paired_speedup_stands_beside_the_ratio(two, tmp_path):
    reference, other = _rows(tmp_path, "a0", "b0")
    assert reference["speedup"] == pytest.approx(6 * 0.5 / 2.8)
    assert other["speedup"] == pytest.approx(6 * 0.5 / 1.35)
    assert other["speedup_low"] < other["speedup"] < other["speedup_high"]


def test_only_batches_that_both_timed_count(stored, tmp_path):
    stored("a0", seconds=REFERENCE)
    stored("b0", seconds=[[], [0.25], [0.2], [], [], [], []])
    _, other = _rows(tmp_path, "a0", "b0")
    assert other["batches"] == 2
    assert other["ratio"] == pytest.approx((0.5 + 0.4) / (0.25 + 0.2))
    assert other["ratio_low"] is None


def test_without_a_batch_that_both_timed_there_is_no_ratio(stored, tmp_path):
    stored("a0", seconds=[[0.4], []])
    stored("b0", seconds=[[], [0.4]])
    _, other = _rows(tmp_path, "a0", "b0")
    assert (other["batches"], other["ratio"], other["ratio_low"]) == (0, None, None)


def test_a_score_differs_by_run_less_reference_over_the_same_examples(two, tmp_path):
    _, other = _rows(tmp_path, "a0", "b0")
    # 3 of 8 slots wrong in each batch against 1 of 8.
    assert other[f"diff.{SCORE}"] == pytest.approx(3 / 8 - 1 / 8)
    assert other["examples"] == 14
    # Each example loses one slot of four, so no resample differs: only a pairing gives this.
    ends = (other[f"diff.{SCORE}.low"], other[f"diff.{SCORE}.high"])
    assert ends == pytest.approx((0.25, 0.25))


def test_examples_are_matched_by_their_ids_wherever_they_stand(stored, tmp_path):
    stored("a0", seconds=[[0.2]] * 3, errors=(1, 0))
    stored("b0", seconds=[[0.2]] * 2, errors=(1, 2), row_order=(1, 0))
    _, other = _rows(tmp_path, "a0", "b0")
    assert other["examples"] == 4
    # Row by row they would differ by 0 and 2 slots; by id each differs by 1.
    shown = [other[f"diff.{SCORE}{end}"] for end in ("", ".low", ".high")]
    assert shown == pytest.approx([0.25] * 3)


def test_unlike_runs_are_refused_with_every_field_and_both_values(stored, tmp_path, capsys):
    stored("a0")
    stored("b0", provenances=({"cpu_model": "Xeon", "threads": 8},))
    assert _call(tmp_path, "a0", "b0") == (2, "")
    told = capsys.readouterr().err
    assert "cpu_model: EPYC / Xeon; threads: 2 / 8" in told
    assert "--allow-unlike" in told
    assert [line.split(":")[0].strip() for line in told.splitlines()[1:]] == [
        *("got", "allowed", "where")
    ]


def test_the_override_marks_each_affected_row_in_every_format(stored, tmp_path):
    stored("a0")
    stored("b0", provenances=({"cpu_model": "Xeon", "threads": 8},))
    stored("c0")
    _, table = _call(tmp_path, "a0", "b0", "c0", "--allow-unlike", form="table")
    starts = [line.split()[0] for line in table.splitlines() if line.split()]
    assert [word for word in starts if word in ("a0", "b0", "!b0", "c0", "!c0")] == [
        *("a0", "!b0", "c0", "!b0")
    ]
    note = "!b0 is unlike the reference in: cpu_model: EPYC / Xeon; threads: 2 / 8"
    assert table.splitlines()[-1] == note
    _, text = _call(tmp_path, "a0", "b0", "c0", "--allow-unlike")
    assert [row["unlike"] for row in json.loads(text)] == [None, "cpu_model, threads", None]
    _, text = _call(tmp_path, "a0", "b0", "c0", "--allow-unlike", form="csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["unlike"] for row in rows] == ["", "cpu_model, threads", ""]
    assert [row["run_id"] for row in rows] == ["a0", "b0", "c0"]


def test_the_two_stop_rules_are_refused_even_with_the_override(stored, tmp_path, capsys):
    stored("a0")
    stored("b0", identity=FIXED)
    assert _call(tmp_path, "a0", "b0", "--allow-unlike") == (2, "")
    assert "decode.length: until_eos / fixed" in capsys.readouterr().err


def test_alike_runs_are_compared_without_a_mark_and_with_the_note(two, tmp_path):
    code, table = _call(tmp_path, "a0", "b0", form="table")
    assert code == 0
    assert "!" not in table
    assert "weaker than" in table
    assert "separate processes" in table
    assert all(row["unlike"] is None for row in json.loads(_call(tmp_path, "a0", "b0")[1]))


def test_a_run_that_was_resumed_with_other_code_is_marked(stored, tmp_path, capsys):
    stored("a0")
    changed = ({}, {"git_revision": "b" * 40})
    stored("b0", provenances=changed, segment_of={4: 1, 5: 1})
    assert _call(tmp_path, "a0", "b0")[0] == 2
    assert "git_revision within b0: aaa" in capsys.readouterr().err
    _, text = _call(tmp_path, "a0", "b0", "--allow-unlike")
    assert json.loads(text)[1]["unlike"] == "git_revision within b0"


def test_runs_of_several_folders_are_found_by_unambiguous_beginnings(stored, tmp_path):
    stored("abc0", results=tmp_path / "one")
    stored("abd0", results=tmp_path / "two")
    stored("ab", results=tmp_path / "two")
    folders = [tmp_path / "one", tmp_path / "two", tmp_path / "one"]
    found = record.found(folders, ["abd", "abc", "ab"])
    assert [run.start.run_id for run in found] == ["abd0", "abc0", "ab"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a0"], "nothing to compare"),
        (["a0", "c9"], "There is no run of this id"),
        (["a0", "b7fd"], "near: b7fe"),
        (["a0", ""], "There is no run of this id"),
        (["a0", "b"], "More than one run"),
        (["a0", "d0"], "stopped"),
        (["a0", "a"], "A run is named twice"),
        (["a0", "e0"], "More than one run"),
        (["a0", "b7fe", "--format", "xml"], "no output format"),
        (["a0", "b7fe", "--allow-unalike"], "--allow-unalike"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_four_parts(
    stored, tmp_path, capsys, arguments, told
):
    for run_id in ("a0", "b7fe", "b800", "e0"):
        stored(run_id, results=tmp_path / "one")
    stored("d0", results=tmp_path / "one", done=False)
    stored("e0", results=tmp_path / "two")
    folders = ["--results", str(tmp_path / "one"), str(tmp_path / "two")]
    code = program.main(["compare", *arguments, *folders])
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert told in shown.err
    parts = [line.split(":")[0].strip() for line in shown.err.splitlines()[1:]]
    assert parts == ["got", "allowed", "where"]


@pytest.mark.parametrize("arguments", [["compare", "a0", "b0"], ["show", "a0"]])
def test_single_runs_are_read_without_torch(two, tmp_path, arguments):
    code = (
        "import sys; from analysis.__main__ import main; code = main(sys.argv[1:])\n"
        "sys.exit(code or sorted({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", code, *arguments, "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "layerskip" in done.stdout or "calm on tiny" in done.stdout
