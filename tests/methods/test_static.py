"""Static exit: the model cut to its first layers, prompt included."""

import pytest
import torch

from methods.engine.sampling import Forced
from methods.static.params import ABILITIES, Params, resolve
from tests.engine.plain_exit import Recording, cut

LAYERS, NEW = 6, 8
PROMPTS = [3, 9, 1, 6]
depths = pytest.mark.parametrize("depth", [1, 4, LAYERS], ids=lambda n: f"{n} of {LAYERS} layers")


@pytest.fixture
def transformer(shape_name, tiny_transformer):
    return tiny_transformer(shape_name, num_layers=LAYERS)


@depths
def test_it_is_a_smaller_model_of_the_first_layers_and_the_head(
    transformer, depth, watch, make_method, make_prompts, drive
):
    prompts, outcomes = make_prompts(PROMPTS), []
    for name, model, settings in (
        ("static", transformer, {"exit_layer": depth}),
        ("dense", cut(transformer, depth), {}),
    ):
        watched, chooser = watch(model), Recording()
        method = make_method(name, model.shape, **settings)
        decoded = drive(method, watched.model, prompts, NEW, chooser)
        ledger = watched.model.ledger
        ran = [answer.layers_run for answer in decoded.rounds]
        sums = (ledger.executed(), ledger.traffic())
        outcomes.append((decoded.rows, ran, sums, torch.cat(chooser.logits, dim=1)))
    (ids, ran, sums, logits), (expected, plain, plain_sums, plain_logits) = outcomes
    assert ids == expected
    assert torch.equal(logits, plain_logits)
    assert ran == plain == [depth] * NEW
    assert sums == plain_sums
    assert (logits[0] - logits[1]).abs().max() > 1e-2


@depths
def test_the_layers_above_neither_run_nor_hold_anything(
    transformer, depth, watch, make_method, make_prompts, drive
):
    watched = watch(transformer)
    method = make_method("static", transformer.shape, exit_layer=depth)
    drive(method, watched.model, make_prompts(PROMPTS), NEW)
    assert watched.layers == [list(range(depth))] * (NEW - 1)
    assert not watched.cache.written[depth:].any()
    for row, (offset, length) in enumerate(zip(watched.cache.offsets, PROMPTS, strict=True)):
        assert watched.cache.written[:depth, row, offset : offset + length + NEW - 1].all()


def test_a_forced_continuation_is_scored_as_in_one_pass_of_the_first_layers(
    transformer, watch, make_method, make_prompts, drive
):
    rows = make_prompts([length + NEW for length in PROMPTS], seed=1)
    prompts = [row[:length] for row, length in zip(rows, PROMPTS, strict=True)]
    forced = Forced([row[length:] for row, length in zip(rows, PROMPTS, strict=True)])
    method = make_method("static", transformer.shape, exit_layer=2)
    drive(method, watch(transformer).model, prompts, NEW, forced)
    scores = torch.cat(forced.log_probs, dim=1)
    for row, (ids, length) in enumerate(zip(rows, PROMPTS, strict=True)):
        x, rope = transformer.embed(torch.tensor([ids])), transformer.rope(len(ids))
        with torch.no_grad():
            for block in transformer.blocks[:2]:
                x = block(x, rope)
            logits = transformer.head(x)[0, length - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids[length:])[:, None])[:, 0]
        torch.testing.assert_close(scores[row], expected, atol=1e-4, rtol=0)


def test_half_of_the_layers_is_the_default(tiny_shape):
    for layers, half in ((6, 3), (7, 3), (2, 1)):
        shape = tiny_shape("an OPT", num_layers=layers)
        assert resolve(Params(), shape, {}).exit_layer == half
    assert resolve(Params(exit_layer=2), shape, {}).exit_layer == 2


@pytest.mark.parametrize("layer", [0, -1, 7], ids=["no layer", "less than none", "too many"])
def test_an_impossible_layer_is_named_with_what_is_allowed(tiny_shape, layer):
    with pytest.raises(ValueError, match=rf"exit_layer={layer}: allowed 1\.\.6"):
        resolve(Params(exit_layer=layer), tiny_shape("an OPT", num_layers=6), {})


def test_the_default_of_a_model_of_one_layer_is_that_layer(tiny_shape):
    assert resolve(Params(), tiny_shape("an OPT", num_layers=1), {}).exit_layer == 1


def test_it_declares_that_its_prompt_is_cut_too():
    assert not ABILITIES.whole_prompt
    assert not ABILITIES.lossless
    assert not ABILITIES.trains
