"""Scores against hand sums and against the packages' own corpus values; looking them up by name."""

import math
import random

import pytest
import sacrebleu

from bench.errors import InputError
from bench.lookup import find, names
from bench.scores import bleu, rouge_l, slot_error_rate
from bench.tasks.contract import Example

FORMS = {
    "name": {"Ada": ("Ada",), "Bo": ("Bo",)},
    "beds": {"6": ("6 beds", "six beds"), "36": ("36 beds",)},
    "dogs": {"yes": ("dogs are welcome",), "no": ("dogs are not allowed",)},
}
# Lengths alone; questions without references.
WITHOUT_SCORE = {"synthetic", "spec_bench"}
FACTS = {"name": "Ada", "beds": "6"}


def _example(*references: str, **facts: object) -> Example:
    return Example("0", "prompt\n", references, **facts)


def _total(rows: list[tuple[float, ...]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def test_bleu_statistics_are_the_counts_made_by_hand():
    # "The cat sat down ." has 5 tokens; references have 6 and 4: a tie, the shorter one counts.
    example = _example("the cat sat on the mat", "A CAT sat down")
    found = bleu.statistics("The cat sat down.", example)
    assert found == (5, 4, 4, 3, 2, 0, 5, 4, 3, 2)


def test_bleu_value_is_the_one_made_by_hand():
    # Precisions 4/5, 3/4, 2/3 and, smoothed, 1/(2*2); no brevity penalty.
    by_hand = 100 * math.exp(sum(map(math.log, (4 / 5, 3 / 4, 2 / 3, 1 / 4))) / 4)
    assert bleu.value((5, 4, 4, 3, 2, 0, 5, 4, 3, 2)) == pytest.approx(by_hand, rel=1e-12)


def test_bleu_penalises_short_texts():
    # All n-grams right; 4 tokens against 5: the penalty alone is left.
    found = bleu.value(bleu.statistics("a b c d", _example("a b c d e")))
    assert found == pytest.approx(100 * math.exp(1 - 5 / 4), rel=1e-12)


def test_summed_bleu_equals_sacrebleu_with_padded_references():
    rng = random.Random(7)
    line = 'The the mill Mill costs £20-25 café , is by river . "good" &amp; 5'
    words = line.split()
    examples, texts = [], []
    for _ in range(60):
        lines = [" ".join(rng.choices(words, k=rng.randint(4, 14))) for _ in range(6)]
        examples.append(_example(*lines[: rng.randint(1, 5)]))
        texts.append(" ".join(lines[0].split()[:5] + lines[5].split()[: rng.randint(0, 6)]))
    width = max(len(example.references) for example in examples)
    padded = [
        [dict(enumerate(example.references)).get(column) for example in examples]
        for column in range(width)
    ]
    whole = sacrebleu.corpus_bleu(texts, padded, lowercase=True, tokenize="13a").score
    rows = [bleu.statistics(t, e) for t, e in zip(texts, examples, strict=True)]
    assert 10 < whole < 90
    assert bleu.value(_total(rows)) == whole


def test_bleu_of_empty_text_is_zero_and_of_nothing_is_none():
    assert bleu.value(bleu.statistics("", _example("a b c"))) == 0.0
    assert bleu.value([0.0] * 10) is None


def test_rouge_l_takes_the_best_reference_and_stems():
    # Stems "the dog run": 3 of 3 predicted, 3 of 4 wanted by the second reference: F1 = 6/7.
    example = _example("nothing alike here", "The dogs running fast!")
    points, count = rouge_l.statistics("the dog runs", example)
    assert (points, count) == (pytest.approx(600 / 7), 1.0)


def test_rouge_l_value_is_the_mean_over_examples():
    rows = [rouge_l.statistics("a b", _example("a b")), rouge_l.statistics("", _example("a b"))]
    assert rouge_l.value(_total(rows)) == 50.0
    assert rouge_l.value((0.0, 0.0)) is None


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        pytest.param("Ada has 6 beds.", 0, id="all right"),
        pytest.param("SIX BEDS, ada!", 0, id="other wording, case and punctuation"),
        pytest.param("Ada is here.", 1, id="missing"),
        pytest.param("Ada has 36 beds.", 1, id="wrong instead of right"),
        pytest.param("Ada has 6 beds and 36 beds.", 1, id="wrong beside right"),
        pytest.param("Ada has 6 beds and six beds.", 1, id="stated twice"),
        pytest.param("Ada Ada has 6 beds.", 1, id="stated twice in a row"),
        pytest.param("Ada has 6 beds; dogs are not allowed.", 1, id="made up"),
        pytest.param("Adagio has 6 bedside lamps.", 2, id="parts of other words do not count"),
        pytest.param("Bo, Bo: dogs are welcome, 36 beds", 3, id="one error per slot at most"),
        pytest.param("", 2, id="empty text"),
    ],
)
def test_slot_errors_are_counted_once_per_slot(text, errors):
    example = _example("r", facts=FACTS, vocabulary=FORMS)
    assert slot_error_rate.statistics(text, example) == (errors, 2.0)


def test_slot_error_rate_is_errors_per_wanted_slot():
    example = _example("r", facts=FACTS, vocabulary=FORMS)
    rows = [slot_error_rate.statistics(t, example) for t in ("Ada, 6 beds", "Ada", "36 beds")]
    assert slot_error_rate.value(_total(rows)) == 3 / 6


def test_slot_error_rate_without_facts_is_none():
    assert slot_error_rate.value(slot_error_rate.statistics("text", _example("r"))) is None


@pytest.mark.parametrize("name", names("bench.scores"))
def test_every_score_defines_the_names_of_the_contract(name):
    score = find("bench.scores", name, "score")
    assert score.unit in ("points", "fraction")
    assert score.better in ("higher", "lower")
    if name == "bert_f1":
        pytest.skip("needs a package and a model of its own: test_scores_text.py")
    example = _example("a b", facts=FACTS, vocabulary=FORMS, outcome="passed")
    row = score.statistics("a b", example)
    assert isinstance(score.value(row), float)


def test_names_are_the_files_without_the_contract():
    assert {"bleu", "rouge_l", "slot_error_rate"} <= set(names("bench.scores"))
    assert {"demo", "e2e"} <= set(names("bench.tasks"))
    assert "contract" not in names("bench.tasks")


@pytest.mark.parametrize("name", names("bench.tasks"))
def test_every_task_names_scores_that_exist(name, configured):
    config = configured("+method=dense", f"task={name}").task
    task = find("bench.tasks", name, "task").Task(config.params)
    assert task.scores or name in WITHOUT_SCORE
    judges = {*task.scores, task.calibration_score} - {None}
    assert judges <= set(names("bench.scores"))


def test_unknown_name_is_refused_with_near_names_and_the_list():
    with pytest.raises(InputError) as caught:
        find("bench.tasks", "dmo", "task")
    assert caught.value.got == "dmo (near: demo)"
    assert caught.value.allowed == ", ".join(names("bench.tasks"))
    assert "bench/tasks/" in caught.value.where
