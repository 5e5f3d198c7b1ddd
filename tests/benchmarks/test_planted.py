"""Planted acceptance: the work of greedy verification, with the outcome that was asked for."""

from functools import partial

import legs
import pytest
import torch
from planted import Planted

from methods.engine.sampling import Draft, Greedy
from methods.layerskip.params import predicted_speedup

SHAPE = legs.opt(8, 32, 4, vocab_size=101)
DRAFTS = 4


@pytest.fixture(scope="module")
def model():
    return legs.engine(legs.drawn(SHAPE), 3)


def drafting(model, chooser, new_tokens=41):
    method = legs.method("layerskip", SHAPE, exit_layer=2, num_speculations=DRAFTS)
    batch = legs.prompts(3, vocab_size=SHAPE.vocab_size)
    leg = legs.Decode(method, model, batch, new_tokens, chooser)
    leg()
    return leg


@pytest.mark.parametrize("rate", [1.0, 0.8, 0.5, 0.0])
def test_drafts_are_accepted_at_the_planted_rate(model, rate):
    counts = drafting(model, partial(Planted, rate)).latest.speculation
    # Each row's count is within one of its share.
    assert counts.drafted > 3 * 20
    assert abs(counts.accepted - rate * counts.drafted) <= 3


def test_at_a_rate_of_one_every_round_gives_all_drafts_and_one(model):
    latest = drafting(model, partial(Planted, 1.0)).latest
    # The prompt's token, then 40 in rounds of 5.
    assert latest.rounds == 1 + 40 // (DRAFTS + 1)
    assert [len(row) for row in latest.ids] == [41] * 3


def test_a_rounds_work_is_that_of_greedy_drafting(model):
    method = legs.method("layerskip", SHAPE, exit_layer=2, num_speculations=DRAFTS)
    batch = legs.prompts(1, vocab_size=SHAPE.vocab_size)
    # A prompt's token and one full round, whatever is accepted of it.
    works = []
    for chooser in (Greedy, partial(Planted, 0.5)):
        leg = legs.Decode(method, model, batch, 6, chooser)
        leg()
        rounds = model.ledger.executed()
        works.append(rounds[1])
    assert works[0] == works[1]


def test_accepted_drafts_and_the_targets_own_token_behind_them_are_given():
    ids = torch.tensor([[3, 4], [5, 6]])
    logits = torch.zeros(2, 3, 10)
    for row, best in enumerate(([7, 8, 9], [1, 2, 0])):
        for place, token in enumerate(best):
            logits[row, place, token] = 1.0
    drafts = [Draft(ids[:, :1]), Draft(ids[:, 1:])]
    all_of_it = Planted(1.0).verify(drafts, logits, None, 1)
    assert all_of_it.accepted.tolist() == [2, 2]
    assert all_of_it.ids.tolist() == [[3, 4, 9], [5, 6, 0]]
    none = Planted(0.0).verify(drafts, logits, None, 1)
    assert none.accepted.tolist() == [0, 0]
    assert none.ids[:, 0].tolist() == [7, 1]
    # A row that drafted less keeps no more than that.
    fewer = Planted(1.0).verify(drafts, logits, torch.tensor([1, 0]), 1)
    assert fewer.accepted.tolist() == [1, 0]
    assert fewer.ids[0, :2].tolist() == [3, 8]


def test_the_latency_model_takes_the_verification_as_long_as_it_was_measured(model):
    leg = drafting(model, partial(Planted, 1.0))
    layer = 4 * 32 * 32 + 2 * 32 * 128
    head = 101 * 32 / layer
    # A round: 4 drafts through 2 layers and the head, the last one's early pass, then 6 late layers
    # and the head over 5 tokens, which take 1.5 times as long as over one.
    expected = 5 * (8 + head) / (4 * (2 + head) + 2 + 1.5 * (6 + head))
    assert legs.predicted(leg, 1.5) == pytest.approx(expected)
    params = leg.method.params
    assert legs.predicted(leg, 1.0) == pytest.approx(predicted_speedup(params, SHAPE, 5, 4))
