"""Scores of text against sums made by hand and against the packages' own values."""

import random
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import nltk
import pytest
import sacrebleu
from rouge_score import rouge_scorer

from bench.errors import InputError
from bench.lookup import find
from bench.scores import bert_f1, chrf, edit_similarity, f1, squad_exact_match
from bench.scores.contract import quality, similarity
from bench.tasks.contract import Example


def _example(*references):
    return Example("0", "prompt", references)


def _value(name, text, *references):
    score = find("bench.scores", name, "score")
    return score.value(score.statistics(text, _example(*references)))


def test_rouge_is_the_one_made_by_hand():
    text, reference = "the cats sat", "the cat sat on mats"
    # Stems: the cat sat | the cat sat on mat: 3 of 3 and of 5 words; 2 of 2 and of 4 pairs.
    assert _value("rouge_1", text, reference) == pytest.approx(100 * 2 * 0.6 / 1.6)
    assert _value("rouge_2", text, reference) == pytest.approx(100 * 2 * 0.5 / 1.5)
    assert _value("rouge_l", text, reference) == pytest.approx(75)


def test_rouge_lsum_looks_line_by_line():
    # As one sequence the two lines are in the wrong order: half can be kept.
    assert _value("rouge_l", "c d\na b", "a b\nc d") == pytest.approx(50)
    assert _value("rouge_lsum", "c d\na b", "a b\nc d") == pytest.approx(100)
    assert _value("rouge_lsum", "c d a b", "a b c d") == pytest.approx(50)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("rouge_1", "rouge1"),
        ("rouge_2", "rouge2"),
        ("rouge_l", "rougeL"),
        ("rouge_lsum", "rougeLsum"),
    ],
)
def test_rouge_is_the_packages_own_with_the_best_reference(name, key):
    rng = random.Random(3)
    words = ["cats", "are", "running", "over", "the", "hills\n", "quickly,", "£5"]
    scorer = rouge_scorer.RougeScorer([key], use_stemmer=True)
    for _ in range(20):
        text, *references = (" ".join(rng.choices(words, k=9)) for _ in range(3))
        best = max(scorer.score(reference, text)[key].fmeasure for reference in references)
        assert _value(name, text, *references) == pytest.approx(100 * best)


def test_an_empty_text_has_rouge_0_and_counts():
    assert _value("rouge_1", "", "a cat") == 0.0


def test_summed_chrf_is_sacrebleus_own():
    rng, words = random.Random(5), ["The", "mill", "costs", "£20-25", "café", "by", "river", "."]
    examples, texts = [], []
    for _ in range(30):
        texts.append(" ".join(rng.choices(words, k=rng.randint(1, 8))))
        examples.append(_example(*(" ".join(rng.choices(words, k=6)) for _ in range(2))))
    rows = [chrf.statistics(text, each) for text, each in zip(texts, examples, strict=True)]
    streams = list(zip(*(each.references for each in examples), strict=True))
    own = sacrebleu.corpus_chrf(texts, streams).score
    assert chrf.value([sum(column) for column in zip(*rows, strict=True)]) == pytest.approx(own)
    assert chrf.value(chrf.statistics("a cat", _example("a cat"))) == pytest.approx(100)


@pytest.mark.parametrize(
    ("name", "text", "reference", "expected"),
    [
        ("exact_match", "[IN:A  go ]", "[IN:A go ]", 1),
        ("exact_match", "[in:a go ]", "[IN:A go ]", 0),
        ("exact_match_uncased", "[in:a go ]", "[IN:A go ]", 1),
        ("exact_match_uncased", "[in:a went ]", "[IN:A go ]", 0),
        ("balanced_brackets", "[IN:A [SL:B x ] ]", "", 1),
        ("balanced_brackets", "[IN:A [SL:B x ]", "", 0),
        ("balanced_brackets", "] [", "", 0),
        ("balanced_brackets", "no parse", "", 0),
        ("balanced_brackets", "", "", 0),
        ("gsm8k_strict", "so\n#### 1,000\n\n#### 5", "#### 1000", 1),
        ("gsm8k_strict", "It is 18.", "#### 18", 0),
        ("gsm8k_strict", "#### -3.", "x 4 #### -3", 1),
        ("gsm8k_strict", "#### 18.0", "#### 18", 0),
        ("gsm8k_strict", "", "#### 18", 0),
        ("gsm8k_flexible", "It is $1,000.", "#### 1000", 1),
        ("gsm8k_flexible", "18 dollars", "#### 18", 1),
        ("gsm8k_flexible", "18 and 19", "#### 18", 0),
        ("gsm8k_flexible", "none", "none", 0),
        ("squad_exact_match", "The  Cat!", "a cat", 1),
        ("squad_exact_match", "cats", "a cat", 0),
    ],
)
def test_right_or_wrong(name, text, reference, expected):
    assert _value(name, text, reference) == expected


