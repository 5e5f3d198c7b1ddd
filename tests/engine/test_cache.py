"""The cache: slots and offsets, holes, rows that advance together and unequally, its limits."""

import random

import pytest
import torch

from methods.engine.cache import KVCache, Prompts
from methods.engine.checked_cache import CheckedKVCache
from methods.engine.layer import mlp_sublayer

TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


def _ids(rows, starts, width):
    """The next ``width`` ids of each row from its own start, (B, width)."""
    return torch.tensor([row[at : at + width] for row, at in zip(rows, starts, strict=True)])


def _columns(starts, width):
    return torch.tensor(starts)[:, None] + torch.arange(width)


def test_prompts_are_padded_on_the_right_with_valid_ids():
    prompts = Prompts.of([[2, 5, 7], [2]])
    assert prompts.lengths == (3, 1)
    assert prompts.ids[0].tolist() == [2, 5, 7]
    assert prompts.ids[1, 0].item() == 2
    assert prompts.ids.min() >= 0
    assert prompts.ids.max() < 8


@pytest.mark.parametrize("rows", [[], [[2, 3], []]], ids=["no prompt", "a prompt of no token"])
def test_an_empty_prompt_is_refused(rows):
    with pytest.raises(ValueError, match="at least one token"):
        Prompts.of(rows)


def test_all_rows_end_at_one_slot(tiny_shape):
    cache = KVCache(tiny_shape("an OPT"), Prompts.of([[2] * 3, [2] * 7, [2]]), 5, torch.float32)
    assert cache.offsets == (4, 0, 6)
    assert cache.num_slots == 12
    ends = {offset + length for offset, length in zip(cache.offsets, cache.lengths, strict=True)}
    assert ends == {7}


def test_prompt_keys_and_values_lie_at_offset_plus_position(
    shape_name, tiny_transformer, prefilled, make_prompts
):
    transformer = tiny_transformer(shape_name)
    rows = make_prompts([3, 7, 1])
    _, together, _ = prefilled(transformer, rows, 5)
    for row, offset in enumerate((4, 0, 6)):
        _, alone, _ = prefilled(transformer, [rows[row]], 5)
        length = len(rows[row])
        for layer in range(transformer.shape.num_layers):
            found = together.layers[layer][:, row, :, offset : offset + length]
            torch.testing.assert_close(
                found, alone.layers[layer][:, 0, :, :length], atol=TOLERANCE, rtol=0
            )
            rest = together.layers[layer][:, row].clone()
            rest[:, :, offset : offset + length] = 0
            assert not rest.any()
            assert found.abs().amax(dim=(0, 1, 3)).min() > 0


def test_several_tokens_in_one_call_equal_single_steps(
    shape_name, tiny_transformer, prefilled, make_prompts, run_layers
):
    transformer, starts = tiny_transformer(shape_name), [3, 7, 1]
    rows = make_prompts([length + 6 for length in starts], seed=1)
    prompts = [row[:at] for row, at in zip(rows, starts, strict=True)]
    model, at_once, _ = prefilled(transformer, prompts, 6)
    found = run_layers(
        model, at_once, _ids(rows, starts, 6), model.at(at_once, _columns(starts, 6), 7)
    )
    model, stepwise, _ = prefilled(transformer, prompts, 6)
    for step in range(6):
        now = [at + step for at in starts]
        positions = model.at(stepwise, _columns(now, 1), 7 + step)
        expected = run_layers(model, stepwise, _ids(rows, now, 1), positions)
        torch.testing.assert_close(found[:, step], expected[:, 0], atol=TOLERANCE, rtol=0)
    for once, single in zip(at_once.layers, stepwise.layers, strict=True):
        torch.testing.assert_close(once, single, atol=TOLERANCE, rtol=0)


