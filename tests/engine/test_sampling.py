"""Choosers: ties, numbers that are none, sampling row by row, and given continuations."""

import pytest
import torch

from methods.engine.drawing import Warp
from methods.engine.sampling import Draft, Forced, Greedy, Sampled

WARP = Warp(0.7, 30, 0.9)


def test_the_lowest_id_of_equal_logits_is_chosen():
    logits = torch.zeros(2, 2, 50)
    logits[0, 1, [7, 30, 31]] = 4.0
    logits[1, 0, 49] = logits[1, 0, 48] = 1.0
    assert Greedy().choose(logits, 0).tolist() == [[0, 7], [48, 0]]


def test_the_largest_logit_is_chosen_whatever_the_index():
    logits = torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(0))
    greedy = Greedy()
    for index in (0, 5):
        assert greedy.choose(logits, index).tolist() == [
            [max(range(50), key=row.__getitem__) for row in rows] for rows in logits.tolist()
        ]


@pytest.mark.parametrize(
    "make",
    [Greedy, lambda: Forced([[1, 2]] * 4), lambda: sampled(range(4))],
    ids=["greedy", "forced", "sampled"],
)
@pytest.mark.parametrize("way", ["choose", "draft", "verify"])
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf")],
    ids=["not a number", "plus infinity", "minus infinity"],
)
def test_rows_with_a_logit_that_is_no_number_are_found_also_later(make, way, value):
    chooser = make()
    drafts = [Draft(torch.zeros(4, 1, dtype=torch.long))]
    assert chooser.non_finite_rows() == []
    logits = torch.randn(4, 2, 50, generator=torch.Generator().manual_seed(1))
    chooser.choose(logits, 0)
    assert chooser.non_finite_rows() == []
    broken = logits.clone()
    broken[2, 1, 17] = value
    broken[3, 0, 0] = value
    if way == "verify":
        ids = chooser.verify(drafts, broken, None, 2).ids
    else:
        ids = getattr(chooser, way)(broken, 2)
    ids = ids.ids if way == "draft" else ids
    # They can still be embedded: the run is refused only when it is over.
    assert ids.min() >= 0
    assert ids.max() < 50
    chooser.choose(logits, 4)
    assert chooser.non_finite_rows() == [2, 3]


def test_infinities_of_both_signs_do_not_cancel_out():
    logits = torch.zeros(2, 1, 5)
    logits[1, 0, 1], logits[1, 0, 2] = float("inf"), float("-inf")
    greedy = Greedy()
    greedy.choose(logits, 0)
    assert greedy.non_finite_rows() == [1]


def test_a_given_continuation_is_returned_and_scored():
    continuation = [[4, 1, 3], [0, 2, 2]]
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2))
    logits[0, 0, 4] = logits[1, 2, 2] = 9.0
    forced = Forced(continuation)
    assert forced.choose(logits[:, :1], 0).tolist() == [[4], [0]]
    assert forced.choose(logits[:, 1:], 1).tolist() == [[1, 3], [2, 2]]
    found, best = torch.cat(forced.log_probs, dim=1), torch.cat(forced.was_argmax, dim=1)
    assert found.shape == best.shape == (2, 3)
    for row, ids in enumerate(continuation):
        for column, token in enumerate(ids):
            at = logits[row, column].double()
            expected = (at[token] - at.exp().sum().log()).item()
            assert found[row, column].item() == pytest.approx(expected, abs=1e-5)
            assert best[row, column].item() == (int(at.argmax()) == token)
    assert best[0, 0]
    assert best[1, 2]
    assert not best.all()


def test_beyond_its_end_a_continuation_goes_on_with_its_last_id():
    forced, logits = Forced([[4, 1], [0, 2]]), torch.zeros(2, 3, 5)
    assert forced.choose(logits, 1).tolist() == [[1, 1, 1], [2, 2, 2]]
    assert forced.choose(logits[:, :1], 9).tolist() == [[1], [2]]


def sampled(examples, seed=0, warp=WARP, positions=8):
    return Sampled(seed, examples, warp, positions)


def step(chooser, logits, draft_logits, index):
    """Choices of every kind for all rows: plain, drafted and verified."""
    plain = chooser.choose(logits, index)
    drafts = [chooser.draft(draft_logits[:, [k]], index + k) for k in range(logits.shape[1] - 1)]
    verified = chooser.verify(drafts, logits, None, index)
    ids = [plain, *[draft.ids for draft in drafts], verified.accepted[:, None], verified.ids]
    return torch.cat(ids, dim=1)


