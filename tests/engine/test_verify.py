"""Verified tokens follow the target's law exactly, in a batch, and nothing waits for the device.

Laws: a model of 8 tokens whose logits depend on the token before, 100,000 rows, temperature 0.7,
top-p 0.9, two drafts a round. The classic mistakes are planted and must fail the same check.
"""

import copy
import itertools

import numpy as np
import pytest
import torch

from methods.engine import sampling
from methods.engine.drawing import ACCEPT, DRAFT, Warp
from methods.engine.sampling import Draft, Forced, Greedy, Sampled
from methods.engine.verify import greedy_prefix, rejection

VOCAB, ROWS, DEPTH, START = 8, 100_000, 2, 0
WARP = Warp(0.7, None, 0.9)


def tables(seed, scale=1.0, *, apart=1.0):
    """Target and draft logits after each token, (V, V) each; ``apart`` 0 makes them equal."""
    generator = torch.Generator().manual_seed(seed)
    target = scale * torch.randn(VOCAB, VOCAB, generator=generator)
    return target, target + apart * torch.randn(VOCAB, VOCAB, generator=generator)


def exact_law(target):
    """Law of the first two tokens, (V, V), by definition: temperature 0.7, then top-p 0.9."""

    def after(token):
        p = (target[token].double() / 0.7).softmax(dim=0).tolist()
        ranked = sorted(range(VOCAB), key=lambda each: -p[each])
        sizes = itertools.accumulate(p[each] for each in ranked)
        kept = ranked[: 1 + next(i for i, held in enumerate(sizes) if held >= 0.9)]
        total = sum(p[each] for each in kept)
        return np.array([p[each] / total if each in kept else 0.0 for each in range(VOCAB)])

    return after(START)[:, None] * np.array([after(token) for token in range(VOCAB)])


def speculate(chooser, target, draft, counts=None):
    """The first two tokens of every row behind the prompt's, through two rounds, (ROWS, 2)."""
    rows = len(chooser.examples)
    previous = torch.full((rows, 1), START)
    index = torch.ones(rows, dtype=torch.long)
    out = torch.zeros(rows, 2 * (DEPTH + 1) + 1, dtype=torch.long)
    for _ in range(2):
        drafted, fed = [], [previous]
        for step in range(DEPTH):
            drafted.append(chooser.draft(draft[fed[-1]], index + step))
            fed.append(drafted[-1].ids)
        verified = chooser.verify(drafted, target[torch.cat(fed, dim=1)], counts, index)
        out.scatter_(1, index[:, None] + torch.arange(DEPTH + 1), verified.ids)
        previous = verified.ids.gather(1, verified.accepted[:, None])
        index = index + verified.accepted + 1
    return out[:, 1:3]


def distance(found, law):
    """Total variation."""
    return np.abs(found - law).sum(axis=-1) / 2


def follows(tokens, law):
    """Whether 100,000 pairs of tokens may come from a law (V, V)."""
    pairs = (VOCAB * tokens[:, 0] + tokens[:, 1]).bincount(minlength=VOCAB**2).numpy() / ROWS
    first = distance(pairs.reshape(VOCAB, VOCAB).sum(axis=1), law.sum(axis=1))
    by_chance = np.random.default_rng(0).multinomial(ROWS, law.ravel(), size=5000) / ROWS
    bound = np.quantile(distance(by_chance, law.ravel()), 0.999)
    return bool(first < 0.01 and distance(pairs, law.ravel()) < bound)


@pytest.fixture(scope="module")
def chooser():
    return Sampled(0, range(ROWS), WARP, positions=2 * (DEPTH + 1) + 1)


def take_the_likeliest(self, logits, index):
    return Draft(logits.argmax(dim=-1))


MODELS = {
    "like the target": tables(1, apart=0.5),
    "unlike the target": tables(2, apart=2.0),
    "the target": tables(3, apart=0.0),
    "the opposite": (tables(4)[0], -3 * tables(4)[0]),
}


@pytest.mark.parametrize(("target", "draft"), MODELS.values(), ids=MODELS)
def test_tokens_follow_the_targets_law_whatever_the_draft_is(chooser, target, draft):
    assert follows(speculate(chooser, target, draft), exact_law(target))


def test_tokens_follow_the_targets_law_where_drafts_are_not_drawn(chooser, monkeypatch):
    monkeypatch.setattr(Sampled, "draft", take_the_likeliest)
    target, draft = tables(1, apart=0.5)
    assert follows(speculate(chooser, target, draft), exact_law(target))


