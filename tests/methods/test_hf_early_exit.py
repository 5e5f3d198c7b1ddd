"""transformers' early-exit assistance: its counts, its traps, and what is refused."""

import logging

import pytest
import torch

from bench.decoding import StopRule
from bench.meters.device import CpuDevice
from bench.peers import PeerDecoder
from methods.engine import hf
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.sampling import Greedy
from methods.hf_early_exit.params import ABILITIES, Params, resolve

LLAMA = "a Llama with grouped heads"


@pytest.fixture
def run(tiny_transformer, make_method, make_prompts):
    """``run(length, new, layers, E, d, exact)``: a decode and its ledger's calls."""

    def make(length, new, layers, exit_layer, drafted, *, exact=False, name=LLAMA):
        transformer = tiny_transformer(name, num_layers=layers, max_positions=128)
        if exact:
            _silence(transformer, exit_layer)
        settings = {"exit_layer": exit_layer, "num_speculations": drafted}
        method = make_method("hf_early_exit", transformer.shape, **settings)
        model, decoder = hf.from_transformer(transformer, Options(packed=False)), PeerDecoder()
        prompts = Prompts.of(make_prompts([length], seed=5))
        decoded = decoder(method, model, prompts, StopRule(new, ()), Greedy(), CpuDevice())
        return decoded, decoder._ledger

    return make


def _silence(transformer, first):
    """Layers from ``first`` on add nothing: the draft's choice is the model's."""
    with torch.no_grad():
        for block in transformer.blocks[first:]:
            block.out.weight.zero_()
            block.down.weight.zero_()


def tokens_of(calls, layer):
    """Of each call of a layer, how many tokens it saw."""
    return [extent.new for part, index, extent in calls if part == "block" and index == layer]


def test_drafts_share_neither_cache_nor_computation_with_the_verification(run):
    layers, exit_layer, length, drafted = 6, 2, 12, 4
    decoded, ledger = run(length, 20, layers, exit_layer, drafted)
    first, *steps = ledger.rounds()
    # The prompt runs through the early layers twice: for the draft's cache, and for the other.
    assert tokens_of(first, 0) == [length, *[1] * (drafted - 1), length + drafted]
    assert tokens_of(first, exit_layer) == [length + drafted]
    full = [calls for calls in steps if tokens_of(calls, layers - 1) == [drafted + 1]]
    assert len(full) >= len(steps) - drafted > 4
    for calls in full:
        # The draft sees two tokens again and then its own; the verification sees them all anew.
        assert tokens_of(calls, 0) == [2, *[1] * (drafted - 1), drafted + 1]
        assert tokens_of(calls, exit_layer - 1) == tokens_of(calls, 0)
        assert tokens_of(calls, exit_layer) == [drafted + 1]
    late = [n for calls in steps for n in tokens_of(calls, layers - 1)]
    assert len(late) == decoded.rounds - 1
    assert sum(late) == decoded.speculation.drafted + decoded.speculation.verifications
    # Twice d + 1 tokens a round in the early layers, where a shared cache would need d + 1.
    early = sum(n for calls in full for n in tokens_of(calls, 0))
    assert early == 2 * (drafted + 1) * len(full)


@pytest.mark.parametrize("new", [13, 14, 15, 16])
def test_where_the_draft_is_always_right_a_step_gives_all_and_one_more(run, new):
    decoded, _ = run(8, new, 4, 2, 6, exact=True)
    assert decoded.first_round == [7]
    left = new - 7
    full, rest = divmod(left, 7)
    assert decoded.rounds == 1 + full + (rest > 0)
    # The last step drafts no more than is kept.
    assert decoded.speculation.drafted == decoded.speculation.accepted
    assert decoded.speculation.accepted == left - decoded.speculation.verifications


def test_a_token_is_charged_its_own_layers_and_the_last_of_a_step_the_rest(run):
    decoded, ledger = run(8, 14, 4, 2, 6, exact=True)
    # Seven in the first step, and seven in the second: four layers each, and with the last one the
    # two layers of the draft: over 6 drafts, and the two tokens that its own cache had not seen.
    assert decoded.layers == [[4] * 13 + [4 + 2 * (6 + 1)]]
    ran = [sum(e.new for part, _, e in calls if part == "block") for calls in ledger.rounds()]
    assert ran[1] == sum(decoded.layers[0][7:])
    assert decoded.decode_executed.mlp_positions == ran[1]


def test_it_drafts_as_many_as_are_set_and_not_the_librarys_20(run):
    for drafted in (1, 3):
        decoded, _ = run(5, 14, 4, 1, drafted)
        assert len(decoded.speculation.offered_at) == drafted


def test_a_qwen2_is_run_too(run):
    decoded, _ = run(5, 9, 4, 2, 3, exact=True, name="a Qwen2 with its bias")
    assert decoded.first_round == [4]
    assert len(decoded.ids[0]) == 9


def test_no_warning_of_the_librarys_own_drafts_is_shown(run):
    told, handler = [], logging.Handler()
    handler.emit = told.append
    # It is given once a process, and other tests may have passed it.
    hf.library_logging.warning_once.cache_clear()
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    run(5, 9, 4, 2, 3)
    logger.removeHandler(handler)
    assert [record.getMessage() for record in told] == []


def test_an_opt_cannot_be_run_and_the_reason_is_told(tiny_shape):
    reason = ABILITIES.unsupported(tiny_shape("an OPT"))
    assert "family opt runs all its layers" in reason
    assert ABILITIES.unsupported(tiny_shape(LLAMA)) is None


def test_it_would_fail_on_an_opt(run):
    # If this no longer fails, the library can, and the refusal goes.
    with pytest.raises(IndexError):
        run(5, 6, 4, 2, 3, name="an OPT")


def test_the_exit_layer_is_what_the_checkpoint_was_trained_with(tiny_shape):
    shape = tiny_shape(LLAMA, num_layers=12)
    trained = {"method": "layerskip", "settings": {"exit_layer": 5}}
    assert resolve(Params(), shape, {}).exit_layer == 3
    assert resolve(Params(), shape, trained).exit_layer == 5
    assert resolve(Params(exit_layer=2), shape, trained).exit_layer == 2


WRONG = {
    "exit_layer=0: allowed 1..11": Params(exit_layer=0),
    "exit_layer=12: allowed 1..11": Params(exit_layer=12),
    "num_speculations=0: allowed 1 and up": Params(num_speculations=0),
}


@pytest.mark.parametrize(("told", "params"), WRONG.items(), ids=WRONG)
def test_a_setting_out_of_range_is_refused(tiny_shape, told, params):
    with pytest.raises(ValueError, match=told):
        resolve(params, tiny_shape(LLAMA, num_layers=12), {})


def test_it_declares_what_it_is():
    assert ABILITIES.engine == "transformers"
    assert ABILITIES.lossless
    assert ABILITIES.max_batch == 1
