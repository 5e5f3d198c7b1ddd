"""CALM's settings and thresholds: the values of the paper's formula and of its code."""

import math

import pytest
import torch

from methods.calm.params import ABILITIES, Params, exit_layers, resolve
from methods.calm.threshold import threshold_at


@pytest.fixture
def shape(tiny_shape):
    return tiny_shape("an OPT", num_layers=6)


@pytest.mark.parametrize(
    ("base", "share", "paper", "official"),
    [
        (0.5, 0.0, 0.5500, 0.5000),
        (0.5, 0.25, 0.4868, 0.4684),
        (0.5, 1.0, 0.4518, 0.4509),
        (0.9, 0.0, 0.9100, 0.9000),
        (0.9, 0.25, 0.8468, 0.8431),
        (0.9, 1.0, 0.8118, 0.8116),
    ],
)
def test_the_falling_threshold_has_the_values_of_both_formulas(base, share, paper, official):
    for form, expected in (("paper", paper), ("official", official)):
        params = Params(threshold=base, decay=4.0, decay_form=form)
        for longest in (20, 200):
            found = threshold_at(params, round(share * longest), longest)
            assert found == pytest.approx(expected, abs=5e-5)


def test_the_formulas_meet_at_1_and_lie_below_it_behind_the_first_token():
    paper, official = (
        [threshold_at(Params(threshold=1.0, decay=4.0, decay_form=form), t, 50) for t in range(51)]
        for form in ("paper", "official")
    )
    assert paper == pytest.approx(official, abs=1e-12)
    assert paper[0] == pytest.approx(1.0)
    assert max(paper[1:]) < 1.0
    assert paper == sorted(paper, reverse=True)


def test_without_a_decay_the_threshold_is_constant_and_with_one_of_0_it_is_relabelled():
    for form in ("paper", "official"):
        constant = Params(threshold=0.7, decay_form=form)
        assert [threshold_at(constant, t, 30) for t in (0, 7, 30)] == [0.7] * 3
    relabelled = Params(threshold=0.7, decay=0.0)
    assert [threshold_at(relabelled, t, 30) for t in (0, 30)] == pytest.approx([0.73] * 2)
    official = Params(threshold=0.7, decay=0.0, decay_form="official")
    assert threshold_at(official, 30, 30) == pytest.approx(0.7)


def test_the_papers_threshold_never_leaves_0_to_1():
    thresholds = [
        threshold_at(Params(threshold=base, decay=decay), t, 10)
        for base in (0.0, 0.01, 0.99, 1.0)
        for decay in (0.0, 4.0, 50.0)
        for t in range(11)
    ]
    assert min(thresholds) >= 0.0
    assert max(thresholds) <= 1.0


def test_the_threshold_of_each_step_is_that_of_its_token(tiny_transformer, make_method, watch):
    transformer = tiny_transformer("an OPT", num_layers=6)
    model = watch(transformer).model
    method = make_method("calm", transformer.shape, threshold=0.5, decay=4.0)
    for index in (1, 5, 19):
        rule, threshold = method._rule(model, index, 20), threshold_at(method.params, index, 20)
        logits = torch.zeros(2, 1, 61)
        for row, gap in enumerate((threshold + 1e-3, threshold - 1e-3)):
            first = (1 + 60 * gap) / 61
            logits[row, 0, 7] = math.log(60 * first / (1 - first))
        model.head = lambda x, at, logits=logits: logits
        assert rule(1, None, None, None, [0, 1]).leaves.tolist() == [True, False]