def test_rows_that_advance_unequally_over_stale_slots_equal_their_full_passes(
    shape_name, tiny_transformer, prefilled, make_prompts, run_layers
):
    # As in speculation: each call feeds three tokens, keeps one to three of each row, and the
    # rest, wrong tokens all, is overwritten by the next call before it may be seen.
    transformer, draw = tiny_transformer(shape_name), random.Random(2)
    starts, new, width = [5, 1, 8, 3], 12, 3
    rows = make_prompts([length + new for length in starts], seed=2)
    prompts = [row[:at] for row, at in zip(rows, starts, strict=True)]
    model, cache, _ = prefilled(transformer, prompts, new + width)
    expected = [transformer(torch.tensor([row]))[0] for row in rows]
    lengths, ends, kept_counts = list(starts), [len(row) for row in rows], set()
    while lengths != ends:
        kept = [
            min(draw.randint(1, width), end - at) for at, end in zip(lengths, ends, strict=True)
        ]
        kept_counts.add(tuple(kept))
        fed = [
            row[at : at + keep] + [(token + 1) % 61 for token in row[at + keep : at + width]]
            for row, at, keep in zip(rows, lengths, kept, strict=True)
        ]
        fed = torch.tensor([(row + [60] * width)[:width] for row in fed])
        positions = model.at_unequal(
            cache, _columns(lengths, width), [at + width for at in lengths]
        )
        found = run_layers(model, cache, fed, positions)
        for row, (at, keep) in enumerate(zip(lengths, kept, strict=True)):
            wanted = expected[row][at : at + keep]
            torch.testing.assert_close(found[row, :keep], wanted, atol=TOLERANCE, rtol=0)
        lengths = [at + keep for at, keep in zip(lengths, kept, strict=True)]
    assert any(len(set(kept)) > 1 for kept in kept_counts)


def test_unequal_steps_of_rows_in_step_equal_steps_in_shared_slots(
    shape_name, tiny_transformer, prefilled, make_prompts, run_layers
):
    transformer, starts = tiny_transformer(shape_name), [2, 6]
    rows = make_prompts([4, 8], seed=3)
    prompts = [row[:at] for row, at in zip(rows, starts, strict=True)]
    outcomes = []
    for unequal in (False, True):
        model, cache, _ = prefilled(transformer, prompts, 2)
        at = _columns(starts, 2)
        positions = model.at_unequal(cache, at, [4, 8]) if unequal else model.at(cache, at, 6)
        logits = run_layers(model, cache, _ids(rows, starts, 2), positions)
        outcomes.append((logits, *cache.layers))
    for together, apart in zip(*outcomes, strict=True):
        torch.testing.assert_close(apart, together, atol=TOLERANCE, rtol=0)


def test_a_bound_on_a_rows_length_may_be_too_large_but_changes_nothing(
    tiny_transformer, prefilled, make_prompts, run_layers
):
    transformer, rows = tiny_transformer("an OPT"), make_prompts([3, 5], seed=4)
    outcomes = []
    for bounds in ([4, 6], [7, 9]):
        model, cache, _ = prefilled(transformer, rows, 4, checked_cache=False)
        positions = model.at_unequal(cache, _columns([3, 5], 1), bounds)
        outcomes.append(run_layers(model, cache, torch.tensor([[9], [8]]), positions))
    torch.testing.assert_close(outcomes[0], outcomes[1], atol=TOLERANCE, rtol=0)


def _hole(model, cache, run_layers, advance):
    """Leaves layer 1 out of the first step and runs it in the second."""
    ids = torch.tensor([[9], [8]])
    run_layers(model, cache, ids, advance([3, 5], 5), layers=[0, 2, 3])
    run_layers(model, cache, ids, advance([4, 6], 6))


@pytest.mark.parametrize("unequal", [False, True], ids=["shared slots", "slots of each row"])
def test_a_checked_cache_refuses_to_read_a_slot_that_was_never_written(
    tiny_transformer, prefilled, make_prompts, run_layers, unequal
):
    model, cache, _ = prefilled(tiny_transformer("an OPT"), make_prompts([3, 5]), 4)

    def advance(starts, slot):
        columns = _columns(starts, 1)
        if unequal:
            return model.at_unequal(cache, columns, [start + 1 for start in starts])
        return model.at(cache, columns, slot)

    assert isinstance(cache, CheckedKVCache)
    with pytest.raises(AssertionError, match=r"layer 1: .*0, 0, 5\] unwritten"):
        _hole(model, cache, run_layers, advance)


def test_a_plain_cache_does_not_look_for_holes(
    tiny_transformer, prefilled, make_prompts, run_layers
):
    model, cache, _ = prefilled(
        tiny_transformer("an OPT"), make_prompts([3, 5]), 4, checked_cache=False
    )
    assert type(cache) is KVCache
    _hole(model, cache, run_layers, lambda starts, slot: model.at(cache, _columns(starts, 1), slot))


def test_a_stale_slot_of_a_row_is_not_taken_for_a_hole_of_another(
    tiny_transformer, prefilled, make_prompts, run_layers
):
    model, cache, _ = prefilled(tiny_transformer("an OPT"), make_prompts([3, 5]), 6)
    ids = torch.tensor([[9, 9, 9], [8, 8, 8]])
    run_layers(model, cache, ids, model.at_unequal(cache, _columns([3, 5], 3), [6, 8]))
    # Row 0 kept all three, row 1 one: its slots ahead are stale, and seen by nobody.
    run_layers(model, cache, ids, model.at_unequal(cache, _columns([6, 6], 3), [9, 9]))


