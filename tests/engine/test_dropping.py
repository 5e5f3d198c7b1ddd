"""Rows that leave the batch: what cache, positions and choosers hold of the others stays theirs."""

import math

import pytest
import torch

from methods.engine.drawing import Warp
from methods.engine.dropping import Kept, select
from methods.engine.lockstep import Lockstep
from methods.engine.ragged import Ragged
from methods.engine.sampling import Draft, Forced, Greedy, Sampled

LENGTHS, NEW = [3, 9, 1, 6], 5
KEPT = pytest.mark.parametrize(
    "rows", [(0, 3), (1, 2), (2,)], ids=["apart", "side by side", "one row"]
)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture
def started(tiny_transformer, prefilled, make_prompts):
    """A model and a cache that holds the prompts, and who may not be read is refused."""

    def make():
        model, cache, _ = prefilled(tiny_transformer("an OPT"), make_prompts(LENGTHS), NEW)
        return model, cache

    return make


def _all_live(rows):
    return torch.ones(len(rows), dtype=torch.bool)


@KEPT
def test_the_cache_of_rows_that_stay_is_what_it_was_at_those_rows(started, rows):
    (_, whole), (_, cache) = started(), started()
    cache.keep(rows)
    assert cache.lengths == tuple(LENGTHS[row] for row in rows)
    assert cache.offsets == tuple(whole.offsets[row] for row in rows)
    assert torch.equal(cache.offset_ids, whole.offset_ids[list(rows)])
    assert torch.equal(cache.left_edge, whole.left_edge[list(rows)])
    assert torch.equal(cache.written, whole.written[:, list(rows)])
    for mine, theirs in zip(cache.layers, whole.layers, strict=True):
        assert torch.equal(mine, theirs[:, list(rows)])
    # Slots stay where they are: of two rows that stay both, the distance too.
    assert (cache.num_slots, cache.capacity) == (whole.num_slots, whole.capacity)


@KEPT
@pytest.mark.parametrize("unequal", [False, True], ids=["together", "unequally"])
def test_steps_of_rows_that_stay_are_those_of_the_whole_batch(started, run_layers, rows, unequal):
    ids = torch.tensor([[7], [8], [9], [10]])
    logits = []
    for leave in (None, rows):
        model, cache = started()
        step = Ragged(model, cache, NEW) if unequal else Lockstep(model, cache)
        for at in range(3):
            sent, own = None, ids
            if leave is not None and at >= 1:
                own = ids[list(leave)]
                sent = Kept(leave, _all_live(leave)) if at == 1 else _all_live(leave)
            if unequal:
                step.advance(torch.ones(len(ids if at == 1 else own), dtype=torch.long), sent)
                positions = step.at(0, 1, [0] * len(own))
            else:
                positions = step.advance(sent)
            if at == 1:
                # What a method carries across a yield goes the same way.
                own = step.kept(ids)
            found = run_layers(model, cache, own, positions)
        logits.append(found)
        assert len(step.kept([0] * len(own))) == len(own)
    torch.testing.assert_close(logits[1], logits[0][list(rows)], atol=1e-4, rtol=0)


def test_a_finished_row_that_stays_is_held_where_it_is(started):
    step = Lockstep(*started())
    step.advance(None)
    positions = step.advance(Kept((0, 1, 3), torch.tensor([True, False, True])))
    assert positions.ids.tolist() == [[4], [9], [7]]
    assert step.live.tolist() == [True, False, True]
    assert positions.extent.own_keys == (5, 11, 8)
    assert step.advance(None).ids.tolist() == [[5], [10], [8]]


