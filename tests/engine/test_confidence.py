"""Measures of confidence against plain computations, row by row and in float32."""

import math

import pytest
import torch

from methods.engine.confidence import Classifier, softmax_gap, state_cosine

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def _noise(*size, seed=0, scale=1.0):
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))


@dtypes
def test_the_softmax_gap_is_the_best_probability_less_the_next(dtype):
    logits = _noise(5, 1, 61, scale=3.0).to(dtype)
    found = softmax_gap(logits)
    assert (found.shape, found.dtype) == ((5,), torch.float32)
    for row, gap in zip(logits[:, 0].tolist(), found.tolist(), strict=True):
        whole = sum(map(math.exp, row))
        first, second = sorted(row)[-1:-3:-1]
        assert gap == pytest.approx((math.exp(first) - math.exp(second)) / whole, abs=1e-6)
    # It is not the greatest probability.
    assert (found < logits[:, 0].float().softmax(dim=-1).amax(dim=-1) - 1e-4).all()


def test_the_softmax_gap_of_bfloat16_logits_is_below_1_unless_float32_saturates():
    logits = torch.zeros(3, 1, 61, dtype=torch.bfloat16)
    logits[:, 0, 7] = torch.tensor([12.0, 15.0, 200.0])
    found = softmax_gap(logits).tolist()
    # In bfloat16 all three would be 1.
    naive = logits[:, 0].softmax(dim=-1).topk(2).values
    assert (naive[:, 0] - naive[:, 1]).tolist() == [1.0, 1.0, 1.0]
    assert found[0] < found[1] < 1.0
    assert found[0] == pytest.approx((math.exp(12) - 1) / (math.exp(12) + 60), abs=1e-6)
    assert found[2] == 1.0


def test_the_softmax_gap_of_two_equally_likely_tokens_is_0():
    logits = torch.zeros(1, 1, 61)
    logits[0, 0, [3, 9]] = 5.0
    assert softmax_gap(logits).tolist() == [0.0]


def test_the_softmax_gap_bears_logits_of_any_size():
    logits = torch.full((1, 1, 61), 3e4)
    logits[0, 0, 4] += 2.0
    expected = (math.exp(2) - 1) / (math.exp(2) + 60)
    assert softmax_gap(logits).item() == pytest.approx(expected, abs=1e-3)


def test_the_cosine_is_that_of_each_row_not_of_the_whole_batch():
    before = _noise(4, 1, 32)
    # Orthogonal, and so large that a norm over the batch would be this row's alone.
    aside = 1e3 * torch.cat((-before[2, :, 16:], before[2, :, :16]), dim=-1)
    x = torch.stack((3 * before[0], -before[1], aside, before[3] + _noise(1, 32, seed=1)))
    found = state_cosine(x, before)
    assert found.shape == (4,)
    # Apart is as little confidence as there is.
    assert found[:3].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)
    assert min(found[:3].tolist()) >= 0.0
    a, b = x[3, 0].tolist(), before[3, 0].tolist()
    dot = sum(one * other for one, other in zip(a, b, strict=True))
    assert found[3].item() == pytest.approx(dot / (math.hypot(*a) * math.hypot(*b)), abs=1e-6)


def test_the_cosine_of_bfloat16_states_is_computed_in_float32():
    before = _noise(6, 1, 512).bfloat16()
    x = (before.float() + 0.02 * _noise(6, 1, 512, seed=1)).bfloat16()
    found = state_cosine(x, before)
    assert found.dtype == torch.float32
    expected = [
        sum(a * b for a, b in zip(one, other, strict=True))
        / (math.hypot(*one) * math.hypot(*other))
        for one, other in zip(x[:, 0].tolist(), before[:, 0].tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    # Closer to 1 than bfloat16 could tell.
    assert max(expected) < 1.0
    assert [torch.tensor(value).bfloat16().item() for value in expected] == [1.0] * 6


@dtypes
def test_the_classifier_is_linear_with_a_sigmoid(dtype):
    weight, bias, x = _noise(32, seed=2), torch.tensor(0.3), _noise(5, 1, 32).to(dtype)
    tensors = {"weight": weight, "bias": bias}
    found = Classifier.of(tensors, torch.device("cpu"))(x)
    assert (found.shape, found.dtype) == ((5,), torch.float32)
    for state, value in zip(x[:, 0].tolist(), found.tolist(), strict=True):
        logit = 0.3 + sum(a * b for a, b in zip(state, weight.tolist(), strict=True))
        assert value == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-6)
    assert len({round(value, 3) for value in found.tolist()}) == 5


def test_the_classifier_of_a_bfloat16_checkpoint_computes_in_float32():
    tensors = {"weight": _noise(32).bfloat16(), "bias": torch.tensor(0.1).bfloat16()}
    classifier = Classifier.of(tensors, torch.device("cpu"))
    assert classifier.weight.dtype == classifier.bias.dtype == torch.float32


@dtypes
def test_confidence_is_of_the_last_position(dtype):
    logits, x, before = (_noise(3, 4, 32, seed=seed, scale=2.0).to(dtype) for seed in (3, 4, 5))
    assert torch.equal(softmax_gap(logits), softmax_gap(logits[:, -1:]))
    assert torch.equal(state_cosine(x, before), state_cosine(x[:, -1:], before[:, -1:]))
    classifier = Classifier(_noise(32), torch.tensor(0.0))
    torch.testing.assert_close(classifier(x), classifier(x[:, -1:]))
