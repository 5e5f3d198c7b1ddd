"""transformers' prompt lookup: what it drafts, and what is refused."""

import pytest
import torch

from bench.decoding import StopRule
from bench.meters.device import CpuDevice
from bench.peers import PeerDecoder
from methods.engine import hf
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.sampling import Greedy
from methods.hf_prompt_lookup.params import ABILITIES, Params, resolve

LLAMA = "a Llama with grouped heads"
A, B, C = 11, 12, 13


@pytest.fixture
def run(tiny_transformer, make_method):
    """``run(prompt, new, repeats, **settings)``: a decode; ``repeats`` makes any text repeat."""

    def make(prompt, new, *, repeats=False, **settings):
        transformer = tiny_transformer(LLAMA)
        if repeats:
            _name_the_next(transformer)
        method = make_method("hf_prompt_lookup", transformer.shape, **settings)
        model = hf.from_transformer(transformer, Options(packed=False))
        rule = StopRule(new, ())
        return PeerDecoder()(method, model, Prompts.of([prompt]), rule, Greedy(), CpuDevice())

    return make


def _name_the_next(transformer):
    """Every layer adds nothing, and the head names what follows in the circle A, B, C."""
    with torch.no_grad():
        for block in transformer.blocks:
            block.out.weight.zero_()
            block.down.weight.zero_()
        transformer.embedding.weight.zero_()
        transformer.lm_head.weight.zero_()
        transformer.final_norm.weight.fill_(1.0)
        for channel, (token, following) in enumerate(((A, B), (B, C), (C, A))):
            transformer.embedding.weight[token, channel] = 1.0
            transformer.lm_head.weight[following, channel] = 1.0


def test_a_text_that_repeats_is_copied(run):
    decoded = run([2, A, B, C, A], 11, repeats=True, num_speculations=3)
    assert decoded.ids == [[B, C, A] * 3 + [B, C]]
    # The first step copies what follows A in the prompt, B C A, and adds one; so does each other.
    assert decoded.first_round == [4]
    spoken = decoded.speculation
    assert (decoded.rounds, spoken.verifications) == (3, 2)
    assert spoken.accepted == 11 - 4 - 2
    # Layers: four for each kept token; rejected or unneeded drafts stand with the last of a step.
    assert sum(decoded.layers[0][4:]) == decoded.decode_executed.mlp_positions


def test_a_text_without_a_repeat_is_decoded_step_by_step(run):
    # Nothing in the prompt repeats, nor does what follows but for the circle itself.
    decoded = run([2, 5, A], 2, repeats=True)
    assert decoded.ids == [[B, C]]
    assert decoded.first_round is None
    spoken = decoded.speculation
    assert (spoken.verifications, spoken.drafted, spoken.accepted) == (1, 0, 0)


def test_no_more_is_copied_than_is_set(run):
    for drafted in (1, 2):
        decoded = run([2, A, B, C, A], 24, repeats=True, num_speculations=drafted)
        assert len(decoded.speculation.offered_at) == drafted


def test_a_wrong_copy_costs_its_layers_but_no_token(run):
    # After B comes C, but the prompt says A.
    decoded = run([2, B, A, A, B], 3, repeats=True, num_speculations=2, max_ngram=1)
    assert decoded.ids == [[C, A, B]]
    assert decoded.prompt_executed.mlp_positions == 4 * (5 + 2)


def test_the_longest_ngram_is_looked_up_first(run):
    prompt = [2, B, 7, 9, A, B, C, A, 5, A, B]
    # A B was followed by C A, which is right; the first B was not.
    for longest, given in ((2, 3), (1, None)):
        decoded = run(prompt, 6, repeats=True, num_speculations=2, max_ngram=longest)
        assert decoded.first_round == (None if given is None else [given])


WRONG = {
    "num_speculations=0: allowed 1 and up": Params(num_speculations=0),
    "max_ngram=0: allowed 1 and up": Params(max_ngram=0),
}


@pytest.mark.parametrize(("told", "params"), WRONG.items(), ids=WRONG)
def test_a_setting_out_of_range_is_refused(tiny_shape, told, params):
    with pytest.raises(ValueError, match=told):
        resolve(params, tiny_shape(LLAMA), {})


def test_it_declares_what_it_is(tiny_shape):
    assert ABILITIES.engine == "transformers"
    assert ABILITIES.lossless
    assert ABILITIES.max_batch == 1
    assert ABILITIES.unsupported(tiny_shape("an OPT")) is None
