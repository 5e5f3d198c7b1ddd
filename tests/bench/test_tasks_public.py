"""Public data sets on tiny files in their published form: prompts, references, training pairs."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from bench.errors import InputError
from bench.lookup import find


@pytest.fixture
def task(configured, tmp_path):
    """``task(name, *overrides)``: a task as its conf has it, on the files of ``tmp_path``."""

    def make(name, *overrides):
        given = [f"task={name}", f"task.data_dir={tmp_path}", *overrides]
        config = configured("+method=dense", *given).task
        return find("bench.tasks", name, "task").Task(config.params)

    return make


def _jsonl(path, records):
    path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")


def _parquet(path, records):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)


def _gsm8k(folder):
    for split, numbers in (("train", (3, 5, 7, 9)), ("test", (1, 2))):
        records = [
            {"question": f"What is {n}?", "answer": f"It is <<{n}={n}>>{n}.\n#### {n}"}
            for n in numbers
        ]
        _jsonl(folder / f"{split}.jsonl", records)


def test_gsm8k_asks_after_worked_examples_from_train(task, tmp_path):
    _gsm8k(tmp_path)
    made = task("gsm8k", "task.shots=2")
    first, second = made.examples("test")
    *shots, end = first.prompt.split("\n\n")
    assert end == "Question: What is 1?\nAnswer:"
    assert len(set(shots)) == 2
    for shot in shots:
        number = shot.split("#### ")[1]
        assert shot == (
            f"Question: What is {number}?\nAnswer: It is <<{number}={number}>>{number}.\n"
            f"#### {number}"
        )
    assert second.prompt.split("\n\n")[:2] == shots
    assert first.references == ("It is <<1=1>>1.\n#### 1",)
    assert made.stops == ("Question:",)
    ids = made.about("test")["shot_ids"]
    assert [shot.split("#### ")[1] for shot in shots] == [str(3 + 2 * int(i)) for i in ids]


def test_no_worked_example_answers_the_question_itself(task, tmp_path):
    _gsm8k(tmp_path)
    for example in task("gsm8k", "task.shots=3").examples("train"):
        assert example.prompt.count(example.references[0]) == 0
        assert example.prompt.count("Question:") == 4


def test_another_seed_chooses_other_worked_examples_and_the_same_one_the_same(task, tmp_path):
    _gsm8k(tmp_path)
    chosen = [
        task("gsm8k", "task.shots=2", f"task.shots_seed={seed}").examples("test")[0].prompt
        for seed in (0, 0, *range(1, 6))
    ]
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) > 1


def test_training_pairs_have_no_worked_examples_and_are_a_prefix(task, tmp_path):
    _gsm8k(tmp_path)
    pairs = task("gsm8k").training_pairs()
    assert [(p.prompt, p.target) for p in pairs[:1]] == [
        ("Question: What is 3?\nAnswer:", " It is <<3=3>>3.\n#### 3")
    ]
    three, two = (task("gsm8k", f"task.train_rows={n}").training_pairs() for n in (3, 2))
    assert len(pairs) == 4
    assert len(three) == 3
    assert two == three[:2]


def test_a_shuffled_order_is_the_same_examples_with_their_ids(task, tmp_path):
    _jsonl(tmp_path / "test.jsonl", [{"question": f"q{n}", "answer": f"a{n}"} for n in range(20)])
    found = task("gsm8k", "task.shots=0", "task.shuffle_seed=42").examples("test")
    assert sorted(found, key=lambda each: int(each.id)) == list(
        task("gsm8k", "task.shots=0").examples("test")
    )
    assert [each.id for each in found] != [str(n) for n in range(20)]


NEWS = {"article": "(CNN) A cat sat .\nIt slept .", "highlights": "A cat sat .\nIt slept ."}


def test_cnn_dm_has_layerskips_prompt_with_and_without_a_worked_example(task, tmp_path):
    _parquet(tmp_path / "test-00000-of-00001.parquet", [{**NEWS, "id": "f00"}])
    old = {"article": "Old news.", "highlights": "One .\nTwo .", "id": "aaa"}
    _parquet(tmp_path / "train-00000-of-00001.parquet", [old])
    (bare,) = task("cnn_dm").examples("test")
    assert bare.prompt == "Article: (CNN) A cat sat .\nIt slept .\nSummary:"
    assert bare.references == (NEWS["highlights"],)
    assert bare.id == "f00"
    (shown,) = task("cnn_dm", "task.shots=1").examples("test")
    assert shown.prompt == f"Article: Old news.\nSummary: One .Two .\n\n{bare.prompt}"
    (pair,) = task("cnn_dm").training_pairs()
    assert (pair.prompt, pair.target) == ("Article: Old news.\nSummary:", " One .\nTwo .")


def test_cnn_dm_lm_goes_on_with_an_article(task, tmp_path):
    _parquet(tmp_path / "test-0.parquet", [NEWS | {"article": "a b\n c  d e"}, NEWS])
    made = task("cnn_dm_lm", "task.prompt_words=3")
    first, second = made.examples("test")
    assert (first.prompt, first.references) == ("a b c", ("d e",))
    assert (second.prompt, second.references) == ("(CNN) A cat", ("sat . It slept .",))
    # An article without a rest makes no example.
    assert [e.id for e in task("cnn_dm_lm", "task.prompt_words=5").examples("test")] == ["1"]


def test_xsum_has_layerskips_prompt_and_keeps_an_empty_document(task, tmp_path):
    rows = [{"document": "A.\nB.", "summary": "C.", "id": "7"}]
    rows.append({"document": "", "summary": "D.", "id": "8"})
    _parquet(tmp_path / "test-0.parquet", rows)
    first, second = task("xsum").examples("test")
    assert (first.id, first.prompt, first.references) == ("7", "Article: A.\nB.\nSummary:", ("C.",))
    assert second.prompt == "Article: \nSummary:"


POST = {"id": "t3_x", "subreddit": "cats", "title": "My cat", "post": "It sat.\nIt slept."}
TLDR = "SUBREDDIT: r/cats\n\nTITLE: My cat\n\nPOST: It sat.\nIt slept.\n\nTL;DR:"


def test_tldr_has_openais_prompt_from_their_rows_and_from_finished_ones(task, tmp_path):
    _jsonl(tmp_path / "valid.jsonl", [POST | {"summary": "Cat sleeps."}])
    _parquet(tmp_path / "test-0.parquet", [{"pompt": TLDR, "completion": " Cat sleeps."}])
    (theirs,), (hub,) = (task("reddit_tldr").examples(split) for split in ("validation", "test"))
    assert theirs.prompt == hub.prompt == TLDR
    assert theirs.references == hub.references == ("Cat sleeps.",)
    assert (theirs.id, hub.id) == ("t3_x", "0")
    assert theirs.parts.max_tokens == 512
    assert theirs.parts.cut_at == "\n"


def test_a_finished_tldr_prompt_of_another_form_is_refused(task, tmp_path):
    _jsonl(tmp_path / "test.jsonl", [{"prompt": "POST: a", "completion": "b"}])
    with pytest.raises(InputError, match="headings"):
        task("reddit_tldr").examples("test")


def test_topv2_reads_all_domains_and_takes_a_lone_quote_as_it_is(task, tmp_path):
    head = "domain\tutterance\tsemantic_parse\n"
    (tmp_path / "alarm_eval.tsv").write_text(head + 'alarm\tset 6" alarm\t[IN:A set 6" alarm ]\n')
    (tmp_path / "weather_eval.tsv").write_text(head + "weather\train ?\t[IN:B rain ? ]\n")
    first, second = task("topv2").examples("validation")
    assert first.prompt == '### Instruction: set 6" alarm\n ### Response:'
    assert first.references == ('[IN:A set 6" alarm ]',)
    assert second.references == ("[IN:B rain ? ]",)
    bare = task("topv2", "task.template='{utterance}'", "task.target='{semantic_parse}'")
    assert bare.examples("validation")[0].prompt == 'set 6" alarm'


def test_squad_is_read_as_published_and_as_on_the_hub(task, tmp_path):
    answers = [{"text": "the cat", "answer_start": 3}, {"text": "cat", "answer_start": 7}]
    asked = {"id": "q1", "question": "Who sat?", "answers": answers}
    passage = {"context": "On the cat.", "qas": [asked]}
    document = {"version": "1.1", "data": [{"title": "Cats", "paragraphs": [passage]}]}
    (tmp_path / "dev-v1.1.json").write_text(json.dumps(document))
    (nested,) = task("squad").examples("validation")
    (tmp_path / "dev-v1.1.json").unlink()
    flat = {"text": ["the cat", "cat"], "answer_start": [3, 7]}
    row = {"id": "q1", "title": "Cats", "context": "On the cat.", "question": "Who sat?"}
    _parquet(tmp_path / "validation-0.parquet", [{**row, "answers": flat}])
    assert task("squad").examples("validation") == [nested]
    assert nested.prompt == "Context: On the cat.\nQuestion: Who sat?\nAnswer:"
    assert (nested.id, nested.references) == ("q1", ("the cat", "cat"))


def test_a_json_file_of_another_form_is_refused_as_squad(task, tmp_path):
    (tmp_path / "dev-v1.1.json").write_text('{"rows": []}')
    with pytest.raises(InputError, match="SQuAD: the file is not UTF-8 JSON"):
        task("squad").examples("validation")


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("task.template='{text}'", "task.template"),
        ("task.template='{question'", "task.template"),
        ("task.shots=-1", "task.shots"),
        ("task.shot_template=''", "task.shot_template"),
        ("task.scores=[gsm8k_strikt]", "task.scores"),
        ("task.train_rows=0", "task.train_rows"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_its_key(task, tmp_path, override, where):
    _gsm8k(tmp_path)
    with pytest.raises(InputError) as caught:
        task("gsm8k", override).examples("test")
    assert caught.value.where == where
