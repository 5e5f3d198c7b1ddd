"""What W&B is shown, from records by hand: nothing is invented, doubled or left out."""

from dataclasses import replace

import pytest

from bench.meters.clock import Timing
from bench.schema import SCHEMA_VERSION, BatchRecord, Header, Leg, Segment, Speculation, Start
from bench.store import Attempt
from bench.tracking import content as tracked
from bench.tracking.content import Reference
from methods.engine.ledger import Sums

AT = "2026-01-01T00:00:00+00:00"
SCORE = "slot_error_rate"


def leg(decode_s, layers, *, score=0.5, timed=True, speculation=None):
    """Two rows of 3 and 1 decode tokens."""
    return Leg(
        ids=[[5, 6, 7, 2], [8, 2]],
        texts=["a b c", "d"],
        layers=[[4, *layers], [4, layers[0]]],
        statistics={SCORE: [[1.0, 4.0], [0.0, 4.0]]},
        scores={SCORE: [score, None]},
        timings=[Timing(0.1, decode_s)] if timed else [],
        rounds=4,
        prompt_executed=Sums(),
        decode_executed=Sums(),
        decode_required=Sums(),
        speculation=speculation,
    )


def batch(index, **method):
    legs = {"method": leg(0.2, [1, 2, 3], **method), "baseline": leg(0.4, [4, 4, 4])}
    return BatchRecord(index, [f"e{index}.0", f"e{index}.1"], [9, 11], legs, [], 0)


def start(**config):
    known = {"run_id": "abc", "method": "calm", "setting": "threshold=0.9", "model": "tiny"}
    known |= {"task": "demo", "gpu": "cpu", "seed": 3, "speedup": None}
    given = {"meter": {"batch_size": 2}, "tracking": {"group": "a sweep"}} | config
    return Start(SCHEMA_VERSION, "abc", 1, {"seed": 3}, given, known, {"method": {}}, AT)


@pytest.fixture
def attempt(tmp_path):
    """A complete attempt of three batches, the last one untimed."""
    made = Attempt(tmp_path / "abc" / "1")
    with made.claim():
        made.write_start(start())
        made.append(Segment({"hostname": "first"}, AT))
        made.append(Segment({"hostname": "second"}, AT))
        for each in (batch(0), batch(1), batch(2, timed=False)):
            made.append(each)
        row = {"method": "calm", "speedup": 2.0, "speedup_low": None, f"score.{SCORE}": 0.25}
        row |= {f"dense.{SCORE}": 0.125, "examples": 6}
        made.write_header(Header(SCHEMA_VERSION, row, 3, AT))
    return made


def test_an_attempt_that_has_not_said_what_it_is_shows_nothing(tmp_path):
    assert tracked.content(Attempt(tmp_path / "abc" / "1"), 8) is None


def test_the_id_is_of_run_and_attempt(attempt):
    assert tracked.content(attempt, 8).run_id == "abc-1"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"agent_sweep_id": "s", "agent_run_id": "r"}, "r"),
        ({"agent_sweep_id": None, "agent_run_id": "r"}, "abc-1"),
        ({"agent_sweep_id": "s", "agent_run_id": None}, "abc-1"),
    ],
    ids=["by an agent", "by a shell", "by an agent that gives none"],
)
def test_an_id_is_taken_over_from_agents_alone(attempt, given, wanted):
    assert tracked.wandb_id(attempt, start(tracking=given)) == wanted


def test_names_say_what_runs_and_the_group_is_the_sweep(attempt):
    shown = tracked.content(attempt, 8)
    assert shown.name == "calm threshold=0.9 tiny demo cpu seed 3"
    assert (shown.job_type, shown.group) == ("calm", "a sweep")


def test_records_from_before_there_was_tracking_are_shown(attempt):
    old = replace(start(), config={"meter": {}, "tracking": {"name": "off"}})
    assert tracked.wandb_id(attempt, old) == "abc-1"


def test_the_configuration_keeps_its_form_and_says_where_it_ran_last(attempt):
    config = tracked.content(attempt, 8).config
    assert config["meter"] == {"batch_size": 2}
    assert config["provenance"] == {"hostname": "second"}
    assert config["segments"] == 2
    assert config["units"]["speedup"] == "ratio"


def test_the_summary_has_what_is_known_under_the_names_of_the_table(attempt):
    summary = tracked.content(attempt, 8).summary
    assert summary["speedup"] == 2.0
    assert summary["status"] == "done"
    assert "speedup_low" not in summary