def test_tokens_that_are_told_are_those_of_rows_that_stay(started):
    rows = Ragged(*started(), NEW)
    rows.advance(torch.ones(4, dtype=torch.long), None)
    ids = torch.tensor([[11, 12], [21, 22], [31, 32], [41, 42]])
    sent = Kept((1, 2, 3), torch.tensor([True, False, True]))
    assert rows.advance(torch.tensor([1, 1, 2, 2]), sent, ids) == [[21], [], [41, 42]]
    assert (rows.starts, rows.made) == ([10, 1, 8], [2, 1, 3])
    assert rows.room(9) == [2, 0, 1]
    assert rows.kept(["a", "b", "c", "d"]) == ["b", "c", "d"]


def test_a_selection_is_the_same_of_tensors_and_lists():
    values = [[1, 2], [3, 4], [5, 6]]
    for rows in ([0, 2], [1, 2], [1]):
        assert select(torch.tensor(values), rows).tolist() == select(values, rows)


def test_a_row_draws_its_own_numbers_when_others_have_left():
    logits = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(1))
    drafts = [Draft(torch.full((4, 1), 6)), Draft(torch.full((4, 1), 9))]
    whole, left = (Sampled(3, range(5, 9), Warp(), 8) for _ in range(2))
    left.keep([0, 2, 3])
    left.keep([1, 2])
    mine = [2, 3]
    few = [Draft(draft.ids[mine]) for draft in drafts]
    assert torch.equal(left.choose(logits[mine], 4), whole.choose(logits, 4)[mine])
    one, other = left.verify(few, logits[mine], None, 4), whole.verify(drafts, logits, None, 4)
    assert torch.equal(one.ids, other.ids[mine])
    # Beyond the numbers made, more are made: of the rows that are left.
    assert torch.equal(left.choose(logits[mine], 20), whole.choose(logits, 20)[mine])
    assert torch.equal(
        left.choose(logits[mine], torch.tensor([2, 5])),
        whole.choose(logits, torch.tensor([0, 0, 2, 5]))[mine],
    )


@pytest.mark.parametrize(
    "make",
    [Greedy, lambda: Forced([[1, 2]] * 4), lambda: Sampled(0, range(4), Warp(), 8)],
    ids=["greedy", "forced", "sampled"],
)
def test_rows_are_named_by_their_place_in_the_whole_batch(make):
    chooser, logits = make(), torch.zeros(4, 1, 9)
    logits[1, 0, 3] = math.nan
    chooser.choose(logits, 0)
    chooser.keep([0, 2, 3])
    chooser.choose(torch.zeros(3, 1, 9), 1)
    chooser.keep([1, 2])
    logits = torch.zeros(2, 1, 9)
    logits[1, 0, 3] = math.inf
    chooser.choose(logits, 2)
    assert chooser.non_finite_rows() == [1, 3]


def test_a_given_continuation_is_scored_at_its_rows_of_the_whole_batch():
    continuation = [[4, 1, 3], [0, 2, 2], [1, 1, 4]]
    logits = torch.randn(3, 3, 5, generator=torch.Generator().manual_seed(2))
    whole, left = Forced(continuation), Forced(continuation)
    whole.choose(logits, 0)
    left.choose(logits[:, :1], 0)
    left.keep([1, 2])
    assert left.choose(logits[1:, 1:2], 1).tolist() == [[2], [1]]
    left.keep([1])
    assert left.verify([Draft(torch.tensor([[3]]))], logits[2:, 1:], None, 1).ids.tolist() == [
        [1, 4]
    ]
    found, best = left.log_probs, left.was_argmax
    assert [each.shape for each in found] == [(3, 1), (3, 1), (3, 2)]
    assert torch.equal(found[0], whole.log_probs[0][:, :1])
    assert torch.equal(found[1][1:], whole.log_probs[0][1:, 1:2])
    assert found[1][0].isnan().all()
    assert found[2][:2].isnan().all()
    # The draft was wrong: one token is kept, and one place is padding.
    assert torch.equal(found[2][2, :1], whole.log_probs[0][2, 1:2])
    assert found[2][2, 1].isnan()
    assert not best[2][:2].any()
    assert torch.equal(best[1][1:], whole.was_argmax[0][1:, 1:2])
