"""The dense baseline: every layer for every token, its objective, and forced scoring."""

import pytest
import torch
import torch.nn.functional as functional

from methods.dense.params import ABILITIES, Params, resolve
from methods.engine.sampling import Forced

PROMPTS, NEW = [4, 1, 9], 7


def test_every_step_runs_every_layer_once_in_order(
    shape_name, tiny_transformer, watch, make_method, make_prompts, drive
):
    transformer = tiny_transformer(shape_name)
    watched = watch(transformer)
    decoded = drive(
        make_method("dense", transformer.shape), watched.model, make_prompts(PROMPTS), NEW
    )
    assert watched.layers == [[0, 1, 2, 3]] * (NEW - 1)
    assert [answer.layers_run for answer in decoded.rounds] == [4] * NEW


def test_tokens_stand_at_their_own_positions(
    tiny_transformer, watch, make_method, make_prompts, drive
):
    transformer = tiny_transformer("an OPT")
    watched = watch(transformer)
    drive(make_method("dense", transformer.shape), watched.model, make_prompts(PROMPTS), NEW)
    expected = [[[length + step] for length in PROMPTS] for step in range(NEW - 1)]
    assert [positions.tolist() for positions in watched.positions] == expected


def test_greedy_ids_are_those_of_growing_full_passes(
    shape_name, tiny_transformer, watch, make_method, make_prompts, drive
):
    transformer, rows = tiny_transformer(shape_name), make_prompts(PROMPTS)
    model = watch(transformer).model
    found = drive(make_method("dense", transformer.shape), model, rows, NEW).rows
    for row, ids in zip(rows, found, strict=True):
        grown = list(row)
        for _ in range(NEW):
            with torch.no_grad():
                grown.append(int(transformer(torch.tensor([grown]))[0, -1].argmax()))
        assert grown[len(row) :] == ids


def test_a_forced_continuation_is_scored_as_in_one_full_pass(
    shape_name, tiny_transformer, watch, make_method, make_prompts, drive
):
    transformer = tiny_transformer(shape_name)
    rows = make_prompts([length + NEW for length in PROMPTS], seed=1)
    prompts = [row[:length] for row, length in zip(rows, PROMPTS, strict=True)]
    forced = Forced([row[length:] for row, length in zip(rows, PROMPTS, strict=True)])
    method = make_method("dense", transformer.shape)
    found = drive(method, watch(transformer).model, prompts, NEW, forced)
    assert found.rows == forced.continuation.tolist()
    for row, (ids, length) in enumerate(zip(rows, PROMPTS, strict=True)):
        with torch.no_grad():
            logits = transformer(torch.tensor([ids]))[0, length - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids[length:])[:, None])[:, 0]
        scores = torch.cat(forced.log_probs, dim=1)[row]
        torch.testing.assert_close(scores, expected, atol=1e-4, rtol=0)


def test_the_objective_is_the_cross_entropy_of_the_targets_alone(
    shape_name, tiny_transformer, make_method, make_prompts, make_batch
):
    transformer = tiny_transformer(shape_name)
    rows = make_prompts([9, 12, 6], seed=2)
    prompt_lengths = [3, 10, 1]
    batch = make_batch(rows, prompt_lengths)
    found = make_method("dense", transformer.shape).objective(transformer, batch, 0.5).total
    expected = 0.0
    for row, length in zip(rows, prompt_lengths, strict=True):
        logits = transformer(torch.tensor([row]))[0, length - 1 : -1]
        expected += functional.cross_entropy(
            logits, torch.tensor(row[length:]), reduction="sum"
        ).item()
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_it_declares_itself_lossless_and_has_nothing_to_resolve(tiny_shape):
    assert ABILITIES.lossless
    assert not ABILITIES.needs_training
    assert resolve(Params(), tiny_shape("an OPT"), {"schedule_length": 3}) == Params()
