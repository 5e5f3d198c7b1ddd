"""Rows that advance unequally: where they stand, what they may draft, what they read and write."""

import random

import pytest
import torch

from methods.engine.ragged import Ragged, layers_run
from tests.engine.plain_exit import HostReads

TOLERANCE = 1e-4
LENGTHS, NEW = [5, 1, 8, 3], 14


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture
def started(tiny_transformer, prefilled, make_prompts):
    """``started(lengths, limit)``: a Ragged that has been told of the prompt's token."""

    def make(lengths=LENGTHS, limit=NEW):
        model, cache, _ = prefilled(tiny_transformer("an OPT"), make_prompts(lengths), limit)
        rows = Ragged(model, cache, limit)
        rows.advance(torch.ones(len(lengths), dtype=torch.long), None)
        return rows

    return make


def test_behind_the_prompt_pass_each_row_has_one_token_which_no_layer_has_seen(started):
    rows = started()
    assert (rows.starts, rows.made, rows.index()) == (LENGTHS, [1] * 4, 1)


def test_each_row_moves_on_by_the_tokens_that_it_was_given(started):
    rows = started()
    rows.advance(torch.tensor([3, 1, 4, 2]), None)
    assert rows.starts == [8, 2, 12, 5]
    assert rows.made == rows.index().tolist() == [4, 2, 5, 3]
    rows.advance(torch.tensor([1, 3, 0, 2]), torch.tensor([True, True, False, True]))
    assert rows.starts == [9, 5, 12, 7]
    assert rows.made == [5, 5, 5, 5]
    assert rows.index() == 5


def test_the_tokens_that_rows_moved_on_by_are_told(started):
    rows, live = started(), torch.tensor([True, False, True, True])
    ids = torch.tensor([[11, 12, 13], [21, 22, 23], [31, 32, 33], [41, 42, 43]])
    given = torch.tensor([2, 3, 1, 3])
    assert rows.advance(given, live, ids) == [[11, 12], [], [31], [41, 42, 43]]
    assert rows.advance(given, None) == [[], [], [], []]


def test_a_finished_row_stays_where_it_is_whether_it_was_told_so_or_reached_its_limit(started):
    rows, given = started(limit=5), torch.tensor([4, 1, 1, 1])
    rows.advance(given, torch.tensor([True, False, True, True]))
    for _ in range(2):
        # Row 0 has its five tokens, row 1 an EOS; None does not bring it back.
        rows.advance(given, None)
    assert rows.made == [5, 1, 4, 4]
    assert rows.starts == [9, 1, 11, 6]
    assert rows.room(3) == [0, 0, 0, 0]


def test_a_row_drafts_what_is_wanted_but_leaves_a_place_for_the_targets_token(started):
    rows = started(limit=8)
    assert rows.room(4) == [4] * 4
    rows.advance(torch.tensor([2, 4, 5, 6]), None)
    # Of 8 they have 3, 5, 6 and 7.
    assert rows.room(4) == [4, 2, 1, 0]
    assert rows.room(1) == [1, 1, 1, 0]
    assert started(limit=1).room(4) == [0] * 4


def test_the_host_reads_once_to_move_rows_on_and_never_for_positions(started):
    rows, live = started(), torch.tensor([True] * 4)
    with HostReads() as reads:
        rows.at(0, 3, rows.room(2))
        rows.at(1, 2, [2, 0, 1, 2])
        rows.index()
    assert reads.found == []
    with HostReads() as reads:
        rows.advance(torch.tensor([2, 1, 3, 1]), live, torch.ones((4, 3), dtype=torch.long))
    assert reads.found == ["tolist"]


def test_rows_at_one_slot_that_draft_alike_share_their_slots(started):
    rows = started()
    positions = rows.at(2, 3, [4] * 4)
    # All prompts end at slot 8.
    assert positions.slots == slice(10, 13)
    assert positions.ids.tolist() == [[at, at + 1, at + 2] for at in (7, 3, 10, 5)]
    assert positions.extent.own_new is None
    assert isinstance(rows.at(2, 3, [4, 4, 3, 4]).slots, torch.Tensor)
    rows.advance(torch.tensor([1, 2, 1, 1]), None)
    assert isinstance(rows.at(2, 3, [4] * 4).slots, torch.Tensor)