def test_tokens_follow_the_targets_law_where_rows_draft_unequally(chooser):
    target, draft = tables(5)
    counts = torch.arange(ROWS) % (DEPTH + 1)
    tokens = speculate(chooser, target, draft, counts)
    assert follows(tokens, exact_law(target))
    # A row that drafted nothing takes a plain step.
    none = counts == 0
    plain = chooser.choose(target[torch.full((ROWS, 1), START)], 1)
    assert plain[none].equal(tokens[none, :1])
    assert not plain.equal(tokens[:, :1])


def unwarped_q(monkeypatch):
    right = Sampled.draft

    def wrong(self, logits, index):
        return Draft(right(self, logits, index).ids, logits.softmax(dim=-1))

    monkeypatch.setattr(Sampled, "draft", wrong)


def unwarped_p(monkeypatch):
    right = Sampled.verify

    def wrong(self, *args):
        unwarped = copy.copy(self)
        unwarped.warp = Warp()
        return right(unwarped, *args)

    monkeypatch.setattr(Sampled, "verify", wrong)


def resampling_from_p(monkeypatch):
    right = sampling.rejection

    def wrong(ids, draft, target, numbers, counts=None):
        accepted, _ = right(ids, draft, target, numbers, counts)
        return accepted, target[torch.arange(ROWS), accepted]

    monkeypatch.setattr(sampling, "rejection", wrong)


def softmax_q_with_a_greedy_draft(monkeypatch):
    def wrong(self, logits, index):
        return Draft(logits.argmax(dim=-1), self.warp(logits))

    monkeypatch.setattr(Sampled, "draft", wrong)


def one_number_to_draft_and_to_accept(monkeypatch):
    monkeypatch.setattr(sampling, "ACCEPT", DRAFT)


def one_number_to_accept_and_for_the_residual(monkeypatch):
    monkeypatch.setattr(sampling, "RESIDUAL", ACCEPT)


def one_number_for_all_positions(monkeypatch):
    right = Sampled._at
    monkeypatch.setattr(Sampled, "_at", lambda self, kind, _, new: right(self, kind, 0, 1))


MISTAKES = [
    unwarped_q,
    unwarped_p,
    resampling_from_p,
    softmax_q_with_a_greedy_draft,
    one_number_to_draft_and_to_accept,
    one_number_to_accept_and_for_the_residual,
    one_number_for_all_positions,
]


@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__.replace("_", " "))
def test_a_classic_mistake_is_found(chooser, monkeypatch, plant):
    plant(monkeypatch)
    target, draft = MODELS["like the target"]
    assert not follows(speculate(chooser, target, draft), exact_law(target))


def test_drafts_of_the_targets_own_law_are_all_accepted_and_the_bonus_is_a_plain_choice(chooser):
    target, draft = MODELS["the target"]
    first = torch.full((ROWS, 1), START)
    drafted = [chooser.draft(draft[first], 1)]
    verified = chooser.verify(drafted, target[torch.cat([first, drafted[0].ids], 1)], None, 1)
    assert (verified.accepted == 1).all()
    bonus = chooser.choose(target[drafted[0].ids], 2)
    assert verified.ids.equal(torch.cat([drafted[0].ids, bonus], dim=1))


def random_case(seed, rows=300, num_drafts=4):
    """Ids that often agree, laws with zeros, numbers and counts of every size."""
    generator = torch.Generator().manual_seed(seed)
    p = Warp(1.0, 4)(torch.randn(rows, num_drafts + 1, VOCAB, generator=generator))
    near = p[:, :-1].clamp(min=1e-6).log() + torch.randn(p[:, :-1].shape, generator=generator)
    q = Warp(1.0, 5)(near)
    ids = q.flatten(0, 1).multinomial(1, generator=generator).view(rows, num_drafts)
    numbers = torch.rand(rows, num_drafts, generator=generator, dtype=torch.float64)
    numbers[::7] = 0.0
    counts = torch.arange(rows) % (num_drafts + 1)
    return ids, q, p, numbers, counts


@pytest.mark.parametrize("ragged", [True, False], ids=["unequal counts", "equal counts"])
def test_rejection_is_that_of_the_definition_row_by_row(ragged):
    ids, q, p, numbers, counts = random_case(0)
    num_rows, num_drafts = ids.shape
    counts = counts if ragged else None
    accepted, law = rejection(ids, q, p, numbers, counts)
    ends = set()
    for row in range(num_rows):
        drafted = counts[row].item() if ragged else num_drafts
        at, expected = 0, None
        while at < drafted and expected is None:
            token = ids[row, at]
            ratio = p[row, at, token].item() / q[row, at, token].item()
            if numbers[row, at].item() < min(1.0, ratio):
                at += 1
            else:
                expected = (p[row, at] - q[row, at]).clamp(min=0)
        ends.add((drafted, at))
        assert accepted[row] == at
        assert law[row].equal(p[row, at] if expected is None else expected)
    assert len(ends) == (15 if ragged else 5)