def test_history_has_each_batch_with_its_own_rates(attempt):
    history = tracked.content(attempt, 8).history
    assert [row["batch"] for row in history] == [0, 1, 2]
    # 4 decode tokens in 0.2 s, against as many in 0.4 s.
    assert history[0]["method/decode_tokens_per_s"] == pytest.approx(20)
    assert history[0]["pair/speedup"] == pytest.approx(2)
    # Layers 1 2 3 and 1, over 4 tokens.
    assert history[0]["method/layers_per_token"] == pytest.approx(7 / 4)
    assert history[0][f"method/mean_{SCORE}"] == 0.5
    assert None not in history[0].values()


def test_a_batch_without_times_has_quality_alone(attempt):
    untimed = tracked.content(attempt, 8).history[2]
    assert "pair/speedup" not in untimed
    assert "method/ttft_s" not in untimed
    assert untimed["method/tokens"] == 6


def test_acceptance_is_shown_where_something_was_drafted():
    drafts = Speculation(2, 8, 6, [2], [2])
    assert tracked.history_row(batch(0, speculation=drafts))["method/acceptance_rate"] == 0.75
    nothing = Speculation(2, 0, 0, [2], [0])
    assert "method/acceptance_rate" not in tracked.history_row(batch(0, speculation=nothing))


def test_generations_show_texts_layers_and_what_was_asked(attempt):
    known = {"e0.0": Reference("say it", ("one", "two"))}
    sheet = tracked.content(attempt, 99, known).sheets["generations"]
    assert len(sheet.rows) == 6
    first = dict(zip(sheet.columns, sheet.rows[0], strict=True))
    assert first["prompt"] == "say it"
    assert first["references"] == "one\ntwo"
    assert (first["method.text"], first["method.layers"]) == ("a b c", "4 1 2 3")
    assert first["baseline.layers"] == "4 4 4 4"
    assert sheet.rows[1][1:3] == [None, None]


def test_a_task_without_texts_shows_layers_alone():
    made = batch(0)
    legs = {name: replace(leg, texts=None) for name, leg in made.legs.items()}
    first = tracked.generations([replace(made, legs=legs)], 1, {}).rows[0]
    assert first == ["e0.0", None, None, None, 4, "4 1 2 3", None, 4, "4 4 4 4"]


@pytest.mark.parametrize(
    ("total", "wanted", "chosen"),
    [(3, 8, [0, 1, 2]), (10, 5, [0, 2, 4, 6, 8]), (7, 2, [0, 3]), (5, 0, []), (0, 3, [])],
)
def test_a_sample_reaches_over_the_whole_run(total, wanted, chosen):
    assert tracked.sampled(total, wanted) == chosen


def test_every_example_has_its_scores(attempt):
    sheet = tracked.content(attempt, 1).sheets["example_scores"]
    assert [row[0] for row in sheet.rows] == ["e0.0", "e0.1", "e1.0", "e1.1", "e2.0", "e2.1"]
    first = dict(zip(sheet.columns, sheet.rows[0], strict=True))
    assert first == {
        "example_id": "e0.0",
        "batch": 0,
        "prompt_tokens": 9,
        "method.tokens": 4,
        f"method.{SCORE}": 0.5,
        "baseline.tokens": 4,
        f"baseline.{SCORE}": 0.5,
    }


def test_layers_are_averaged_over_the_rows_that_reach_a_position():
    rows = tracked.layers_by_position([batch(0)]).rows
    assert rows[:4] == [
        ["method", 0, 4, 2],
        ["method", 1, 1, 2],
        ["method", 2, 2, 1],
        ["method", 3, 3, 1],
    ]


def test_quality_stands_against_speed_with_dense_beside(attempt):
    chart = tracked.content(attempt, 8).charts[f"{SCORE}_by_speedup"]
    assert chart.sheet.rows == [["calm", 2.0, 0.25], ["dense", 1.0, 0.125]]


def test_without_a_speed_up_there_is_no_such_chart(tmp_path):
    made = Attempt(tmp_path / "abc" / "1")
    with made.claim():
        made.write_start(start())
        made.append(batch(0))
        made.write_failure("Traceback")
    shown = tracked.content(made, 8)
    assert list(shown.charts) == ["layers_by_position"]
    assert shown.summary["status"] == "failed"
