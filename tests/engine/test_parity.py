"""The engine against transformers: logits, greedy ids, batches of unequal prompts, and layouts."""

import pytest
import torch

from methods.engine import packing
from methods.engine.cache import Prompts
from methods.engine.families import shape_of_config

TOLERANCE = 1e-4
LAYOUTS = {
    "plain matrices": {"packed": False},
    "matrices laid out by input rows": {"packed": True},
    "matrices laid out in blocks": {"packed": True, "rows": 4},
    "attention by products": {"packed": False, "attention": "products"},
}
# Tiny matrices are blocked as large ones are.
BLOCKED = {"matrices laid out in blocks": 1}


def _size_of_blocks(monkeypatch, layout):
    monkeypatch.setattr(packing, "BLOCK_MIN_WEIGHTS", BLOCKED.get(layout, 10**9))


@pytest.fixture(params=LAYOUTS)
def layout(request, monkeypatch):
    """Options of each layout."""
    _size_of_blocks(monkeypatch, request.param)
    return LAYOUTS[request.param]


def _reference_logits(pair, rows):
    with torch.inference_mode():
        return [pair.reference(torch.tensor([row])).logits[0] for row in rows]


@torch.inference_mode()
def _cached_logits(model, rows, prompt_lengths, run_layers):
    """Logits at each row's last prompt token and behind it, token by token: (B, new + 1, V)."""
    prompts = [row[:length] for row, length in zip(rows, prompt_lengths, strict=True)]
    new = len(rows[0]) - prompt_lengths[0]
    held = Prompts.of(prompts)
    cache = model.new_cache(held, new)
    logits = [model.head(model.prefill(held, cache))]
    slot = max(prompt_lengths)
    for step in range(new):
        at = torch.tensor(prompt_lengths)[:, None] + step
        ids = torch.tensor(rows_at(rows, prompt_lengths, step))[:, None]
        logits.append(run_layers(model, cache, ids, model.at(cache, at, slot + step)))
    return torch.cat(logits, dim=1)


def rows_at(rows, prompt_lengths, step):
    return [row[length + step] for row, length in zip(rows, prompt_lengths, strict=True)]


def test_the_shape_read_from_transformers_config_is_the_tiny_shape(pair, shape_name, tiny_shape):
    assert shape_of_config(pair.reference.config.to_dict()) == tiny_shape(shape_name)


def test_teacher_forced_logits_equal_those_of_transformers(pair):
    ids = torch.randint(0, 61, (3, 40), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        theirs, ours = pair.reference(ids).logits, pair.ours(ids)
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


def test_prompt_pass_and_cached_steps_give_the_logits_of_one_full_pass(
    pair, layout, bind, make_prompts, run_layers
):
    row = make_prompts([17], seed=4)
    found = _cached_logits(bind(pair.ours, **layout), row, [7], run_layers)
    (expected,) = _reference_logits(pair, row)
    torch.testing.assert_close(found[0], expected[6:], atol=TOLERANCE, rtol=0)


def test_a_batch_of_unequal_prompts_gives_the_logits_of_each_row_alone(
    pair, layout, bind, make_prompts, run_layers
):
    prompt_lengths = [3, 11, 1, 8]
    rows = make_prompts([length + 9 for length in prompt_lengths], seed=5)
    found = _cached_logits(bind(pair.ours, **layout), rows, prompt_lengths, run_layers)
    for row, expected in enumerate(_reference_logits(pair, rows)):
        wanted = expected[prompt_lengths[row] - 1 :]
        torch.testing.assert_close(found[row], wanted, atol=TOLERANCE, rtol=0)


def test_greedy_ids_of_20_single_prompts_equal_those_of_transformers(
    pair, references, bind, make_method, drive
):
    prompts, expected = references
    model, method = bind(pair.ours), make_method("dense", pair.ours.shape)
    found = [drive(method, model, [prompt], len(expected[0])).rows[0] for prompt in prompts]
    assert found == expected


def test_greedy_ids_of_20_prompts_in_batches_of_four_equal_those_of_transformers(
    pair, references, layout, bind, make_method, drive
):
    prompts, expected = references
    model, method = bind(pair.ours, **layout), make_method("dense", pair.ours.shape)
    found = []
    for start in range(0, len(prompts), 4):
        found += drive(method, model, prompts[start : start + 4], len(expected[0])).rows
    assert found == expected


def test_the_reference_ids_vary_enough_to_tell_a_wrong_engine(references):
    prompts, expected = references
    assert len(prompts) == 20
    assert len(set(map(tuple, expected))) >= 15
    assert sum(len(set(row)) for row in expected) / len(expected) >= 3


def test_pads_behind_a_prompt_change_nothing(pair, bind, make_prompts):
    rows = make_prompts([4, 9, 6], seed=6)
    model, tidy = bind(pair.ours), Prompts.of(rows)
    ids = tidy.ids.clone()
    for row, length in enumerate(tidy.lengths):
        ids[row, length:] = 7 + row
    with torch.inference_mode():
        found = [
            model.head(model.prefill(prompts, model.new_cache(prompts, 1)))
            for prompts in (tidy, Prompts(ids, tidy.lengths))
        ]
    assert not torch.equal(ids, tidy.ids)
    torch.testing.assert_close(found[0], found[1], atol=0, rtol=0)


@pytest.mark.parametrize("layers", [1, 3], ids=["one layer", "three layers"])
def test_the_exit_head_behind_some_layers_equals_a_model_cut_to_them(
    pair, layers, bind, make_prompts
):
    prompts = Prompts.of(make_prompts([5, 12], seed=7))
    model = bind(pair.ours)
    with torch.inference_mode():
        cut = pair.cut(layers)
        x = model.prefill(prompts, model.new_cache(prompts, 1), layers=layers)
        found = model.head(x)[:, 0]
        for row, length in enumerate(prompts.lengths):
            expected = cut(prompts.ids[row : row + 1, :length]).logits[0, -1]
            torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("layout", "dtype", "wanted"),
    [
        ("plain matrices", torch.float32, set()),
        ("matrices laid out by input rows", torch.float32, {"_transposed"}),
        ("matrices laid out in blocks", torch.float32, {"_blocked"}),
        ("matrices laid out by input rows", torch.bfloat16, {"_blocked"}),
        ("plain matrices", torch.bfloat16, set()),
    ],
)
def test_each_layout_is_really_another_one(
    layout, dtype, wanted, bind, tiny_transformer, monkeypatch
):
    _size_of_blocks(monkeypatch, layout)
    used = []
    for name in ("_transposed", "_blocked"):
        plain = getattr(packing, name)
        monkeypatch.setattr(
            packing, name, lambda *a, name=name, plain=plain: used.append(name) or plain(*a)
        )
    bind(tiny_transformer("an OPT"), dtype=dtype, **LAYOUTS[layout])
    assert set(used) == wanted