@pytest.mark.parametrize("ragged", [True, False], ids=["unequal counts", "equal counts"])
def test_greedy_keeps_the_longest_prefix_of_the_argmax_and_one_more(ragged):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(300, 5, VOCAB, generator=generator)
    ids = logits[:, :-1].argmax(dim=-1)
    ids[torch.rand(ids.shape, generator=generator) < 0.25] = 3
    counts = torch.arange(300) % 5 if ragged else None
    found = Greedy().verify([Draft(ids[:, :1]), Draft(ids[:, 1:])], logits, counts, 1)
    assert found.ids.shape == (300, 5)
    ends = set()
    for row, best in enumerate(logits.argmax(dim=-1).tolist()):
        drafted = ids[row, : counts[row] if ragged else 4].tolist()
        expected = []
        while len(expected) < len(drafted) and drafted[len(expected)] == best[len(expected)]:
            expected.append(best[len(expected)])
        ends.add((len(drafted), len(expected)))
        assert found.accepted[row] == len(expected)
        kept = found.ids[row, : len(expected) + 1].tolist()
        assert kept == [*expected, best[len(expected)]]
    assert len(ends) == (15 if ragged else 5)


def test_a_token_the_target_cannot_give_is_never_accepted_nor_drawn():
    ids, q, p, numbers, _ = random_case(2)
    p[:, 0].scatter_(1, ids[:, :1], 0.0)
    accepted, law = rejection(ids, q, p, torch.zeros_like(numbers))
    assert (accepted == 0).all()
    assert (law.gather(1, ids[:, :1]) == 0).all()


def test_an_empty_residual_falls_back_to_the_target():
    # A rejection that rounding alone made: the draft's law is the larger one everywhere.
    p = torch.tensor([[[0.25, 0.75], [1.0, 0.0]]])
    accepted, law = rejection(
        torch.tensor([[1]]), p[:, :1] * (1 + 1e-6), p, torch.tensor([[1 - 1e-9]]).double()
    )
    assert accepted.tolist() == [0]
    assert law.equal(p[:, 0])


def test_no_drafts_at_all_is_a_plain_step():
    logits = torch.randn(3, 1, VOCAB, generator=torch.Generator().manual_seed(3))
    index = torch.tensor([2, 0, 5])
    for make in (Greedy, lambda: Sampled(0, range(3), WARP, 8), lambda: Forced([[1, 2, 3]] * 3)):
        verified = make().verify([], logits, None, index)
        assert verified.accepted.tolist() == [0, 0, 0]
        assert verified.ids.equal(make().choose(logits, index))
    assert greedy_prefix(torch.zeros(3, 0).long(), logits[..., 0].long()).tolist() == [0, 0, 0]


# A tensor on the meta device has no values: whatever would read one back from a GPU, or make a
# shape of values, raises.
WAITS = {
    "a number": lambda x: x.sum().item(),
    "a truth": lambda x: bool((x > 0).any()),
    "a list": lambda x: x.tolist(),
    "an array": lambda x: x.numpy(),
    "a copy": lambda x: x.cpu(),
    "a mask": lambda x: x[x > 0],
    "a comparison": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_what_waits_for_the_device_cannot_be_done_without_values(wait):
    wait(torch.ones(3))
    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        wait(torch.ones(3, device="meta"))


@pytest.mark.parametrize(
    "make",
    [
        Greedy,
        lambda: Sampled(0, range(4), Warp(), 9, "meta"),
        lambda: Sampled(0, range(4), WARP, 9, "meta"),
        lambda: Sampled(0, range(4), Warp(0.7, 5, 0.9), 9, "meta"),
        lambda: Forced([[1, 2, 3]] * 4),
    ],
    ids=["greedy", "all", "top-p", "top-k and top-p", "forced"],
)
def test_drafting_and_verifying_never_wait_for_the_device(make):
    logits = torch.randn(4, 3, VOCAB, device="meta")
    counts, index = torch.tensor([2, 0, 1, 2]).to("meta"), torch.tensor([0, 3, 1, 6]).to("meta")
    chooser = make()
    chooser.choose(logits[:, :1], 0)
    drafted = [chooser.draft(logits[:, :1], index), Draft(counts[:, None])]
    for given in (None, counts):
        verified = chooser.verify(drafted, logits, given, index)
        assert verified.ids.shape == (4, 3)
        assert verified.accepted.device.type == "meta"