def test_what_is_no_token_of_a_row_lies_in_a_slot_that_nobody_sees(started):
    rows = started()
    rows.advance(torch.tensor([3, 1, 2, 1]), None)
    positions = rows.at(0, 4, [3, 0, 1, 2])
    assert positions.ids.tolist() == [[8, 9, 10, 11], [2] * 4, [10, 11, 11, 11], [4, 5, 6, 6]]
    none = rows.cache.num_slots
    slots = [[11, 12, 13, 14], [9, *[none] * 3], [10, 11, none, none], [9, 10, 11, none]]
    assert positions.slots.tolist() == slots
    assert positions.visible == 15 <= none
    extent = positions.extent
    assert (extent.rows, extent.new, extent.keys) == (4, 4, 15)
    # Each row's own tokens, and the keys up to its own last one.
    assert extent.own_new == (4, 1, 2, 3)
    assert extent.own_keys == (12, 3, 12, 7)


def test_one_place_of_a_draft_belongs_to_the_rows_that_draft_so_far(started):
    rows = started()
    extents = [rows.at(place, 1, [2, 0, 1, 2]).extent for place in range(3)]
    assert [extent.own_new for extent in extents] == [None, (1, 0, 1, 1), (1, 0, 0, 1)]
    # Of a row that no longer drafts nothing is charged, whatever keys it could see.
    assert [extent.own_keys[0] for extent in extents] == [6, 7, 8]


def _fed(row, start, drafted, kept, width):
    """The newest token, right drafts, wrong drafts, and pads that are wrong too."""
    right = row[start : start + kept + 1]
    wrong = [(token + 1) % 61 for token in row[start + kept + 1 : start + drafted + 1]]
    return (right + wrong + [60] * width)[:width]


@pytest.mark.parametrize("split", [0, 2], ids=["all layers at once", "two layers token by token"])
def test_rows_that_draft_and_keep_unequally_give_the_logits_of_their_full_passes(
    shape_name, tiny_transformer, prefilled, make_prompts, split
):
    # No position more than prompt and limit need: nothing may run past the table.
    transformer = tiny_transformer(shape_name, max_positions=max(LENGTHS) + NEW)
    draw, texts = random.Random(2), make_prompts([length + NEW for length in LENGTHS], seed=2)
    prompts = [text[:length] for text, length in zip(texts, LENGTHS, strict=True)]
    expected = [transformer(torch.tensor([text]))[0] for text in texts]
    model, cache, _ = prefilled(transformer, prompts, NEW)
    rows, seen = Ragged(model, cache, NEW), set()
    rows.advance(torch.ones(4, dtype=torch.long), None)
    while min(rows.made) < NEW:
        drafted = [draw.randint(0, most) for most in rows.room(4)]
        kept = [draw.randint(0, count) for count in drafted]
        width = max(drafted) + 1
        parts = zip(texts, rows.starts, drafted, kept, strict=True)
        fed = torch.tensor([_fed(*each, width) for each in parts])
        states = []
        for place in range(width if split else 0):
            at = rows.at(place, 1, drafted)
            x = model.embed(fed[:, place : place + 1], at)
            for layer in range(split):
                x = model.block(layer, x, at, cache)
            states.append(x)
        at = rows.at(0, width, drafted)
        x = torch.cat(states, dim=1) if split else model.embed(fed, at)
        for layer in range(split, 4):
            x = model.block(layer, x, at, cache)
        found = model.head(x, at)
        for row, (start, count) in enumerate(zip(rows.starts, kept, strict=True)):
            wanted = expected[row][start : start + count + 1]
            torch.testing.assert_close(found[row, : count + 1], wanted, atol=TOLERANCE, rtol=0)
        seen.update(zip(drafted, kept, strict=True))
        rows.advance(torch.tensor(kept) + 1, None)
    assert rows.made == [NEW] * 4
    assert {(0, 0), (4, 0), (4, 4), (3, 1)} <= seen
    # Nothing was written where a row has no token: left of it, or behind its last.
    for row, (offset, length) in enumerate(zip(cache.offsets, LENGTHS, strict=True)):
        assert not cache.written[:, row, :offset].any()
        assert not cache.written[:, row, offset + length + NEW : cache.num_slots].any()


def test_rejected_drafts_are_charged_to_the_token_behind_the_accepted_ones():
    ids, accepted, drafted = torch.zeros((3, 4), dtype=torch.long), [0, 2, 3], [3, 2, 3]
    found = layers_run(ids, torch.tensor(accepted), torch.tensor(drafted), 6)
    assert [row[: 1 + kept] for row, kept in zip(found.tolist(), accepted, strict=True)] == [
        [24],
        [6, 6, 6],
        [6, 6, 6, 6],
    ]
