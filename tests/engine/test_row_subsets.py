"""Some rows of a batch alone: the same numbers, the same slots, and nothing of the other rows."""

import pytest
import torch

from methods.engine.cache import index_of

TOLERANCE = 1e-4
LENGTHS = {"a ragged batch": [3, 7, 1, 5], "rows of equal length": [4, 4, 4, 4]}
SUBSETS = {
    "one row": [2],
    "rows side by side": [1, 2],
    "rows that lie apart": [0, 3],
    "all rows": [0, 1, 2, 3],
}
ragged_or_not = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
subsets = pytest.mark.parametrize("subset", SUBSETS.values(), ids=SUBSETS)
advance = pytest.mark.parametrize(
    "unequal", [False, True], ids=["shared slots", "slots of each row"]
)
width = pytest.mark.parametrize("new", [1, 3], ids=["one token", "three tokens"])


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


def _columns(starts, new):
    return torch.tensor(starts)[:, None] + torch.arange(new)


def _positions(model, cache, lengths, new, unequal):
    """Of the tokens behind the prompts; unequally, odd rows stand one slot further."""
    if not unequal:
        return model.at(cache, _columns(lengths, new), max(lengths))
    starts = [length + row % 2 for row, length in enumerate(lengths)]
    return model.at_unequal(cache, _columns(starts, new), [start + new for start in starts])


def _states(rows, new, size=32):
    return torch.randn((rows, new, size), generator=torch.Generator().manual_seed(4))


@pytest.fixture
def pair(shape_name, tiny_transformer, prefilled, make_prompts):
    """Two equal models and caches; slots behind the prompts written, so that all may be read."""

    def make(lengths):
        for _ in range(2):
            model, cache, _ = prefilled(tiny_transformer(shape_name), make_prompts(lengths), 5)
            cache.written[:] = True
            yield model, cache

    return make


@width
@advance
@ragged_or_not
@subsets
def test_a_layer_of_some_rows_is_the_layer_of_all_at_those_rows(
    pair, lengths, subset, unequal, new
):
    (whole, all_rows), (part, some) = pair(lengths)
    x, before = _states(len(lengths), new), some.layers[1].clone()
    expected = whole.block(1, x, _positions(whole, all_rows, lengths, new, unequal), all_rows)
    positions = _positions(part, some, lengths, new, unequal).of_rows(subset)
    found = part.block(1, x[subset], positions, some)
    torch.testing.assert_close(found, expected[subset], atol=TOLERANCE, rtol=0)
    others = [row for row in range(len(lengths)) if row not in subset]
    torch.testing.assert_close(
        some.layers[1][:, subset], all_rows.layers[1][:, subset], atol=TOLERANCE, rtol=0
    )
    assert not torch.equal(some.layers[1][:, subset], before[:, subset])
    assert torch.equal(some.layers[1][:, others], before[:, others])


@width
@advance
@subsets
def test_keys_and_values_of_some_rows_are_written_to_those_rows_alone(pair, subset, unequal, new):
    lengths = LENGTHS["a ragged batch"]
    (whole, all_rows), (part, some) = pair(lengths)
    some.written[1] = False
    x, before = _states(len(lengths), new), some.layers[1].clone()
    whole.write_kv(1, x, _positions(whole, all_rows, lengths, new, unequal), all_rows)
    positions = _positions(part, some, lengths, new, unequal)
    part.write_kv(1, x[subset], positions.of_rows(subset), some)
    torch.testing.assert_close(
        some.layers[1][:, subset], all_rows.layers[1][:, subset], atol=TOLERANCE, rtol=0
    )
    others = [row for row in range(len(lengths)) if row not in subset]
    assert torch.equal(some.layers[1][:, others], before[:, others])
    counts = [new if row in subset else 0 for row in range(len(lengths))]
    assert some.written[1].sum(dim=1).tolist() == counts
    changed = (some.layers[1] != before).any(dim=4).any(dim=2).any(dim=0)
    assert torch.equal(changed, some.written[1])


def test_rows_side_by_side_are_a_slice_so_that_their_keys_are_read_in_place(
    tiny_transformer, prefilled, make_prompts
):
    model, cache, _ = prefilled(tiny_transformer("an OPT"), make_prompts([3, 7, 1, 5]), 5)
    cache.written[:] = True
    positions = _positions(model, cache, [3, 7, 1, 5], 1, unequal=False)
    beside, apart = positions.of_rows([1, 2]), positions.of_rows([0, 3])
    assert beside.rows == slice(1, 3)
    assert apart.rows.tolist() == [0, 3]
    stored = cache.layers[0].untyped_storage().data_ptr()
    assert cache.read(0, beside).untyped_storage().data_ptr() == stored
    assert cache.read(0, apart).untyped_storage().data_ptr() != stored
    assert torch.equal(cache.read(0, apart), cache.read(0, positions)[:, [0, 3]])


