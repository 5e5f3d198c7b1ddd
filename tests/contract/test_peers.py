"""What holds for every peer: transformers' own generate, driven as our own methods are."""

from types import SimpleNamespace

import pytest
import torch

from bench.decoding import StopRule, decode
from bench.meters.device import CpuDevice
from bench.peers import PeerDecoder
from methods.engine import hf
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy
from methods.registry import find_params, method_names
from tests.conftest import TINY_FIELDS

PEERS = [name for name in method_names() if find_params(name).ABILITIES.engine != "own"]
LAYERS, NEW = 6, 9
MODELS = {
    "an OPT": "an OPT with norms behind and an embedding of its own width",
    "a Llama": "a Llama with scaled rotary positions and a tied head",
}


def _pairs():
    """Each peer on each model; those that it cannot run are refused, see tests/bench."""
    for name in PEERS:
        unsupported = find_params(name).ABILITIES.unsupported
        for label, shape in MODELS.items():
            if unsupported(SimpleNamespace(**TINY_FIELDS[shape])) is None:
                yield pytest.param((name, label), id=f"{name} on {label}")


@pytest.fixture(params=_pairs())
def pair(request, tiny_transformer, make_method):
    """A peer, its model, and a function that decodes with our own dense method."""
    name, label = request.param
    transformer = tiny_transformer(MODELS[label], num_layers=LAYERS)
    own, dense = InferenceModel(transformer, Options(packed=False)), "dense"

    def ours(prompts, rule):
        method = make_method(dense, transformer.shape)
        return decode(method, own, prompts, rule, Greedy(), CpuDevice())

    return SimpleNamespace(
        name=name,
        method=make_method(name, transformer.shape),
        model=hf.from_transformer(transformer, Options(packed=False)),
        ours=ours,
        rows=find_params(name).ABILITIES.max_batch or 3,
    )


def theirs(pair, prompts, rule, decoder=None):
    decoder = decoder or PeerDecoder()
    return decoder(pair.method, pair.model, prompts, rule, Greedy(), CpuDevice())


@pytest.fixture
def batches(pair, make_prompts):
    """Two batches of prompts of unequal length, as many rows as the peer takes."""
    lengths = [[9, 3, 6], [1, 17, 2]]
    return [
        Prompts.of(make_prompts(each[: pair.rows], seed=seed)) for seed, each in enumerate(lengths)
    ]


def test_there_are_the_peers_that_users_have():
    assert set(PEERS) >= {"hf_dense", "hf_early_exit", "hf_prompt_lookup"}


def test_its_ids_are_those_of_our_own_dense_method(pair, batches):
    for prompts in batches:
        rule = StopRule(NEW, ())
        found = theirs(pair, prompts, rule)
        assert found.ids == pair.ours(prompts, rule).ids
        assert [len(row) for row in found.ids] == [NEW] * pair.rows


def test_a_row_ends_at_its_first_stop_id_wherever_that_is(pair, batches):
    for prompts in batches:
        free = pair.ours(prompts, StopRule(NEW, ())).ids
        for stops in ({row[0] for row in free}, {free[0][NEW // 2], free[-1][-1]}):
            rule = StopRule(NEW, tuple(stops))
            found, expected = theirs(pair, prompts, rule), pair.ours(prompts, rule)
            assert found.ids == expected.ids
            assert min(map(len, found.ids)) < NEW
            # Once every row has ended, it stops.
            assert found.rounds <= max(map(len, found.ids))
            assert found.non_finite_rows == []


@pytest.mark.parametrize("limit", [1, 2])
def test_the_limit_is_kept(pair, batches, limit):
    for prompts in batches:
        rule = StopRule(limit, ())
        assert theirs(pair, prompts, rule).ids == pair.ours(prompts, rule).ids


def test_rounds_and_counts_add_up(pair, batches):
    for prompts in batches:
        found = theirs(pair, prompts, StopRule(NEW, ()))
        first = found.first_round or [1] * pair.rows
        steps = found.rounds - 1
        assert [len(row) for row in found.layers] == [NEW] * pair.rows
        assert min(min(row) for row in found.layers) == LAYERS
        if not pair.method.drafts:
            assert found.speculation is None
            assert first == [1] * pair.rows
            assert steps == NEW - 1
            continue
        spoken = found.speculation
        assert spoken.verifications == steps
        assert spoken.accepted <= spoken.drafted
        # A verification gives what it accepts, and one token more.
        assert first[0] + steps + spoken.accepted == NEW
        assert found.decode_executed.head_positions >= steps + spoken.drafted


def test_each_layer_of_each_token_is_charged(pair, batches):
    for prompts in batches:
        found = theirs(pair, prompts, StopRule(NEW, ()))
        first = found.first_round or [1] * pair.rows
        ran = sum(sum(row[skip:]) for row, skip in zip(found.layers, first, strict=True))
        assert found.decode_executed.mlp_positions == ran
        assert found.decode_executed.attention_positions == ran
        # Beside the prompts, drafts of the first step.
        assert found.prompt_executed.mlp_positions >= pair.rows * max(prompts.lengths) * LAYERS


def test_the_pass_that_is_charged_is_made_once_a_batch(pair, batches):
    generate, calls = pair.method.generate, []

    def watched(model, request, step):
        calls.append(len(model.head._forward_hooks))
        return generate(model, request, step)

    pair.method.generate, decoder, rule = watched, PeerDecoder(), StopRule(NEW, ())
    first = [theirs(pair, batches[0], rule, decoder) for _ in range(3)]
    # The first pass of a batch has no hooks; the second has.
    assert calls == [0, 1, 0, 0]
    assert len({each.decode_executed for each in first}) == 1
    other = theirs(pair, batches[1], rule, decoder)
    assert calls == [0, 1, 0, 0, 0, 1]
    assert other.prompt_executed != first[0].prompt_executed


def test_a_row_that_is_not_finite_is_named(pair, batches):
    with torch.no_grad():
        pair.model.head.weight[5] = float("nan")
    found = theirs(pair, batches[0], StopRule(NEW, ()))
    assert found.non_finite_rows == list(range(pair.rows))


class BrokenError(RuntimeError):
    pass


@pytest.mark.parametrize("call", [1, 4, 9])
def test_the_model_is_left_as_found_whatever_breaks(pair, batches, call):
    model, seen = pair.model.model, []
    expected = theirs(pair, batches[0], StopRule(NEW, ())).ids
    held = model.generation_config
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def broken(*_):
        seen.append(model.config.num_hidden_layers)
        if len(seen) == call:
            raise BrokenError

    handle = pair.model.layers[0].register_forward_pre_hook(broken)
    with pytest.raises(BrokenError):
        theirs(pair, batches[0], StopRule(NEW, ()))
    handle.remove()
    assert model.config.num_hidden_layers == LAYERS
    assert model.generation_config is held
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert theirs(pair, batches[0], StopRule(NEW, ())).ids == expected


def test_what_a_checkpoint_says_of_generation_does_not_apply(pair, batches):
    rule = StopRule(NEW, ())
    expected = theirs(pair, batches[0], rule).ids
    pair.model.model.generation_config.update(
        do_sample=True, temperature=0.6, repetition_penalty=5.0, forced_eos_token_id=2, min_length=9
    )
    assert theirs(pair, batches[0], rule).ids == expected
