"""Peers under the suite's clock and rules: what their steps are taken for, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench import legs
from bench.checking import memory_of
from bench.decoding import StopRule
from bench.errors import InputError, InvalidRunError
from bench.latency import latency_columns, tokens
from bench.measure import Measurer, Plan, Runner
from bench.meters import clock as clock_module
from bench.meters.device import CpuDevice
from bench.peers import PeerDecoder
from bench.planning import plan
from bench.preparation import prepare
from bench.promise import Machine
from bench.summary import summarise
from bench.tasks.contract import Example
from methods.engine.bound import Options
from methods.engine.hf import HfModel
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy

EOS, LAYERS = 2, 3
SETUP_S, FIRST_S, STEP_S, END_S = 0.1, 0.4, 0.05, 0.025


class FakeTime:
    """Time that passes only where the script says so."""

    now = 100.0

    def perf_counter(self):
        return self.now


class Scripted:
    """A peer whose steps are written out; each runs all layers over a draft and the one before."""

    def __init__(self, time, steps, drafts=True):
        self.time, self.steps, self.drafts = time, steps, drafts

    def generate(self, model, request, step):
        self.time.now += SETUP_S
        ids = request.ids
        for index, given in enumerate(self.steps):
            self.time.now += STEP_S if index else FIRST_S
            model.run(ids if index == 0 else ids[:, -1:], len(given) - 1)
            ids = torch.cat([ids, torch.tensor([given] * len(ids))], dim=1)
            step(ids.shape[1])
        self.time.now += END_S
        return ids


class FakeDecoder(nn.Module):
    """Layers that add nothing, called as the library calls its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(LAYERS))

    def forward(self, *, input_ids, cache):
        x = torch.zeros(*input_ids.shape, 4)
        for layer in self.layers:
            x = layer(x)
        return x


class FakeModel(HfModel):
    def __init__(self, shape):
        decoder, head = FakeDecoder(), nn.Linear(4, 9)
        library = SimpleNamespace(get_decoder=lambda: decoder, get_output_embeddings=lambda: head)
        super().__init__(library, shape, Options(packed=False))
        self.seen = 0

    def run(self, ids, drafted):
        """One forward pass over ids and so many drafts."""
        new = torch.cat([ids, ids[:, :1].expand(-1, drafted)], dim=1)
        cache = SimpleNamespace(get_seq_length=lambda: self.seen)
        self.head(self.decoder(input_ids=new, cache=cache)[:, -drafted - 1 :])


@pytest.fixture
def time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "time", fake)
    return fake


@pytest.fixture
def measured(time, tiny_shape):
    """``measured(steps, limit, ...)``: the record of one batch of a scripted peer."""

    def make(steps, limit=20, rows=1, drafts=True, **settings):
        model = FakeModel(tiny_shape("an OPT", num_layers=LAYERS))
        peer = Scripted(time, steps, drafts)
        runner = Runner(peer, model, decode=PeerDecoder())
        texts = {"decode_text": lambda ids: "", "scores": {}}
        numbers = {"repeats": 1, "warmups": 0, "timed_batches": 1} | settings
        rule = StopRule(limit, (EOS,))
        made = Plan(rule=rule, chooser=lambda _: Greedy(), **texts, **numbers)
        examples = [Example(str(row), "", ("",)) for row in range(rows)]
        measurer = Measurer({"method": runner}, made, CpuDevice())
        return measurer.batch(0, examples, [[EOS, 5]] * rows)

    return make


def test_the_first_step_is_the_time_to_first_token_and_all_its_tokens_belong_to_it(measured):
    leg = measured([[7, 6, 5], [4, 3], [8]], profile=True).legs["method"]
    (timing,) = leg.timings
    assert timing.ttft_s == pytest.approx(SETUP_S + FIRST_S)
    assert timing.decode_s == pytest.approx(2 * STEP_S + END_S)
    assert leg.round_s == pytest.approx([SETUP_S + FIRST_S, STEP_S, STEP_S])
    assert leg.ids == [[7, 6, 5, 4, 3, 8]]
    assert leg.first_round == [3]
    assert (tokens([leg], first=0), tokens([leg], first=1)) == (6, 3)
    row = latency_columns({"method": [leg]})
    assert row["decode_tokens_per_s"] == pytest.approx(3 / (2 * STEP_S + END_S))
    assert row["tpot_s"] == pytest.approx((2 * STEP_S + END_S) / 3)


def test_the_pass_that_is_charged_is_not_clocked(measured, time):
    before = time.now
    leg = measured([[7], [6], [5]], drafts=False).legs["method"]
    one = SETUP_S + FIRST_S + 2 * STEP_S + END_S
    assert time.now - before == pytest.approx(2 * one)
    assert leg.timings[0].ttft_s + leg.timings[0].decode_s == pytest.approx(one)
    assert leg.first_round is None
    assert leg.speculation is None


