"""HumanEval on a file in the published form, and how its answers are cut and run."""

import gzip
import json

import pytest

from bench import executed, lookup, store
from bench.errors import InputError
from bench.run import run
from bench.sandbox import pool
from bench.sandbox.limits import Limits
from bench.tasks import human_eval
from bench.text import ByteTokenizer, Text, until

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
PROBLEMS = [
    {
        "task_id": "HumanEval/0",
        "prompt": '\nfrom typing import List\n\n\ndef twice(x: List[int]):\n    """Double."""\n',
        "canonical_solution": "    # each\n    return [2 * i for i in x]\n",
        "test": "\n\ndef check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n\n",
        "entry_point": "twice",
    },
    {
        "task_id": "HumanEval/1",
        "prompt": 'def helper(x):\n    return x\n\n\ndef same(x):\n    """The same {x}."""\n',
        "canonical_solution": "    return helper(x)\n",
        "test": "def check(candidate):\n    assert candidate(3) == 3\n",
        "entry_point": "same",
    },
]


@pytest.fixture
def folder(tmp_path):
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(problem) + "\n" for problem in PROBLEMS)
    return tmp_path


@pytest.fixture
def sandbox():
    why = pool.why_not()
    if why is not None:
        pytest.skip(f"no sandbox here: {why}")


def task_of(folder, **settings):
    given = {"template": "{prompt}", "target": "{canonical_solution}", "stop": STOPS}
    return human_eval.Task(human_eval.Params(data_dir=str(folder), **given | settings))


def outcomes(texts, examples):
    return executed.executor(lambda text: None)(texts, examples)


def test_an_example_is_the_prompt_and_the_published_body(folder):
    first, second = task_of(folder).examples("test")
    assert (first.id, first.prompt) == ("HumanEval/0", PROBLEMS[0]["prompt"])
    assert first.references == (PROBLEMS[0]["canonical_solution"],)
    assert second.prompt == PROBLEMS[1]["prompt"]
    # It is refused where it does not fit, for its end must not be cut.
    assert first.parts is None


def test_tests_come_with_a_problem_only_where_code_may_be_run(folder):
    assert task_of(folder).examples("test")[0].check is None
    check = task_of(folder, allow_code_execution=True, timeout_s=1.5).examples("test")[0].check
    assert check.before == PROBLEMS[0]["prompt"]
    assert check.after == f"\n{PROBLEMS[0]['test']}\ncheck(twice)\n"
    assert check.timeout_s == 1.5


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("    return 1\n\n\ndef next():\n", "    return 1\n\n"),
        ("    return 1\nprint(f(1))\nclass A:", "    return 1"),
        ("    x = 1\n    # a comment\n    if x: print(x)\n", None),
        ("    return 1\n# test", "    return 1"),
        ("def inner(): pass\n", None),
    ],
)
def test_an_answer_ends_before_the_first_line_outside_the_function(answer, kept):
    assert until(answer, STOPS) == (answer if kept is None else kept)


def test_no_published_body_holds_a_stop(folder):
    task = task_of(folder)
    for example in task.examples("test"):
        assert until(example.references[0], task.stops) == example.references[0]


def test_verbatim_text_keeps_the_spaces_that_a_body_begins_with(tiny_shape):
    shape = tiny_shape("an OPT", vocab_size=300)
    text = Text(ByteTokenizer(300), shape)
    ids = text.tokenizer.encode("    return 1\n")
    assert text.verbatim([*ids, *shape.eos_token_ids, *ids]) == "    return 1\n"
    assert text.decode(ids) == "return 1"


def test_verbatim_text_keeps_the_space_that_a_decoder_takes_off_its_start(tiny_shape):
    class Stripping(ByteTokenizer):
        def decode(self, ids, **settings):
            return super().decode(ids, **settings).removeprefix(" ")

    text = Text(Stripping(300), tiny_shape("an OPT", vocab_size=300))
    assert text.verbatim(text.tokenizer.encode("    pass")) == "    pass"


def test_published_bodies_pass_and_others_do_not(folder, sandbox):
    examples = task_of(folder, allow_code_execution=True).examples("test")
    right = [example.references[0] for example in examples]
    assert outcomes(right, examples) == ["passed", "passed"]
    # Not indented, wrong, nothing at all.
    for wrong in ("return x\n", "    return x + x\n", ""):
        assert outcomes([wrong, wrong], examples) == ["failed", "failed"], wrong
    assert outcomes(["    while True: pass\n", right[1]], examples) == ["timeout", "passed"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"samples_per_problem": 0}, "at least one sample"),
        ({"timeout_s": 0.0}, "more than 0 seconds"),
        ({"scores": ("pass_at_10",), "samples_per_problem": 9}, "10 and up"),
    ],
)
def test_settings_that_mean_nothing_are_refused(folder, settings, told):
    with pytest.raises(InputError, match=told):
        task_of(folder, **settings)