def test_f1_counts_words_as_often_as_they_stand():
    # cat cat dog | cat dog dog: 2 of 3 either way.
    assert _value("f1", "The cat, cat dog", "cat dog dog") == pytest.approx(2 / 3)
    assert _value("f1", "cat", "bird", "a black cat") == pytest.approx(2 * 0.5 / 1.5)
    # Nothing is left of either side: 0 in version 1.1, and yet an exact match.
    assert f1.statistics("the", _example("a")) == (0.0, 1.0)
    assert squad_exact_match.statistics("the", _example("a")) == (1.0, 1.0)


def test_the_edit_distance_is_nltks():
    rng = random.Random(11)
    for _ in range(200):
        first, second = ("".join(rng.choices("abé", k=rng.randint(0, 12))) for _ in range(2))
        assert edit_similarity.distance(first, second) == nltk.edit_distance(first, second)


def test_edit_similarity_is_the_one_made_by_hand():
    # kitten -> sitting: 3 edits of at most 7 characters.
    assert _value("edit_similarity", "kitten", "sitting", "x") == pytest.approx(4 / 7)
    assert _value("edit_similarity", "", "") == 1.0
    assert _value("edit_similarity", "", "ab") == 0.0


@pytest.mark.parametrize("name", ["rouge_l", "f1", "exact_match", "gsm8k_flexible"])
def test_the_distances_that_calibrate_are_shares(name):
    score = find("bench.scores", name, "score")
    example = _example("#### 18")
    for text in ("", "18", "the", "#### 18 cats"):
        assert 0.0 <= quality(score, text, example) <= 1.0
        assert similarity(score, text, text, example) == 1.0
    assert similarity(score, "18", "12", example) == 0.0
    assert similarity(score, "so 18", "so 18 .", example) > 0.0 or name == "exact_match"


def test_bert_f1_says_what_to_install_and_what_to_fetch(monkeypatch):
    def no_version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(bert_f1, "version", no_version)
    with pytest.raises(InputError, match="package that is not installed") as caught:
        bert_f1.check()
    assert "skipbench[bertscore]" in caught.value.allowed
    monkeypatch.setattr(bert_f1, "version", lambda name: "0.3.13")
    monkeypatch.setattr(bert_f1, "try_to_load_from_cache", lambda *name: None)
    with pytest.raises(InputError, match="not in the local cache") as caught:
        bert_f1.check()
    assert "roberta-large" in caught.value.allowed


def test_bert_f1_takes_all_references_and_gives_an_empty_text_0(monkeypatch):
    asked = []

    class Scorer:
        def __init__(self, **settings):
            asked.append(settings)

        def score(self, texts, references):
            asked.append((texts, references))
            return [0.1], [0.2], [0.9]

    monkeypatch.setitem(sys.modules, "bert_score", SimpleNamespace(BERTScorer=Scorer))
    bert_f1._scorer.cache_clear()
    assert bert_f1.statistics("a", _example("b", "c")) == (0.9, 1.0)
    assert bert_f1.statistics("", _example("b")) == (0.0, 1.0)
    assert asked == [
        {"model_type": "roberta-large", "num_layers": 17, "idf": False},
        (["a"], [["b", "c"]]),
    ]
    bert_f1._scorer.cache_clear()
