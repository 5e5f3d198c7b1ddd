"""Choosers: ties, numbers that are none, and given continuations."""

import pytest
import torch

from methods.engine.sampling import Forced, Greedy


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


@pytest.mark.parametrize("make", [Greedy, lambda: Forced([[1, 2]] * 4)], ids=["greedy", "forced"])
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf")],
    ids=["not a number", "plus infinity", "minus infinity"],
)
def test_rows_with_a_logit_that_is_no_number_are_found_also_later(make, value):
    chooser = make()
    assert chooser.non_finite_rows() == []
    logits = torch.randn(4, 2, 50, generator=torch.Generator().manual_seed(1))
    chooser.choose(logits, 0)
    assert chooser.non_finite_rows() == []
    broken = logits.clone()
    broken[2, 1, 17] = value
    broken[3, 0, 0] = value
    chooser.choose(broken, 2)
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
