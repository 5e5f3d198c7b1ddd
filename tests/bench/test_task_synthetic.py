"""The synthetic task: lengths alone, the same prompts in any batch, and no score of 0."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from analysis import __main__ as program
from analysis import runs
from bench import drawn
from bench.calibration_plan import plan_calibration
from bench.config import FaultsError
from bench.errors import InputError
from bench.planning import plan
from bench.preparation import prepare
from bench.run import run
from bench.tasks import synthetic
from methods.engine.drawing import uniforms

ROOT = Path(__file__).resolve().parents[2]
MODELS = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))
# What their tokenizers keep for themselves; of llama3 and qwen2.5 by their first such id.
RESERVED = {
    "opt1.3b": [*range(4), *range(50265, 50272)],
    "llama2-7b": [0, 1, 2],
    "codellama-7b": [0, 1, 2, *range(32007, 32016)],
    "llama3-8b": range(128000, 128256),
    "qwen2.5-0.5b": range(151643, 151936),
    "smollm2-135m": range(17),
}
SMALL = (
    *("task=synthetic", "model=scratch", "model.weights=random", "gpu=cpu", "verbosity=quiet"),
    *("model.shape.num_layers=4", "model.shape.width=32", "model.shape.ffn_width=64"),
    *("model.shape.vocab_size=100", "task.prompt_lengths=2..9", "task.max_new_tokens=5"),
    *("meter.batch_size=2", "meter.timed_batches=2", "meter.repeats=1", "meter.warmups=0"),
)


@pytest.fixture(scope="module")
def planned(configured, tmp_path_factory):
    """``planned(*changes, method)``: the small run, planned."""
    folder = tmp_path_factory.mktemp("planned")

    def make(*changes, method="skipdecode"):
        return plan(configured(f"+method={method}", *SMALL, f"results_dir={folder}", *changes))

    return make


def lengths(given, number):
    task = synthetic.Task(synthetic.Params(given))
    return [example.drawn.tokens for example in task.examples("validation")[:number]]


def test_a_fixed_length_is_that_of_every_prompt():
    assert lengths(64, 100) == [64] * 100


def test_the_first_prompt_of_a_range_is_the_longest_and_none_leaves_it():
    found = lengths("16..128", 2000)
    assert found[0] == max(found) == 128
    assert min(found) == 16


def test_a_range_is_spread_evenly_over_all_prompts_and_over_any_batch():
    found = lengths("16..128", 1130)
    # Ten of each of the 113 lengths.
    assert {found.count(length) for length in range(16, 129)} <= {9, 10, 11}
    for start in range(0, 1120, 8):
        batch = sorted(found[start : start + 8])
        # Each quarter of the range has at least one of eight rows, and at most three.
        quarters = [sum(low <= each < low + 28.25 for each in batch) for low in (16, 44.25, 72.5)]
        assert all(1 <= each <= 3 for each in quarters), batch


@pytest.mark.parametrize("given", ["0", "7..5", "0..4", "many", "'3..'", "-1", "1.5"])
def test_lengths_that_are_none_are_refused_by_their_key(given, configured):
    with pytest.raises((InputError, FaultsError), match=r"task\.prompt_lengths"):
        configured("+method=dense", "task=synthetic", f"task.prompt_lengths={given}")


@pytest.mark.parametrize("name", MODELS)
def test_drawn_ids_are_never_special(name, configured):
    shape = configured("+method=dense", f"model={name}").model.configured_shape()
    allowed = set(drawn.plain_ids([shape]))
    special = {shape.bos_token_id, shape.pad_token_id, *shape.eos_token_ids}
    assert not allowed & (special | set(RESERVED.get(name, ())))
    assert allowed <= set(range(shape.vocab_size))
    # Little is lost, so that rows of the embedding are read as widely as by a text.
    assert len(allowed) > 0.95 * shape.vocab_size


def test_two_vocabularies_share_the_ids_that_both_know(tiny_shape):
    small, large = tiny_shape("an OPT"), tiny_shape("an OPT", vocab_size=200, pad_token_id=33)
    both = drawn.plain_ids([large, small])
    assert max(both) < 61
    assert not {2, 1, 33} & set(both)


def test_a_vocabulary_of_special_ids_alone_is_refused(tiny_shape):
    with pytest.raises(InputError, match="no ids to draw"):
        drawn.plain_ids([tiny_shape("an OPT", vocab_size=4)])


def rows(shape, part, bos=2, given="3..12", split="validation"):
    task = synthetic.Task(synthetic.Params(given))
    return drawn.rows(task.examples(split)[part], bos, [shape])


def test_a_prompt_depends_on_its_number_alone(tiny_shape):
    shape = tiny_shape("an OPT")
    every = rows(shape, slice(64))
    assert rows(shape, slice(30, 37)) == every[30:37]
    assert len({tuple(row) for row in every}) == 64
    assert rows(shape, slice(64), split="test") != every
    # The beginning of a longer prompt is the shorter one.
    longer = rows(shape, slice(64), given=20)
    assert [long[: len(row)] for long, row in zip(longer, every, strict=True)] == every


def test_prompts_are_these_on_every_machine_and_in_every_version(tiny_shape):
    assert rows(tiny_shape("an OPT"), slice(2), given="3..6") == [
        [2, 9, 52, 23, 33, 34],
        [2, 43, 14, 44],
    ]


def test_bos_comes_first_and_is_counted_where_a_model_has_one(tiny_shape):
    shape = tiny_shape("an OPT")
    for row in rows(shape, slice(50), given=7):
        assert (len(row), row[0], row.count(2)) == (7, 2, 1)
    bare = rows(shape, slice(50), bos=None, given=7)
    assert all(len(row) == 7 and 2 not in row for row in bare)
    assert rows(shape, slice(1), given=1) == [[2]]


def test_prompts_are_not_what_sampling_draws(tiny_shape):
    """Both count under a key of two numbers: a run of seed 202 must not sample its own prompts."""
    shape = tiny_shape("an OPT", vocab_size=50000)
    allowed = drawn.plain_ids([shape])
    sampled = uniforms(202, [0], 16).flatten().tolist()
    as_ids = [allowed[int(number * len(allowed))] for number in sampled]
    [prompt] = rows(shape, slice(1), bos=None, given=64)
    assert sum(a == b for a, b in zip(as_ids, prompt, strict=True)) < 3


def test_the_task_chooses_fixed_length_and_refuses_another(planned):
    assert planned().config.decode.length == "fixed"
    for asked in ("decode=until_eos", "decode.length=until_eos"):
        with pytest.raises(InputError, match=r"decode\.length=until_eos") as caught:
            planned(asked)
        assert "decode=fixed" in str(caught.value)


def test_as_many_prompts_are_decoded_as_are_timed_unless_asked(planned):
    assert len(planned().examples) == 4
    assert len(planned("meter.batch_size=3").examples) == 6
    assert len(planned("task.limit=9").examples) == 9


def test_a_run_is_another_one_for_other_lengths_split_or_limit(planned):
    changes = (
        "task.max_new_tokens=6",
        "task.prompt_lengths=2..10",
        "task.split=test",
        "task.limit=5",
        "seed=1",
    )
    ids = [planned(*change).run_id for change in ((), *((each,) for each in changes))]
    assert len(set(ids)) == len(ids)
    # Said or not said, the limit is the same.
    assert planned("task.limit=4").run_id == ids[0]


def test_the_seed_of_a_run_changes_no_prompt(planned):
    assert prepare(planned()).rows == prepare(planned("seed=5")).rows


def test_the_hash_of_other_tasks_examples_is_what_it_was(configured):
    found = plan(configured("+method=dense", "task.limit=3", "gpu=cpu"))
    total = hashlib.sha256()
    for each in found.examples:
        total.update(repr((each.id, each.prompt, each.references)).encode())
    assert found.identity["task"]["examples"] == total.hexdigest()[:16]


@pytest.mark.parametrize(("clock", "expected"), [("generated", 5), ("position", 12)])
def test_a_schedule_is_as_long_as_what_is_decoded(clock, expected, planned):
    prepared = prepare(planned(f"method.clock={clock}"))
    assert [len(row) for row in prepared.rows] == [9, 5, 8, 3]
    # By position: a median of 6.5 tokens, and 5 new ones.
    assert prepared.params.schedule_length == expected


def test_it_can_be_neither_trained_on_nor_calibrated_with(configured, tmp_path):
    with pytest.raises(InputError, match="no texts to train on"):
        synthetic.Task(synthetic.Params(4)).training_pairs()
    config = configured("+method=calm", "task=synthetic", f"results_dir={tmp_path}")
    with pytest.raises(InputError, match="no score"):
        plan_calibration(config)


@pytest.fixture(scope="module")
def results(configured, tmp_path_factory):
    """Three runs without a score, one on a checkpoint without a tokenizer, and one with scores."""
    folder = tmp_path_factory.mktemp("synthetic")
    bare = shutil.copytree(
        ROOT / "bench" / "embedded" / "tiny" / "dense",
        folder / "bare",
        ignore=shutil.ignore_patterns("tokenizer*"),
    )
    results = folder / "runs"
    real = ("model=tiny", "model.weights=checkpoint", f"model.checkpoint={bare}")
    short = ("meter.batch_size=2", "meter.repeats=1", "decode.max_new_tokens=4", "gpu=cpu")
    for changes in (
        ("+method=skipdecode", *SMALL),
        ("+method=prompt_lookup", *SMALL),
        ("+method=dense", *SMALL[:1], *short, *real, "meter.timed_batches=2"),
        ("+method=dense", "task.limit=4", *short),
    ):
        run(configured(*changes, "verbosity=quiet", f"results_dir={results}"))
    return results


def test_columns_of_scores_are_empty_and_never_0(results):
    table = {(row["method"], row["task"]): row for row in runs.rows([results])}
    assert len(table) == 4
    for (_, task), row in table.items():
        scores = {name: value for name, value in row.items() if "bleu" in name or "rouge" in name}
        assert len(scores) == 18
        known = {value is not None for name, value in scores.items() if name == "score.bleu"}
        assert known == {task == "demo"}
        if task == "synthetic":
            assert set(scores.values()) == {None}
            assert row["decode_tokens_per_s"] > 0
            assert row["length"] == "fixed"


def test_ids_are_compared_where_a_method_claims_them(results):
    table = {(row["method"], row["task"]): row for row in runs.rows([results])}
    assert table["prompt_lookup", "synthetic"]["identical_to_dense"] == 1
    assert table["prompt_lookup", "synthetic"]["differences_beyond_ties"] == 0
    # Without a claim and without quality they would say nothing.
    assert table["skipdecode", "synthetic"]["identical_to_dense"] is None
    assert table["skipdecode", "synthetic"]["speedup"] > 0


def test_records_hold_ids_and_no_text(results):
    for path in results.glob("*/*/batches.jsonl"):
        start = json.loads((path.parent / "start.json").read_text())
        for line in path.read_text().splitlines():
            record = json.loads(line)
            for leg in record["legs"].values():
                none = start["columns"]["task"] == "synthetic"
                assert (leg["texts"] is None) == none
                assert all(leg["ids"])
                if none:
                    assert (leg["scores"], leg["statistics"]) == ({}, {})


def test_a_run_without_scores_can_be_shown_and_compared(results, capsys):
    found = {row["method"]: row["run_id"] for row in runs.rows([results])}
    ids = [found["skipdecode"], found["prompt_lookup"]]
    for words in (["show", ids[0]], ["compare", *ids, "--allow-unlike"]):
        program.main([*words, "--results", str(results)])
        assert ids[0] in capsys.readouterr().out
