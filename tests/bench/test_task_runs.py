"""A public data set through a whole run: what is cut, what is scored, what the record tells."""

import json
from types import SimpleNamespace

import pytest

from bench.errors import InputError
from bench.examples import tokenise
from bench.planning import plan
from bench.preparation import prepare
from bench.run import run
from bench.tasks.contract import Pair, Parts
from bench.text import until
from bench.treatment import measuring_plan


@pytest.fixture
def planned(configured, tmp_path):
    """``planned(*overrides)``: a run on three problems, with three more to learn from."""
    for split in ("train", "test"):
        rows = [{"question": f"{split} {n}?", "answer": f"Yes.\n#### {n}"} for n in range(3)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def make_plan(*overrides):
        given = ["task=gsm8k", f"task.data_dir={tmp_path}", f"results_dir={tmp_path / 'runs'}"]
        short = ["decode.max_new_tokens=4", "meter.repeats=1", "task.shots=2", "verbosity=quiet"]
        return plan(configured("+method=skipdecode", *given, *short, *overrides))

    return make_plan


def test_the_record_tells_where_the_prompts_came_from_and_the_first_one_exactly(planned, tmp_path):
    attempt = run(planned().config)
    data = attempt.start().data
    assert data["source"] == str(tmp_path / "test.jsonl")
    assert (data["rows"], data["distinct_prompts"], len(data["shot_ids"])) == (3, 3, 2)
    asked = "".join(f"Question: train {n}?\nAnswer: Yes.\n#### {n}\n\n" for n in data["shot_ids"])
    assert data["first_prompt"] == f"{asked}Question: test 0?\nAnswer:"
    assert len(data["first_prompt_ids"]) == attempt.batches()[0].prompt_tokens[0]
    columns = attempt.header().columns
    assert columns["n_truncated"] == 0
    assert columns["score.gsm8k_strict"] is not None


def test_prompts_that_do_not_fit_are_cut_and_counted(planned):
    whole = prepare(planned())
    shortest = min(map(len, whole.rows))
    cut = prepare(planned(f"task.max_prompt_tokens={shortest - 1}"))
    assert (whole.n_truncated, cut.n_truncated) == (0, 3)
    assert cut.first_prompt.count("Question:") == 2
    assert whole.first_prompt.endswith(cut.first_prompt)
    assert len(cut.rows[0]) < len(whole.rows[0])


@pytest.mark.parametrize(
    "override",
    [
        *("task.shots=1", "task.shots_seed=3", "task.limit=2", "task.max_prompt_tokens=500"),
        *("task.shuffle_seed=3", "task.stop=[]", "task.scores=[gsm8k_strict]"),
        *("task.train_rows=2", "task.template='{question}'"),
    ],
)
def test_what_bears_on_a_number_makes_another_run(planned, override):
    assert planned(override).run_id != planned().run_id


def test_what_follows_a_stop_is_not_scored(planned):
    prepared = prepare(planned())
    ids = prepared.text.target(" Yes. Question: more")
    assert measuring_plan(prepared).decode_text(ids) == "Yes."


@pytest.mark.parametrize(
    ("stops", "expected"),
    [((), "a\nb: c"), (("\n",), "a"), (("b:", "\nb"), "a"), (("x",), "a\nb: c"), (("a",), "")],
)
def test_a_text_ends_before_the_first_stop(stops, expected):
    assert until("a\nb: c", stops) == expected


def test_a_training_prompt_is_cut_so_that_its_target_fits():
    text = SimpleNamespace(prompt=lambda t: [0, *t.split()], target=lambda t: [*t.split(), 1])
    parts = Parts("{post} TLDR", {"post": "a b c d"})
    task = SimpleNamespace(training_pairs=lambda: [Pair(parts.text(), "x y", parts)])
    (cut,) = tokenise(task, text, 7)
    assert cut.ids == (0, "a", "b", "TLDR", "x", "y", 1)
    assert cut.prompt_length == 4
    whole = SimpleNamespace(training_pairs=lambda: [Pair("a b c d TLDR", "x y")])
    with pytest.raises(InputError, match="do not fit"):
        tokenise(whole, text, 7)
