"""transformers' plain generate: it costs what our own dense method does, call by call."""

import pytest
import torch

from bench.costs import flops
from bench.decoding import StopRule, decode
from bench.meters.device import CpuDevice
from bench.peers import PeerDecoder
from methods.engine import hf
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy
from methods.hf_dense.params import ABILITIES, Params, resolve

NEW = 8
BATCHES = {"one row": [7], "equal rows": [5, 5, 5], "rows of unequal length": [3, 9, 1, 6]}
batches = pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
COUNTS = ("prompt_executed", "decode_executed", "decode_required", "decode_traffic")


@pytest.fixture
def both(shape_name, tiny_transformer, make_method, make_prompts):
    """``both(lengths, rule)``: the peer's decode and our own dense one of the same prompts."""

    def make(lengths, rule):
        transformer = tiny_transformer(shape_name)
        shape, options = transformer.shape, Options(packed=False)
        prompts = Prompts.of(make_prompts(lengths, seed=3))
        rest = (prompts, rule, Greedy(), CpuDevice())
        peer = hf.from_transformer(transformer, options)
        decoder, own = PeerDecoder(), InferenceModel(transformer, options)
        theirs = decoder(make_method("hf_dense", shape), peer, *rest)
        ours = decode(make_method("dense", shape), own, *rest)
        # Of every round, the prompt's too, what each row alone asks for.
        for row in range(len(lengths)):
            alone = ([[row]] * theirs.rounds, [None] * theirs.rounds)
            assert decoder._ledger.required(*alone) == own.ledger.required(*alone)
        return theirs, ours, shape

    return make


@batches
def test_it_is_charged_what_our_own_dense_method_is(both, lengths):
    theirs, ours, shape = both(lengths, StopRule(NEW, ()))
    assert theirs.ids == ours.ids
    for name in COUNTS:
        assert getattr(theirs, name) == getattr(ours, name), name
    assert flops(theirs.prompt_executed, shape) > 0
    assert flops(theirs.decode_executed, shape) > 0
    # A longer row's prompt is a wider rectangle for all, which the shorter ones do not need.
    ragged = len(set(lengths)) > 1
    executed, required = theirs.decode_executed, theirs.decode_required
    assert (executed.attended_pairs > required.attended_pairs) is ragged


def test_rows_that_have_ended_are_executed_but_not_required(both):
    lengths = BATCHES["rows of unequal length"]
    free, _, _ = both(lengths, StopRule(NEW, ()))
    stop = (free.ids[0][2],)
    assert any(stop[0] not in row for row in free.ids)
    theirs, ours, _ = both(lengths, StopRule(NEW, stop))
    assert theirs.ids == ours.ids
    assert min(map(len, theirs.ids)) < max(map(len, theirs.ids))
    for name in COUNTS:
        assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.decode_required.mlp_positions < theirs.decode_executed.mlp_positions


def test_prompts_are_padded_on_the_left_and_the_pads_are_masked(tiny_shape):
    prompts = Prompts.of([[2, 5, 6], [2], [2, 7]])
    request = hf.Request.of(prompts, NEW, (2,), tiny_shape("an OPT", pad_token_id=1))
    assert request.ids.tolist() == [[2, 5, 6], [1, 1, 2], [1, 2, 7]]
    assert request.mask.tolist() == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]
    assert torch.equal(prompts.ids, Prompts.of([[2, 5, 6], [2], [2, 7]]).ids)


def test_a_model_without_a_pad_id_pads_with_what_cannot_be_seen(tiny_shape):
    prompts = Prompts.of([[2, 5, 6], [2]])
    for eos, pad in (((9, 4), 9), ((), 0)):
        shape = tiny_shape("an OPT", pad_token_id=None, eos_token_ids=eos)
        request = hf.Request.of(prompts, NEW, (), shape)
        assert request.ids.tolist() == [[2, 5, 6], [pad, pad, 2]]
        assert request.mask.tolist() == [[1, 1, 1], [0, 0, 1]]


def test_it_declares_what_it_is(tiny_shape):
    assert ABILITIES.engine == "transformers"
    assert ABILITIES.lossless
    assert ABILITIES.max_batch is None
    assert resolve(Params(), tiny_shape("an OPT"), {}) == Params()
