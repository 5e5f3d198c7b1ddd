"""The demo task: splits that never meet, texts that state their facts, the same ones everywhere."""

import hashlib
import itertools
import re
import subprocess
import sys

import pytest

from bench.errors import InputError
from bench.scores import slot_error_rate
from bench.tasks import demo
from bench.tasks.contract import Example


@pytest.fixture(scope="module")
def task() -> demo.Task:
    return demo.Task(demo.Params(train_pairs=3000))


def test_number_of_inputs_is_names_times_sets_of_two_or_more_optional_slots():
    sizes = [12, 7, 10, 10, 8, 2]
    by_hand = sum(
        a * b * c * d * e * f
        for a, b, c, d, e, f in itertools.product(*((1, size) for size in sizes))
    )
    by_hand = 48 * (by_hand - 1 - sum(sizes))
    assert demo.num_inputs() == by_hand == 16_306_464


def test_no_input_occurs_in_two_splits(task):
    train = {pair.prompt for pair in task.training_pairs()}
    validation = {example.prompt for example in task.examples("validation")}
    test = {example.prompt for example in task.examples("test")}
    assert (len(validation), len(test)) == (512, 512)
    assert not train & validation
    assert not train & test
    assert not validation & test


def test_first_validation_example_is_this_one(task):
    first = task.examples("validation")[0]
    assert first.id == "0"
    assert first.prompt == (
        "name[Pebble Refuge], valley[Orrin], path[steep], beds[8], supper[potato cakes], "
        "season[April to November], dogs[yes]\n"
    )
    assert first.references[0] == (
        "Pebble Refuge is a small mountain refuge in the Orrin valley up a steep path. It "
        "has 8 beds and cooks potato cakes for supper. The refuge stays open from April "
        "to November, and dogs may come in."
    )


def test_texts_are_the_same_whatever_the_hash_seed(task):
    code = (
        "import hashlib; from bench.tasks import demo; "
        "pairs = demo.Task(demo.Params(500)).training_pairs(); "
        "print(hashlib.sha256(repr(pairs).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = hashlib.sha256(repr(task.training_pairs()[:500]).encode()).hexdigest()
    assert digests == {here}


def test_fewer_training_pairs_are_a_prefix_of_more(task):
    few = demo.Task(demo.Params(train_pairs=10)).training_pairs()
    assert len(few) == 10
    assert few == task.training_pairs()[:10]


def test_train_examples_are_the_distinct_inputs_of_the_pairs(task):
    prompts = [example.prompt for example in task.examples("train")]
    assert prompts == list(dict.fromkeys(pair.prompt for pair in task.training_pairs()))


def test_every_reference_states_every_fact_once_and_no_other_one(task):
    examples = [*task.examples("validation"), *task.examples("test")]
    for example in examples:
        assert len(set(example.references)) == 6
        for reference in example.references:
            slots = float(len(example.facts))
            assert slot_error_rate.statistics(reference, example) == (0.0, slots), reference


def test_every_training_target_states_its_prompt(task):
    for pair in task.training_pairs():
        facts = dict(re.findall(r"(\w+)\[([^\]]+)\]", pair.prompt))
        example = Example("0", pair.prompt, (pair.target,), facts, demo.VOCABULARY)
        assert slot_error_rate.statistics(pair.target, example) == (0.0, float(len(facts)))


def test_targets_have_21_to_48_words_in_at_most_three_sentences(task):
    targets = [pair.target for pair in task.training_pairs()]
    lengths = [len(target.split()) for target in targets]
    assert min(lengths) >= 21
    assert max(lengths) <= 48
    assert 33 < sum(lengths) / len(lengths) < 36
    assert {target.count(".") for target in targets} == {2, 3}


def test_prompts_have_three_to_seven_slots_equally_often(task):
    counts = [pair.prompt.count("[") for pair in task.training_pairs()]
    assert {count: counts.count(count) > 500 for count in set(counts)} == dict.fromkeys(
        range(3, 8), True
    )


def test_no_wording_holds_another_one_as_a_run_of_words():
    wordings = [
        f" {wording.lower()} "
        for slot in demo.VOCABULARY.values()
        for choices in slot.values()
        for wording in choices
    ]
    assert len(wordings) > 100
    assert not [(a, b) for a, b in itertools.permutations(wordings, 2) if a in b]


def test_zero_training_pairs_are_refused_with_the_key():
    with pytest.raises(InputError, match=r"task\.train_pairs"):
        demo.Params(train_pairs=0)
