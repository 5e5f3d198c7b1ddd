"""The warp, the counter-based numbers, and ids drawn from the two."""

import math

import numpy as np
import pytest
import torch

from methods.engine.drawing import KINDS, Warp, draw, uniforms

ALMOST_1 = 1 - 2.0**-53


def naive(logits, warp):
    """The warp by its definition, on one list of logits, in Python's numbers."""
    highest = max(logits)
    mass = [math.exp((logit - highest) / warp.temperature) for logit in logits]
    ranked = sorted(range(len(logits)), key=lambda token: (-mass[token], token))
    kept = ranked[: warp.top_k or len(ranked)]
    total, held, nucleus = sum(mass[token] for token in kept), 0.0, []
    for token in kept:
        nucleus.append(token)
        held += mass[token] / total
        if held >= warp.top_p:
            break
    total = sum(mass[token] for token in nucleus)
    return [mass[token] / total if token in nucleus else 0.0 for token in range(len(logits))]


WARPS = {
    "nothing": Warp(),
    "temperature": Warp(0.7),
    "top-k": Warp(0.7, 5),
    "top-p": Warp(0.7, None, 0.9),
    "all three": Warp(1.5, 7, 0.8),
    "top-k beyond the vocabulary": Warp(1.0, 99, 0.5),
    "top-k of zero": Warp(1.0, 0, 0.5),
    "a top-p that keeps one": Warp(1.0, None, 1e-9),
}


@pytest.mark.parametrize("warp", WARPS.values(), ids=WARPS)
def test_probabilities_are_those_of_the_definition(warp):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(30, 2, 23, generator=generator)
    # Many equals: a third of the rows has logits that are whole numbers.
    logits[:10] = logits[:10].round()
    found = warp(logits)
    expected = torch.tensor([[naive(row, warp) for row in rows] for rows in logits.tolist()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert ((found > 0) == (expected > 0)).all()


def test_of_equals_the_lower_ids_are_kept():
    logits = torch.zeros(6)
    assert Warp(top_k=2)(logits).tolist() == [0.5, 0.5, 0, 0, 0, 0]
    assert Warp(top_p=0.4)(logits).nonzero().flatten().tolist() == [0, 1, 2]
    assert Warp(top_k=4, top_p=0.6)(logits).nonzero().flatten().tolist() == [0, 1, 2]
    # Exactly the mass asked for is enough.
    assert Warp(top_p=0.5)(torch.zeros(4)).tolist() == [0.5, 0.5, 0, 0]
    logits[[1, 4]] = 3.0
    assert Warp(top_k=1)(logits).tolist() == [0, 1, 0, 0, 0, 0]
    assert Warp(top_k=3)(logits).nonzero().flatten().tolist() == [0, 1, 4]
    assert Warp(top_p=1e-6)(logits).tolist() == [0, 1, 0, 0, 0, 0]


def test_the_mass_of_top_p_is_counted_within_top_k():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the first two, 4/7 and 3/7: the first alone holds over a half.
    assert Warp(top_k=2, top_p=0.5)(logits).tolist() == [1, 0, 0, 0]
    assert Warp(top_p=0.5)(logits).nonzero().flatten().tolist() == [0, 1]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-44])
def test_a_temperature_near_zero_is_greedy(temperature):
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.one_hot(logits.argmax(dim=-1), 50).float()
    assert Warp(temperature)(logits).allclose(expected, atol=1e-3)
    assert not Warp(1.0)(logits).allclose(expected, atol=1e-3)


def test_half_precision_logits_give_whole_precision_probabilities():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2)).bfloat16()
    found = Warp(0.7, 20, 0.9)(logits)
    assert found.dtype is torch.float32
    assert found.equal(Warp(0.7, 20, 0.9)(logits.float()))


