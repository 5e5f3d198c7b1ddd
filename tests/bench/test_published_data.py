"""Full published files, where --data-dir gives them: known counts, scores of references."""

from statistics import fmean

import pytest

from bench.lookup import find
from bench.scores import gsm8k_flexible, gsm8k_strict


@pytest.fixture
def task(configured, published):
    """``task(name)``: a task as its conf has it, on its published files."""

    def make(name, *overrides):
        given = [f"task={name}", f"task.data_dir={published(name)}", *overrides]
        return find("bench.tasks", name, "task").Task(
            configured("+method=dense", *given).task.params
        )

    return make


def test_e2e_has_the_known_rows_and_distinct_inputs(task):
    made = task("e2e")
    assert len(made.training_pairs()) == 42061
    for split, rows, inputs in (("validation", 4672, 547), ("test", 4693, 630)):
        found = made.examples(split)
        assert len(found) == inputs
        assert sum(len(example.references) for example in found) == rows
        about = made.about(split)
        assert (about["rows"], about["distinct_prompts"]) == (rows, inputs)


def test_gsm8k_has_the_known_rows_and_five_worked_examples(task):
    made = task("gsm8k")
    assert len(made.training_pairs()) == 7473
    found = made.examples("test")
    assert len(found) == 1319
    assert {example.prompt.count("\n#### ") for example in found} == {5}
    assert len({example.prompt.rpartition("Question: ")[0] for example in found}) == 1


@pytest.mark.parametrize("score", [gsm8k_strict, gsm8k_flexible], ids=["strict", "flexible"])
def test_every_gold_answer_of_gsm8k_is_right(task, score):
    for split in ("train", "test"):
        examples = task("gsm8k", "task.shots=0").examples(split)
        rows = [score.statistics(example.references[0], example) for example in examples]
        assert fmean(right for right, _ in rows) == 1.0


def test_commas_and_signs_of_gsm8k_are_met(task):
    examples = task("gsm8k", "task.shots=0").examples("test")
    final = [example.references[0].split("#### ")[1] for example in examples]
    assert sum("," in number for number in final) == 14
    assert sum(number.startswith("-") for number in final) == 2
