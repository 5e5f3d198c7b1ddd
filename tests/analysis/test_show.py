"""One run on a page: its numbers against the records, and what the eye is told beside them."""

import json
import re

import pytest

from analysis import __main__ as program
from analysis import layout, record, show
from bench import stats

SCORE = "slot_error_rate"
# Later batches take longer: a drift, and three speed-ups that differ.
DRIFTING = [[0.1], [0.1], [0.1], [0.2], [0.2], [0.4], []]


@pytest.fixture
def page(stored, tmp_path):
    """``page(...)``: that of a run stored so."""

    def make(**changed):
        stored("a0b1", **changed)
        (run,) = record.found([tmp_path], ["a0b1"])
        return show.page(run)

    return make


def _lines(text, start):
    """The lines that begin so, their spaces made one."""
    return [" ".join(line.split()) for line in text.splitlines() if line.startswith(start)]


def test_each_definition_of_the_speedup_is_named_with_its_own_number_and_interval(page):
    found = page(seconds=DRIFTING)["speedups"]
    legs = ([0.5] * 6, [5] * 6, [0.1, 0.1, 0.1, 0.2, 0.2, 0.4], [5] * 6)
    assert set(found) == set(stats.SPEEDUPS)
    for name, definition in stats.SPEEDUPS.items():
        value, (low, high) = definition(*legs)
        assert found[name] == {"value": value, "low": low, "high": high}
        assert low < value < high
    assert len({round(each["value"], 9) for each in found.values()}) > 1


def test_drift_is_the_speedup_of_either_half(page):
    assert page(seconds=DRIFTING)["drift"] == pytest.approx(
        {"first_half": 1.5 / 0.3, "second_half": 1.5 / 0.8}
    )


def test_latency_is_of_both_legs_over_timed_passes(page):
    found = page(seconds=[[0.2, 0.3]] * 10 + [[]])["latency"]
    assert {leg: each["timed_passes"] for leg, each in found.items()} == {
        "method": 20,
        "baseline": 20,
    }
    # By the longest row, of 3 decode tokens.
    assert found["method"]["tpot_s"] == pytest.approx(0.25 / 3)
    assert found["baseline"]["tpot_s"] == pytest.approx(0.5 / 3)
    assert found["method"]["tpot_p95_s"] == pytest.approx(0.3 / 3)


@pytest.mark.parametrize(("passes", "shown"), [(99, False), (100, True)])
def test_the_99th_percentile_is_withheld_under_100_passes(page, passes, shown):
    found = page(seconds=[[0.2] * passes])
    latency = found["latency"]["method"]
    assert [latency[name] is not None for name in ("ttft_p99_s", "tpot_p99_s")] == [shown] * 2
    (line,) = _lines(layout.rendered(found, None), "method tpot")
    assert line == f"method tpot 66.67 66.67 {'66.67 ' if shown else ''}{passes}"


def test_promises_stand_beside_what_was_measured(page):
    found = page()["promises"]
    assert found["measured"] == pytest.approx(2.0)
    # Both legs ran the same counts.
    assert found["flops"] == pytest.approx(1.0)
    assert {"bytes", "roofline", "model", "lost_to_overhead"} <= set(found)


@pytest.mark.parametrize(("margin", "verdict"), [(0.01, "inferior"), (0.5, "non_inferior")])
def test_a_score_has_its_intervals_its_margin_and_the_verdict(page, margin, verdict):
    found = page(margin=margin)
    score = found["scores"][SCORE]
    assert (score["score"], score["dense"], score["diff"]) == pytest.approx((1 / 8, 0, 1 / 8))
    assert score["diff.low"] < score["diff"] < score["diff.high"]
    assert (score["diff.margin"], score["diff.verdict"]) == (margin, verdict)
    (line,) = _lines(layout.rendered(found, None), SCORE)
    assert line.endswith(verdict.replace("_", " "))
    assert re.search(r"0\.125 \[0\.0\d+, 0\.1\d+\]", line)


def test_every_segment_says_where_and_with_what_it_measured(page):
    changed = ({}, {"hostname": "node2", "git_revision": "b" * 40, "git_dirty": True})
    found = page(provenances=changed, segment_of={4: 1, 5: 1, 6: 1})
    first, second = found["segments"]
    assert (first["hostname"], first["threads"], first["timed_batches"]) == ("node1", 2, 4)
    assert (second["hostname"], second["timed_batches"]) == ("node2", 2)
    assert [each["field"] for each in found["unlike_segments"]] == ["git_revision", "git_dirty"]
    text = layout.rendered(found, None)
    assert "bbbbbbbbbbbb dirty" in _lines(text, "node2")[0]
    assert _lines(text, "! The segments of this run differ in git_revision")
    # The dirty tree makes the second one's times doubtful.
    assert (first["warnings"], len(second["warnings"])) == ([], 1)
    assert second["warnings"][0] in text


def test_a_run_of_one_segment_is_not_flagged(page):
    found = page()
    assert found["unlike_segments"] == []
    assert "!" not in layout.rendered(found, None)


def test_a_run_without_a_baseline_has_no_speedup_and_no_empty_section(page):
    found = page(dense_s=None)
    assert (found["speedups"], found["drift"], list(found["latency"])) == ({}, {}, ["method"])
    text = layout.rendered(found, None)
    assert _lines(text, "speed-up") == []
    assert _lines(text, "method tpot")
    assert "None" not in text


def test_batches_that_were_not_timed_leave_times_unknown(page):
    found = page(seconds=[[], []])
    assert {each["value"] for each in found["speedups"].values()} == {None}
    assert found["latency"]["method"]["ttft_s"] is None
    assert _lines(layout.rendered(found, None), "method ttft") == []


def test_the_program_shows_the_page_and_gives_the_same_as_json(stored, tmp_path, capsys):
    stored("a0b1", provenances=({"cpu_model": "EPYC [bold]"},))
    options = ["--results", str(tmp_path)]
    assert program.main(["show", "a0", *options]) == 0
    text = capsys.readouterr().out
    assert text.startswith("run a0b1, attempt 1: calm on tiny, demo\n")
    assert "EPYC [bold]" in text
    assert max(map(len, text.splitlines()[2:])) <= layout.WIDTH
    assert program.main(["show", "a0", "--format", "json", *options]) == 0
    (run,) = record.found([tmp_path], ["a0"])
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(show.page(run)))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a0b1", "--format", "csv"], "no output format"),
        (["b"], "There is no run of this id"),
        ([], "RUN_ID"),
        (["a0b1", "a0b1"], "unrecognized"),
    ],
)
def test_what_cannot_be_shown_is_refused(stored, tmp_path, capsys, arguments, told):
    stored("a0b1")
    assert program.main(["show", *arguments, "--results", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in shown.err