def test_a_row_draws_the_same_alone_in_any_batch_at_any_place_and_after_anything():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(5, 4, 50, generator=generator)
    draft_logits = logits[:, :3] + 0.3 * torch.randn(5, 3, 50, generator=generator)
    index = torch.tensor([0, 3, 1, 2, 0])
    batch = step(sampled(range(10, 15)), logits, draft_logits, index)
    for row in range(5):
        one = slice(row, row + 1)
        alone = step(sampled([10 + row]), logits[one], draft_logits[one], index[one])
        assert alone.equal(batch[one])
    order = torch.tensor([3, 0, 4, 1])
    moved = sampled([13, 10, 14, 11], positions=30)
    step(moved, logits[:4], draft_logits[:4], 1)
    assert step(moved, logits[order], draft_logits[order], index[order]).equal(batch[order])
    other = step(sampled(range(10, 15), seed=1), logits, draft_logits, index)
    assert not other.equal(batch)


def test_tokens_asked_for_together_are_those_asked_for_one_by_one():
    logits = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(5))
    together = sampled(range(3)).choose(logits, 2)
    single = [sampled(range(3)).choose(logits[:, [k]], 2 + k) for k in range(4)]
    assert torch.cat(single, dim=1).equal(together)
    by_row = sampled(range(3)).choose(logits, torch.full((3,), 2))
    assert by_row.equal(together)
    assert not sampled(range(3)).choose(logits, 3).equal(together)


def test_positions_beyond_those_foreseen_get_the_numbers_of_a_longer_start():
    logits = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(6))
    short, long = sampled(range(3), positions=2), sampled(range(3), positions=99)
    for index in (0, 1, 9, 60):
        assert short.choose(logits, index).equal(long.choose(logits, index))


def test_rows_past_the_end_go_on_without_harm_to_the_others():
    logits = torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(7))
    within = sampled(range(3)).choose(logits, torch.tensor([0, 4, 6]))
    past = sampled(range(3)).choose(logits, torch.tensor([0, 4, 7_000]))
    assert past[:2].equal(within[:2])


def test_sampled_tokens_are_of_the_warped_law_only():
    logits = torch.randn(200, 4, 50, generator=torch.Generator().manual_seed(8))
    ids = sampled(range(200)).choose(logits, 0)
    kept = WARP(logits).gather(-1, ids[..., None])
    assert (kept > 0).all()
    assert (ids != logits.argmax(dim=-1)).any()
    greedy = sampled(range(200), warp=Warp(top_k=1))
    assert greedy.choose(logits, 0).equal(logits.argmax(dim=-1))


@pytest.mark.parametrize("positions", [0, -1])
def test_no_positions_are_refused(positions):
    with pytest.raises(ValueError, match="positions"):
        sampled([0], positions=positions)


@pytest.mark.parametrize("make", [Greedy, lambda: sampled([0]), lambda: Forced([[1]])])
def test_more_or_fewer_target_positions_than_drafts_are_refused(make):
    draft = Draft(torch.zeros(1, 1, dtype=torch.long))
    for new in (1, 3):
        with pytest.raises(ValueError, match="1 drafted"):
            make().verify([draft], torch.zeros(1, new, 5), None, 0)


def test_a_continuation_is_drafted_accepted_and_scored_wherever_a_row_stands():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(9))
    forced, index = Forced([[4, 1, 3, 0], [0, 2, 2, 1]]), torch.tensor([0, 1])
    drafted = [forced.draft(logits[:, :1], index + k) for k in range(2)]
    assert torch.cat([each.ids for each in drafted], dim=1).tolist() == [[4, 1], [2, 2]]
    assert forced.log_probs == []
    counts = torch.tensor([2, 1])
    verified = forced.verify(drafted, logits, counts, index)
    assert verified.accepted.tolist() == [2, 1]
    assert verified.ids.tolist() == [[4, 1, 3], [2, 2, 1]]
    (found,), (best,) = forced.log_probs, forced.was_argmax
    expected = logits.log_softmax(dim=-1).gather(-1, verified.ids[..., None])[..., 0]
    assert found[0].allclose(expected[0])
    assert found[1, :2].allclose(expected[1, :2])
    assert found[1, 2].isnan()
    assert not best[1, 2]
    # Another's drafts are accepted as far as they are the continuation.
    other = forced.verify([Draft(torch.tensor([[4, 2], [0, 0]]))], logits, None, index)
    assert other.accepted.tolist() == [1, 0]