def test_a_confidence_equal_to_the_threshold_leaves(tiny_transformer, make_method, watch):
    transformer, rows = tiny_transformer("an OPT", num_layers=6), [0, 1]
    model, x = watch(transformer).model, torch.ones(2, 1, 32)
    # The sigmoid of 0, exactly; and a gap that float32 cannot tell from 1.
    asked = make_method("calm", transformer.shape, threshold=0.5, measure="classifier")
    asked.attach({"weight": torch.zeros(32), "bias": torch.zeros(())}, torch.device("cpu"))
    model.check = lambda confidence, at: confidence()
    assert asked._rule(model, 1, 20)(1, x, None, None, rows).leaves.tolist() == [True, True]
    sure = make_method("calm", transformer.shape, threshold=1.0)
    model.head = lambda x, at: 1e3 * torch.eye(61)[[4, 9], None]
    assert sure._rule(model, 1, 20)(1, x, None, None, rows).leaves.tolist() == [True, True]


def test_exits_lie_between_the_first_and_the_last_layer():
    assert exit_layers(Params(), 6) == {1, 2, 3, 4, 5}
    assert exit_layers(Params(min_layer=3), 6) == {3, 4, 5}
    assert exit_layers(Params(min_layer=2, check_every=2), 6) == {2, 4}
    assert exit_layers(Params(min_layer=2, check_every=2), 7) == {2, 4, 6}
    assert exit_layers(Params(min_layer=6), 6) == frozenset()
    assert exit_layers(Params(threshold="never"), 6) == frozenset()


def test_saturation_starts_at_layer_2(shape):
    assert resolve(Params(measure="state"), shape, {}).min_layer == 2
    assert resolve(Params(measure="state", min_layer=4), shape, {}).min_layer == 4
    for measure in ("softmax", "classifier"):
        assert resolve(Params(measure=measure), shape, {}).min_layer == 1


@pytest.mark.parametrize("found", [0.35, "never"], ids=["a number", "none that is safe"])
def test_a_calibrated_threshold_is_the_one_that_was_found(shape, found):
    settings = Params(threshold="calibrated")
    assert resolve(settings, shape, {"calibrated_threshold": found}).threshold == found
    # A number that was given is never replaced.
    assert resolve(Params(threshold=0.8), shape, {"calibrated_threshold": found}).threshold == 0.8


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({"threshold": 1.01}, ["threshold=1.01", "0..1, never, calibrated"]),
        ({"threshold": -0.1}, ["threshold=-0.1", "0..1"]),
        ({"threshold": math.nan}, ["threshold=nan", "0..1"]),
        ({"min_layer": 0}, ["min_layer=0", "1..6"]),
        ({"min_layer": 7}, ["min_layer=7", "1..6"]),
        ({"check_every": 0}, ["check_every=0", "1 and up"]),
        ({"decay": -1.0}, ["decay=-1.0", "0 and up"]),
    ],
    ids=[
        "a threshold above 1",
        "a threshold below 0",
        "a threshold that is no number",
        "no layer",
        "more layers than there are",
        "no step from check to check",
        "a threshold that rises",
    ],
)
def test_impossible_settings_are_named_with_what_is_allowed(shape, settings, texts):
    with pytest.raises(ValueError, match="allowed") as caught:
        resolve(Params(**settings), shape, {})
    assert [text for text in texts if text not in str(caught.value)] == []


def test_a_classifier_that_was_never_attached_is_missed_by_name(
    tiny_transformer, make_method, make_prompts, watch, drive
):
    transformer = tiny_transformer("an OPT", num_layers=6)
    method = make_method("calm", transformer.shape, measure="classifier")
    with pytest.raises(ValueError, match="measure=classifier needs the classifier"):
        drive(method, watch(transformer).model, make_prompts([3]), 4)


def test_it_declares_what_it_needs_beside_the_checkpoint():
    assert ABILITIES.companion(Params(measure="classifier")) == "exit_classifier"
    assert ABILITIES.companion(Params(measure="softmax")) is None
    assert ABILITIES.companion(Params(measure="state")) is None
    assert (ABILITIES.lossless, ABILITIES.trains, ABILITIES.needs_training) == (False, True, True)
    assert (ABILITIES.whole_prompt, ABILITIES.realisable) == (True, True)