def test_writing_keys_and_values_alone_writes_what_the_layer_would_have(
    shape_name, tiny_transformer, prefilled, make_prompts
):
    starts = [3, 5]
    model, cache, _ = prefilled(tiny_transformer(shape_name), make_prompts(starts), 2)
    positions = model.at(cache, _columns(starts, 2), 5)
    x = model.embed(torch.tensor([[9, 8], [7, 6]]), positions)
    for layer in range(model.shape.num_layers):
        before = cache.layers[layer].clone()
        model.write_kv(layer, x, positions, cache)
        alone = cache.layers[layer].clone()
        assert not torch.equal(alone, before)
        assert cache.written[layer, :, 5:7].all()
        cache.layers[layer].copy_(before)
        x = model.block(layer, x, positions, cache)
        torch.testing.assert_close(alone, cache.layers[layer], atol=1e-6, rtol=0)


def test_the_two_branches_of_a_layer_one_after_the_other_are_the_layer(
    shape_name, tiny_transformer, prefilled, make_prompts
):
    transformer = tiny_transformer(shape_name)
    model, cache, _ = prefilled(transformer, make_prompts([3, 5]), 2)
    positions = model.at(cache, _columns([3, 5], 1), 5)
    x = model.embed(torch.tensor([[9], [7]]), positions)
    whole = model.block(2, x, positions, cache)
    written = cache.layers[2].clone()
    cache.layers[2][..., 5, :] = 0
    attended = model.block(2, x, positions, cache, mlp=False)
    torch.testing.assert_close(cache.layers[2], written, atol=0, rtol=0)
    torch.testing.assert_close(
        model.block(2, attended, positions, cache, attention=False), whole, atol=0, rtol=0
    )
    assert [part for part, _, _ in model.ledger.calls[-3:]] == ["block", "attention", "mlp"]


def test_a_layer_without_its_attention_is_its_mlp_and_leaves_the_cache_alone(
    shape_name, tiny_transformer, prefilled, make_prompts
):
    transformer = tiny_transformer(shape_name)
    model, cache, _ = prefilled(transformer, make_prompts([3, 5]), 2)
    positions = model.at(cache, _columns([3, 5], 1), 5)
    x = model.embed(torch.tensor([[9], [7]]), positions)
    before = cache.layers[1].clone()
    found = model.block(1, x, positions, cache, attention=False)
    expected = mlp_sublayer(transformer.blocks[1], transformer.shape, x)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert not torch.equal(found, x)
    assert torch.equal(cache.layers[1], before)


def test_a_step_beyond_the_last_slot_is_refused(tiny_transformer, prefilled, make_prompts):
    model, cache, _ = prefilled(tiny_transformer("an OPT"), make_prompts([3, 5]), 2)
    model.at(cache, _columns([3, 5], 2), 5)
    with pytest.raises(ValueError, match="slot 7 is beyond the cache's 7 slots"):
        model.at(cache, _columns([5, 7], 1), 7)
    with pytest.raises(ValueError, match="slot 7 is beyond the cache's 7 slots"):
        model.at(cache, _columns([3, 5], 3), 5)


def test_an_unequal_step_beyond_the_last_slot_is_refused(tiny_transformer, prefilled, make_prompts):
    model, cache, _ = prefilled(
        tiny_transformer("an OPT"), make_prompts([3, 5]), 2, checked_cache=False
    )
    with pytest.raises(ValueError, match="slot 7 is beyond the cache's 7 slots"):
        model.at_unequal(cache, _columns([3, 7], 1), [4, 8])


@pytest.mark.parametrize("method", ["dense", "skipdecode"])
def test_a_prompt_that_could_run_past_the_positions_is_refused_before_any_forward(
    tiny_transformer, bind, make_method, make_prompts, drive, method
):
    transformer = tiny_transformer("an OPT")
    model = bind(transformer)
    decoding = make_method(method, transformer.shape)
    with pytest.raises(ValueError, match="prompt of 90 \\+ 7 new tokens exceeds the 96 positions"):
        drive(decoding, model, make_prompts([4, 90]), 7)
    assert model.ledger.calls == []
    assert len(drive(decoding, model, make_prompts([4, 90]), 6).rows[1]) == 6
