"""Spec-Bench: all first turns, then second ones that hold the answer of this very run."""

import json

import pytest

from bench.errors import InputError
from bench.planning import plan
from bench.preparation import prepare
from bench.run import run
from bench.summary import BASELINE, METHOD

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again, shorter."]},
    {
        "question_id": 161,
        "category": "translation",
        "turns": ["Translate: ja"],
        "reference": ["yes"],
    },
    {"question_id": 482, "category": "rag", "turns": ["One passage.\nAnd one.\nWho?"]},
    {"question_id": 82, "category": "roleplay", "turns": ["Play.", "Go on."]},
]
SHORT = (
    *("task.template='USER: {question} BOT:'", "decode.max_new_tokens=4", "meter.repeats=1"),
    "task.next_template='USER: {first} BOT: {answer} USER: {question} BOT:'",
)


@pytest.fixture
def planned(configured, tmp_path):
    """``planned(*overrides)``: a run on four questions."""
    lines = "\n".join(map(json.dumps, QUESTIONS))
    (tmp_path / "question.jsonl").write_text(lines + "\n", encoding="utf-8")

    def make_plan(*overrides):
        given = ["task=spec_bench", f"task.data_dir={tmp_path}", f"results_dir={tmp_path}"]
        return plan(configured("+method=skipdecode", "verbosity=quiet", *given, *SHORT, *overrides))

    return make_plan


def test_second_turns_come_after_all_first_ones(planned):
    found = planned().examples
    assert [each.id for each in found] == ["81.1", "161.1", "482.1", "82.1", "81.2", "82.2"]
    assert [each.after for each in found[4:]] == ["81.1", "82.1"]
    assert found[0].prompt == "USER: Write. BOT:"
    assert found[4].prompt == "USER: Write. BOT:  USER: Again, shorter. BOT:"


def test_the_question_behind_passages_is_a_field_of_its_own(planned):
    rag = planned().examples[2]
    assert rag.prompt == "USER: One passage.\nAnd one.\nWho? BOT:"
    assert rag.parts.fields == {"passages": "One passage.\nAnd one.", "question": "Who?"}


def test_a_category_or_mt_bench_chooses_questions(planned):
    ids = {
        name: [each.id for each in planned(f"task.category={name}").examples]
        for name in ("rag", "mt_bench")
    }
    assert ids == {"rag": ["482.1"], "mt_bench": ["81.1", "82.1", "81.2", "82.2"]}
    with pytest.raises(InputError, match="no such category"):
        planned("task.category=cooking")


def test_the_vicuna_template_stands_in_one_line(configured, tmp_path):
    params = configured("+method=dense", "task=spec_bench").task.params
    assert params.template.endswith("user's questions. USER: {question} ASSISTANT:")
    assert params.next_template.endswith("ASSISTANT: {answer} USER: {question} ASSISTANT:")
    assert "\n" not in params.template + params.next_template


@pytest.mark.parametrize("baseline", ["auto", "none"])
def test_a_second_turn_holds_the_first_answer_of_the_run(planned, capsys, baseline):
    mine = planned("meter.batch_size=2", f"meter.baseline={baseline}")
    attempt = run(mine.config)
    records = list(attempt.batches())
    leg = BASELINE if baseline == "auto" else METHOD
    answer = records[0].legs[leg].texts[0]
    text = prepare(mine).text
    second = f"USER: Write. BOT: {answer} USER: Again, shorter. BOT:"
    assert answer
    assert records[2].example_ids == ["81.2", "82.2"]
    assert records[2].prompt_tokens[0] == len(text.prompt(second))


def test_a_batch_that_would_hold_both_turns_is_refused(planned, capsys):
    with pytest.raises(InputError, match="in one batch") as caught:
        run(planned("meter.batch_size=6").config)
    assert "meter.batch_size" in caught.value.where