def test_what_comes_behind_a_stop_is_cut_within_the_first_step_too(measured):
    leg = measured([[7, EOS, 5]], rows=2).legs["method"]
    assert leg.ids == [[7, EOS]] * 2
    assert leg.first_round == [2, 2]
    assert tokens([leg], first=1) == 0
    row = latency_columns({"method": [leg]})
    assert (row["decode_tokens_per_s"], row["tpot_s"]) == (None, None)


def test_drafts_are_counted_from_the_second_step_on(measured):
    leg = measured([[7, 6, 5], [4, 3], [8]]).legs["method"]
    spoken = leg.speculation
    assert (spoken.verifications, spoken.drafted, spoken.accepted) == (2, 1, 1)
    assert leg.decode_executed.mlp_positions == LAYERS * 3
    assert leg.prompt_executed.mlp_positions == LAYERS * (2 + 2)


def test_layers_per_token_are_those_of_the_tokens_after_the_first_step(measured, tiny_shape):
    record = measured([[7, 6, 5], [4, 3], [8]])
    shapes = {"method": tiny_shape("an OPT", num_layers=LAYERS)}
    row = summarise([record], shapes, [], machine=Machine("float32"), margin=0.01)
    assert row["layers_per_token"] == LAYERS
    assert row["tokens_per_verification"] == 3 / 2


def test_a_peer_whose_second_pass_takes_other_steps_is_not_trusted(measured):
    class Wavering(list):
        def __iter__(self):
            self.reverse()
            return super().__iter__()

    with pytest.raises(InvalidRunError, match="other steps"):
        measured(Wavering([[7, 6, 5], [4]]))


LLAMA = "model=smollm2-135m"
RANDOM = ("model.weights=random", "task.limit=3", "gpu=cpu")
REFUSED = {
    "early exit on an OPT": (
        ("+method=hf_early_exit", "meter.batch_size=1"),
        "Method hf_early_exit cannot run model tiny: transformers drafts by setting",
        "model, method",
    ),
    "early exit on an OPT of the hub, before it is fetched": (
        ("+method=hf_early_exit", "meter.batch_size=1", "model=opt6.7b"),
        "cannot run model opt6.7b",
        "model, method",
    ),
    "early exit of several rows": (
        ("+method=hf_early_exit", LLAMA, *RANDOM),
        "hf_early_exit cannot decode so many rows",
        "meter.batch_size",
    ),
    "prompt lookup of several rows": (
        ("+method=hf_prompt_lookup", "meter.batch_size=2"),
        "hf_prompt_lookup cannot decode so many rows",
        "meter.batch_size",
    ),
    "sampling by another library's numbers": (
        ("+method=hf_dense", "decode.choose=sample"),
        "hf_dense is run by another library",
        "decode.choose",
    ),
}


@pytest.mark.parametrize(("given", "told", "where"), REFUSED.values(), ids=REFUSED)
def test_a_pair_that_cannot_run_is_refused_before_weights_are_read(
    configured, monkeypatch, given, told, where
):
    def read(*_, **__):
        raise AssertionError("weights were looked for")

    monkeypatch.setattr("bench.planning.method_weights", read)
    with pytest.raises(InputError) as caught:
        plan(configured(*given))
    assert told in str(caught.value)
    assert caught.value.where == where


def test_a_folder_of_an_unsupported_family_is_refused_once_it_is_read(configured):
    given = ("model=scratch", "model.checkpoint=bench/embedded/tiny/dense", "meter.batch_size=1")
    with pytest.raises(InputError, match="cannot run model scratch"):
        plan(configured("+method=hf_early_exit", "model.tokenizer=null", *given))


def test_what_is_supported_is_planned(configured):
    for method in ("hf_dense", "hf_early_exit", "hf_prompt_lookup"):
        planned = plan(configured(f"+method={method}", LLAMA, "meter.batch_size=1", *RANDOM))
        assert planned.own_reference == "baseline"


def test_a_peers_weights_are_held_beside_the_baselines_and_no_more_often(
    configured, tiny_model, monkeypatch
):
    own = configured("+method=dense", "meter.baseline=own", *tiny_model, *RANDOM)
    peer = configured("+method=hf_dense", *tiny_model, *RANDOM)
    alone = replace(peer, meter=replace(peer.meter, baseline="none", own_dense="never"))
    kinds, weights = [], []
    for config in (own, peer, alone):
        prepared = prepare(plan(config))
        found = legs.runners(prepared)
        kinds.append([type(runner.model) for runner in found.values()])
        weights.append(memory_of(prepared).weights_bytes)
    assert kinds == [[InferenceModel] * 2, [HfModel, InferenceModel], [HfModel]]
    assert weights[1] == 2 * weights[0] == 2 * weights[2]
    assert legs.sizes(prepare(plan(peer)))["weights_bytes"] == weights[0]
