"""Differences of a lossless method: found at the first token, weighed by dense logits."""

import pytest
import torch

from bench import ties
from bench.decoding import StopRule, decode
from bench.meters.device import CpuDevice
from bench.tasks.contract import Example
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy

LENGTHS, NEW = [3, 7, 1], 8


@pytest.fixture
def dense(tiny_transformer, make_method, make_prompts):
    """The dense method, its model, prompts, and what it decodes."""
    transformer = tiny_transformer("an OPT")
    method, model = make_method("dense", transformer.shape), InferenceModel(transformer, Options())
    rows = make_prompts(LENGTHS)
    rule = StopRule(NEW, ())
    found = decode(method, model, Prompts.of(rows), rule, Greedy(), CpuDevice())
    return (method, model), transformer, rows, found.ids


def _differences(dense, found):
    pair, _, rows, expected = dense
    examples = [Example(f"example {row}", "", ("",)) for row in range(len(rows))]
    return ties.differences(pair, examples, rows, found, expected, CpuDevice())


def test_equal_ids_are_no_difference(dense):
    assert _differences(dense, dense[3]) == []


@pytest.mark.parametrize("at", [0, 3, NEW - 1])
def test_a_difference_is_the_first_token_with_the_gap_of_its_two_best_logits(dense, at):
    _, transformer, rows, expected = dense
    found = [list(ids) for ids in expected]
    found[1][at:] = [(token + 1) % 61 for token in found[1][at:]]
    (difference,) = _differences(dense, found)
    assert (difference.example_id, difference.index) == ("example 1", at)
    with torch.no_grad():
        logits = transformer(torch.tensor([rows[1] + expected[1][:at]]))[0, -1]
    first, second = logits.topk(2).values.tolist()
    assert difference.logit_gap == pytest.approx(first - second, abs=1e-4)


def test_each_row_has_its_own_difference_wherever_it_is(dense):
    found = [list(ids) for ids in dense[3]]
    found[0][5] += 1
    found[2][2] += 1
    differences = _differences(dense, found)
    assert [(d.example_id, d.index) for d in differences] == [("example 0", 5), ("example 2", 2)]
    assert all(d.logit_gap > 0 for d in differences)


def test_a_row_that_ends_too_soon_differs_where_it_ends(dense):
    found = [list(ids) for ids in dense[3]]
    found[0] = found[0][:4]
    (difference,) = _differences(dense, found)
    assert difference.index == 4