def test_there_is_nothing_to_train_on(folder):
    with pytest.raises(InputError, match="no training split"):
        task_of(folder).training_pairs()


def command(folder, results_dir, *more):
    return [
        "+method=dense",
        "task=human_eval",
        f"task.data_dir={folder}",
        f"results_dir={results_dir}",
        "decode.max_new_tokens=4",
        "meter.repeats=1",
        "meter.warmups=0",
        "verbosity=quiet",
        *more,
    ]


def test_without_permission_nothing_is_run_and_the_score_is_empty(
    folder, tmp_path, configured, monkeypatch
):
    monkeypatch.setattr(pool, "execute", None)
    attempt = run(configured(*command(folder, tmp_path / "runs")))
    row = attempt.header().columns
    assert (row["score.pass_at_1"], row["score.pass_at_1.low"]) == (None, None)
    assert row["score.rouge_l"] is not None
    assert attempt.batches()[0].legs["method"].outcomes is None
    task = task_of(folder, scores=("pass_at_1", "rouge_l"))
    told = executed.note(task, task.examples("test"))
    assert "pass_at_1 stays empty: task.allow_code_execution=true" in told


def test_where_there_is_no_sandbox_a_run_is_refused_before_it_starts(
    folder, tmp_path, configured, monkeypatch
):
    monkeypatch.setattr(pool, "why_not", lambda: "user namespaces are off")
    monkeypatch.setattr(pool, "execute", None)
    config = configured(*command(folder, tmp_path / "runs", "task.allow_code_execution=true"))
    with pytest.raises(InputError, match="user namespaces are off"):
        run(config)
    assert not list(store.entries(tmp_path / "runs")) if (tmp_path / "runs").exists() else True


def test_a_run_executes_what_is_decoded_and_records_what_came_of_it(
    folder, tmp_path, configured, monkeypatch, sandbox
):
    right = {len(p["prompt"]): p["canonical_solution"] for p in PROBLEMS}
    answers = iter([*right.values(), "    return None\n", PROBLEMS[1]["canonical_solution"]])
    monkeypatch.setattr("bench.preparation.Prepared.scored_text", lambda self, ids: next(answers))
    more = ["task.allow_code_execution=true", "task.samples_per_problem=2", "decode.choose=sample"]
    attempt = run(configured(*command(folder, tmp_path / "runs", *more)))
    row, (batch,) = attempt.header().columns, attempt.batches()
    assert batch.example_ids == ["HumanEval/0", "HumanEval/1"] * 2
    assert batch.legs["method"].outcomes == ["passed", "passed", "failed", "passed"]
    # Other numbers for each sample: with a vocabulary of 768 four equal ids are no accident.
    ids = batch.legs["method"].ids
    assert ids[0] != ids[2]
    assert row["score.pass_at_1"] == 0.75
    assert row["examples"] == 2
    assert attempt.segments()[0].provenance["sandbox"]["limits"]["timeout_s"] == 3.0


def test_permission_is_part_of_what_a_run_is(folder, tmp_path, configured):
    from bench.planning import plan

    plans = [
        plan(configured(*command(folder, tmp_path, *more)))
        for more in ([], ["task.allow_code_execution=true"], ["task.samples_per_problem=1"])
    ]
    assert plans[0].run_id != plans[1].run_id
    assert plans[0].run_id == plans[2].run_id


def test_several_greedy_samples_are_refused(folder, tmp_path, configured):
    from bench.planning import plan

    with pytest.raises(InputError, match="the same text every time"):
        plan(configured(*command(folder, tmp_path, "task.samples_per_problem=2")))


def test_all_164_published_bodies_pass(published, sandbox):
    task = task_of(published("human_eval"), allow_code_execution=True)
    examples = task.examples("test")
    assert len(examples) == 164
    assert examples[163].id == "HumanEval/163"
    texts = [until(example.references[0], task.stops) for example in examples]
    assert texts == [example.references[0] for example in examples]
    assert outcomes(texts, examples) == ["passed"] * 164
    found = pool.execute_all(
        [f"{e.prompt}    pass{e.check.after}" for e in examples], Limits(), workers=2
    )
    passed = [e.id for e, f in zip(examples, found, strict=True) if f.outcome == "passed"]
    assert passed == []


def test_the_scores_of_the_configuration_are_there(composed):
    for name in composed("+method=dense", "task=human_eval")["task"]["scores"]:
        assert lookup.find("bench.scores", name, "score")