def test_an_index_is_a_slice_only_where_each_number_follows_the_one_before():
    device = torch.device("cpu")
    assert index_of([3], device) == slice(3, 4)
    assert index_of([0, 1, 2], device) == slice(0, 3)
    for numbers in ([0, 2], [1, 0], [2, 1, 3], [0, 2, 1, 3]):
        index = index_of(numbers, device)
        assert index.dtype == torch.long
        assert index.tolist() == numbers


@advance
@pytest.mark.parametrize("subset", [[1, 2], [0, 3]], ids=["side by side", "apart"])
def test_some_rows_keep_their_own_part_of_everything(
    tiny_transformer, prefilled, make_prompts, subset, unequal
):
    name = "a Llama with scaled rotary positions and a tied head"
    model, cache, _ = prefilled(tiny_transformer(name), make_prompts([3, 7, 1, 5]), 5)
    whole = _positions(model, cache, [3, 7, 1, 5], 3, unequal)
    part = whole.of_rows(subset)
    assert part.ids.tolist() == whole.ids[subset].tolist()
    assert part.visible == whole.visible
    assert torch.equal(part.mask, whole.mask[subset])
    for one, other in zip(part.rope, whole.rope, strict=True):
        assert torch.equal(one, other[subset])
    if unequal:
        assert torch.equal(part.slots, whole.slots[subset])
    else:
        assert part.slots == whole.slots
    # The ledger's entry: as many rows as ran; what each owns is still told by its own number.
    assert (part.extent.rows, part.extent.members) == (2, tuple(subset))
    assert part.extent.own_keys == whole.extent.own_keys
    assert part.extent._replace(rows=4, members=None) == whole.extent


def test_a_mask_that_is_the_same_for_all_rows_stays_whole(
    tiny_transformer, prefilled, make_prompts
):
    # Rows of equal length and three tokens: causal only. It has queries, no rows, to choose from.
    model, cache, _ = prefilled(tiny_transformer("an OPT"), make_prompts([4] * 4), 5)
    whole = _positions(model, cache, [4] * 4, 3, unequal=False)
    assert whole.mask.shape == (1, 1, 3, 7)
    assert whole.of_rows([1, 2]).mask is whole.mask


@pytest.mark.parametrize("subset", [[1, 2], [0, 2]], ids=["side by side", "apart"])
def test_a_checked_cache_looks_for_holes_of_those_rows_alone(
    tiny_transformer, prefilled, make_prompts, subset
):
    model, cache, _ = prefilled(tiny_transformer("an OPT"), make_prompts([3, 7, 1, 5]), 5)
    first = model.at(cache, _columns([3, 7, 1, 5], 1), 7)
    model.block(1, _states(2, 1), first.of_rows(subset), cache)
    second = model.at(cache, _columns([4, 8, 2, 6], 1), 8)
    # Those rows wrote at slot 7; the others did not, and are caught.
    model.block(1, _states(2, 1), second.of_rows(subset), cache)
    others = [row for row in range(4) if row not in subset]
    with pytest.raises(AssertionError, match=r"layer 1: .*0, 0, 7\] unwritten"):
        model.block(1, _states(2, 1), second.of_rows(others), cache)


def test_what_some_rows_cost_is_charged_to_them(tiny_transformer, prefilled, make_prompts):
    model, cache, _ = prefilled(tiny_transformer("an OPT"), make_prompts([3, 7, 1, 5]), 5)
    model.ledger.close_round()
    positions = model.at(cache, _columns([3, 7, 1, 5], 1), 7).of_rows([0, 3])
    model.block(1, _states(2, 1), positions, cache)
    model.write_kv(2, _states(2, 1), positions, cache)
    model.head(_states(2, 1), positions)
    model.check(lambda: torch.tensor([True, False]), positions)
    model.ledger.close_round()
    ran = model.ledger.executed()[1]
    assert (ran.mlp_positions, ran.kv_positions) == (2, 2)
    assert (ran.head_positions, ran.check_positions) == (2, 2)
    assert ran.attended_pairs == 2 * 8
    everyone, nobody, one = (
        model.ledger.required([[], rows], [None, None])[1] for rows in ([0, 1, 2, 3], [1, 2], [3])
    )
    assert (everyone.mlp_positions, everyone.attended_pairs) == (2, 4 + 6)
    assert not any(getattr(nobody, name) for name in nobody.__slots__)
    assert (one.attended_pairs, one.kv_positions, one.head_positions) == (6, 1, 1)