@pytest.mark.parametrize(
    "values",
    [(0.0,), (-1.0,), (math.inf,), (math.nan,), (1.0, -1), (1.0, None, 0.0), (1.0, None, 1.1)],
    ids=str,
)
def test_a_warp_out_of_range_is_refused(values):
    with pytest.raises(ValueError, match="must be"):
        Warp(*values)


def test_a_number_is_that_of_its_place_in_the_stream_of_its_key():
    found = uniforms(7, [12, 3], 5)
    assert found.shape == (2, 5, len(KINDS))
    for row, example in enumerate((12, 3)):
        key = np.array([7, example], dtype=np.uint64)
        for position in range(5):
            for kind in KINDS:
                # Straight to the place by the counter, four numbers a block.
                index = position * len(KINDS) + kind
                stream = np.random.Philox(key=key)
                stream.advance(index // 4)
                expected = np.random.Generator(stream).random(1 + index % 4)[-1]
                assert found[row, position, kind].item() == expected


def test_numbers_depend_on_seed_example_position_and_kind_alone():
    alone, batch = uniforms(7, [12], 5), uniforms(7, [3, 0, 12], 40)
    assert batch[2, :5].equal(alone[0])
    assert not uniforms(8, [12], 5).equal(alone)
    assert len(torch.cat([batch, uniforms(8, [3, 0, 12], 40)]).unique()) == 2 * 3 * 40 * len(KINDS)
    assert batch.min() >= 0
    assert batch.max() < 1
    assert batch.mean().item() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(("seed", "example"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**64)])
def test_a_seed_or_example_that_is_no_64_bit_number_is_refused(seed, example):
    with pytest.raises(ValueError, match="below 2"):
        uniforms(seed, [0, example], 1)


def test_tokens_are_drawn_in_proportion_to_the_law():
    law = torch.tensor([0.125, 0.0, 0.5, 0.0, 0.375])
    numbers = (torch.arange(800, dtype=torch.float64) + 0.5) / 800
    ids = draw(law.expand(1, 800, 5), numbers[None])
    assert ids.flatten().bincount(minlength=5).tolist() == [100, 0, 400, 0, 300]
    assert ids.diff().min() >= 0
    # A law need not be normalised, however small.
    assert draw(1e-30 * law.expand(1, 800, 5), numbers[None]).equal(ids)


def test_a_token_of_probability_zero_is_never_drawn():
    generator = torch.Generator().manual_seed(3)
    law = torch.rand(400, 6, 101, generator=generator)
    law[torch.rand(law.shape, generator=generator) < 0.7] = 0
    law[..., [0, -1]] = 0
    law[::2] *= 1e-7
    law[..., 50] = 1.0
    law[:4, :, :50] = law[:4, :, 51:] = 0
    # Also the very values at which the cumulative sum steps.
    steps = (law.double() / law.double().sum(-1, keepdim=True)).cumsum(-1).clamp(max=ALMOST_1)
    edges = torch.tensor([0.0, 2.0**-53, 0.5, ALMOST_1], dtype=torch.float64)
    for numbers in [*edges, *steps.unbind(-1)[::7]]:
        ids = draw(law, numbers.expand(400, 6).contiguous())
        assert (law.gather(-1, ids[..., None]) > 0).all()
        assert (ids[:4] == 50).all()


def test_numbers_at_the_ends_draw_the_first_and_last_likely_token():
    law = torch.tensor([[[0.0, 0.3, 0.3, 0.4, 0.0]]])
    assert draw(law, torch.zeros(1, 1, dtype=torch.float64)).item() == 1
    last = torch.full((1, 1), ALMOST_1, dtype=torch.float64)
    assert draw(law, last).item() == 3
    # Also one that is hardly ever drawn.
    assert draw(torch.tensor([[[0.5, 0.5, 1e-15, 0.0]]]), last).item() == 2


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_what_is_no_law_still_gives_an_id_that_can_be_embedded(value):
    ids = draw(torch.full((2, 1, 9), value), torch.full((2, 1), 0.3, dtype=torch.float64))
    assert ids.tolist() == [[8], [8]]
