"""What holds for every method, each with its default settings on tiny models."""

import hashlib
import re
from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from methods.contract import Batch, Limits, Progress
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy
from methods.registry import UnknownMethodError, find_method, find_params, method_names

# Peers decode with another library; what holds for them is in test_peers.py.
METHODS = [name for name in method_names() if find_params(name).ABILITIES.engine == "own"]
EVERY_METHOD = pytest.mark.parametrize("name", method_names())
LENGTHS, NEW = [3, 9, 1, 6], 12
SCHEDULE = {"schedule_length": 8}
MODELS = {"an OPT": "an OPT", "a Llama": "a Llama with scaled rotary positions and a tied head"}


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


@pytest.fixture(params=MODELS)
def transformer(request, tiny_transformer):
    return tiny_transformer(MODELS[request.param], num_layers=6)


@pytest.fixture
def method(name, transformer, make_method):
    return make_method(name, transformer.shape)


@pytest.fixture
def prompts(make_prompts):
    return make_prompts(LENGTHS, seed=1)


def _bind(transformer):
    return InferenceModel(transformer, Options(packed=False, checked_cache=True))


def _start(method, model, prompts, chooser=None):
    return method.decode(model, Prompts.of(prompts), Limits(NEW, chooser or Greedy()))


def _advance(decoding, live=None, first=False):
    with torch.inference_mode():
        return next(decoding) if first else decoding.send(live)


def test_at_least_the_two_first_methods_are_found():
    assert {"dense", "skipdecode"} <= set(METHODS)


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(UnknownMethodError, match=r"'skipdecod'; methods: .*skipdecode") as caught:
        find_params("skipdecod")
    assert caught.value.near == ["skipdecode"]
    with pytest.raises(UnknownMethodError):
        find_method("engine")


@EVERY_METHOD
def test_it_says_where_it_comes_from(name):
    source = find_params(name).SOURCE
    assert re.fullmatch(r"\d{4}\.\d{4,5}(v\d+)?|10\.\d{4,}/\S+", source.paper)
    assert len(source.followed) >= 10
    # Reference code stands with the commit that was read.
    assert source.reference is None or re.search(r"\b[0-9a-f]{7,40}\b", source.reference)


@EVERY_METHOD
def test_its_settings_are_frozen_have_defaults_and_are_complete_once_resolved(name, tiny_shape):
    module, shape = find_params(name), tiny_shape("an OPT", num_layers=6)
    params = module.resolve(module.Params(), shape, SCHEDULE)
    assert type(params) is module.Params
    for field in fields(params):
        with pytest.raises(FrozenInstanceError):
            setattr(params, field.name, None)
    find_method(name).Method(params, shape)


def test_the_first_round_holds_exactly_one_token_of_each_row(method, transformer, prompts):
    answer = _advance(_start(method, _bind(transformer), prompts), first=True)
    assert answer.ids.shape == (len(prompts), 1)
    assert answer.counts is None or answer.counts.tolist() == [1] * len(prompts)


def test_the_prompt_runs_every_layer_unless_the_method_says_that_it_does_not(
    name, method, transformer, prompts
):
    model, layers = _bind(transformer), list(range(6))
    answer = _advance(_start(method, model, prompts), first=True)
    ran = [layer for part, layer, _ in model.ledger.calls if part == "block"]
    whole = find_params(name).ABILITIES.whole_prompt
    assert ran == (layers if whole else layers[: len(ran)])
    assert (len(ran) == 6) is whole
    assert torch.as_tensor(answer.layers_run).unique().tolist() == [len(ran)]


def test_ids_lie_in_the_vocabulary_and_each_round_is_consistent(
    method, transformer, prompts, drive
):
    decoded = drive(method, _bind(transformer), prompts, NEW)
    for answer in decoded.rounds:
        rows, width = answer.ids.shape
        assert rows == len(prompts)
        assert answer.ids.min() >= 0
        assert answer.ids.max() < transformer.shape.vocab_size
        counts = torch.full((rows,), width) if answer.counts is None else answer.counts
        assert counts.min() >= 1
        assert counts.max() <= width
        run = torch.as_tensor(answer.layers_run)
        assert run.shape in ((), answer.ids.shape)
        assert run.min() >= 1
        needed = answer.layers_needed
        assert needed is None or len(needed) == rows
        assert needed is None or max(needed) <= run.max()
        assert (answer.drafted is None) == (answer.accepted is None)
        if answer.drafted is not None:
            assert (answer.accepted <= answer.drafted).all()
            assert (answer.accepted <= counts).all()


def test_every_round_is_charged_to_the_ledger(method, transformer, prompts, drive):
    model = _bind(transformer)
    decoded = drive(method, model, prompts, NEW)
    executed = model.ledger.executed()
    required = model.ledger.required(
        [range(len(prompts))] * len(decoded.rounds),
        [answer.layers_needed for answer in decoded.rounds],
    )
    assert len(executed) == len(decoded.rounds)
    for needs, ran in zip(required, executed, strict=True):
        assert ran.head_positions >= len(prompts)
        assert ran.mlp_positions > 0
        for field in fields(ran):
            assert getattr(needs, field.name) <= getattr(ran, field.name)


def test_a_ragged_batch_gives_the_ids_of_its_rows_run_singly(method, transformer, prompts, drive):
    together = drive(method, _bind(transformer), prompts, NEW).rows
    alone = [drive(method, _bind(transformer), [prompt], NEW).rows[0] for prompt in prompts]
    assert together == alone
    assert len(set(map(tuple, together))) == len(prompts)


def test_decoding_twice_gives_the_same_ids(method, transformer, prompts, drive):
    model = _bind(transformer)
    first, second = (drive(method, model, prompts, NEW) for _ in range(2))
    assert first.rows == second.rows
    one, other = ([answer.layers_run for answer in run.rounds] for run in (first, second))
    assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in zip(one, other, strict=True))


LOSSLESS = [name for name in METHODS if find_params(name).ABILITIES.lossless]


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_lossless_method_gives_the_ids_of_the_dense_one(
    name, transformer, prompts, make_method, drive
):
    dense, found = (
        drive(make_method(each, transformer.shape), _bind(transformer), prompts, NEW).rows
        for each in ("dense", name)
    )
    assert found == dense


def _fingerprint(transformer, model):
    """Weights, hooks and primitives: all that a method could leave changed."""
    digest = hashlib.sha256()
    for key, tensor in transformer.state_dict().items():
        digest.update(key.encode() + tensor.numpy().tobytes())
    hooks = [
        dict(getattr(module, kind))
        for module in transformer.modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    ]
    held = {key: id(value) for key, value in vars(model).items() if key != "ledger"}
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())
    random_state = torch.get_rng_state().tolist()
    return digest.hexdigest(), hooks, held, list(map(id, model.blocks)), modes, random_state


class BrokenError(RuntimeError):
    pass


class _BreaksLater(Greedy):
    def choose(self, logits, index):
        if index >= 3:
            raise BrokenError
        return super().choose(logits, index)


def _exhaust(decoding):
    for _ in range(NEW):
        _advance(decoding)


def _stop_by_closing(method, model, prompts):
    decoding = _start(method, model, prompts)
    for step in range(4):
        _advance(decoding, first=step == 0)
    decoding.close()


def _stop_by_throwing(method, model, prompts):
    decoding = _start(method, model, prompts)
    for step in range(4):
        _advance(decoding, first=step == 0)
    with pytest.raises(BrokenError):
        decoding.throw(BrokenError())


def _stop_from_within(method, model, prompts):
    decoding = _start(method, model, prompts, _BreaksLater())
    _advance(decoding, first=True)
    with pytest.raises(BrokenError):
        _exhaust(decoding)


STOPS = {
    "closed in the middle": _stop_by_closing,
    "stopped by an exception at its yield": _stop_by_throwing,
    "stopped by an exception inside a step": _stop_from_within,
}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_the_model_is_left_as_found_by_a_decode_that_is_cut_short(
    method, transformer, prompts, drive, stop
):
    model = _bind(transformer)
    expected = drive(method, model, prompts, NEW).rows
    before = _fingerprint(transformer, model)
    stop(method, model, prompts)
    assert _fingerprint(transformer, model) == before
    assert drive(method, model, prompts, NEW).rows == expected


def test_the_model_is_left_as_found_by_a_whole_decode(method, transformer, prompts, drive):
    model = _bind(transformer)
    before = _fingerprint(transformer, model)
    drive(method, model, prompts, NEW)
    assert _fingerprint(transformer, model) == before


def test_no_context_stays_open_across_a_yield(method, transformer, prompts):
    # Driven without a context of our own: leaving one would put back what a method changed.
    decoding = _start(method, _bind(transformer), prompts)
    for step in range(4):
        decoding.send(None) if step else next(decoding)
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    decoding.close()


def _rows_and_positions(method, transformer, prompts, live_after):
    """Ids of each row, and per round the highest position of each row that was embedded."""
    model = _bind(transformer)
    embed, highest = model.embed, [[] for _ in range(NEW)]

    def watched(ids, positions):
        highest[step].append(positions.ids.max(dim=1).values)
        return embed(ids, positions)

    model.embed = watched
    rows, live = [[] for _ in prompts], None
    decoding = _start(method, model, prompts)
    for step in range(NEW):
        answer = _advance(decoding, live, first=step == 0)
        live = live_after if step >= 3 else None
        counts = [answer.ids.shape[1]] * len(rows) if answer.counts is None else answer.counts
        for row, ids, count in zip(rows, answer.ids.tolist(), counts, strict=True):
            row.extend(ids[: int(count)])
        if min(map(len, rows)) >= NEW:
            break
    decoding.close()
    tops = [torch.stack(calls).amax(dim=0).tolist() for calls in highest if calls]
    return [row[:NEW] for row in rows], tops


def test_a_finished_row_stays_where_it_is_and_disturbs_no_other(method, transformer, prompts):
    finished = 1
    live = torch.tensor([row != finished for row in range(len(prompts))])
    expected, _ = _rows_and_positions(method, transformer, prompts, None)
    found, tops = _rows_and_positions(method, transformer, prompts, live)
    for row, length in enumerate(map(len, prompts)):
        assert max(top[row] for top in tops) < length + NEW
        if row != finished:
            assert found[row] == expected[row]
            assert tops[-1][row] > tops[0][row]
    # From the round on in which it is known to be finished, its position rises no more.
    known = [top[finished] for top in tops[2:]]
    assert known == sorted(known, reverse=True)


def _batch(rows, prompt_lengths):
    longest = max(map(len, rows))
    padded = [row + [1] * (longest - len(row)) for row in rows]
    lengths = torch.tensor(list(map(len, rows)))
    return Batch(torch.tensor(padded), torch.tensor(prompt_lengths), lengths)


TRAINED = [name for name in METHODS if find_params(name).ABILITIES.trains]
trained = pytest.mark.parametrize("name", TRAINED)
part_done = pytest.mark.parametrize(
    "progress",
    [Progress(step, 10) for step in (0, 4, 9)],
    ids=["at the start", "on the way", "at the end"],
)


@trained
@part_done
def test_its_objective_is_finite_and_reaches_every_parameter(
    method, transformer, make_prompts, progress
):
    rows = make_prompts([14, 20, 9], seed=2)
    transformer.zero_grad(set_to_none=True)
    loss = method.objective(transformer, _batch(rows, [4, 9, 1]), progress).total
    assert loss.shape == ()
    assert loss.isfinite()
    loss.backward()
    untouched = [
        name
        for name, parameter in transformer.named_parameters()
        if parameter.grad is None or not parameter.grad.isfinite().all() or not parameter.grad.any()
    ]
    assert untouched == []


@trained
@part_done
def test_its_objective_of_a_batch_is_the_sum_over_rows(method, transformer, make_prompts, progress):
    rows, lengths = make_prompts([14, 20, 9, 6], seed=3), [4, 9, 1, 5]
    with torch.no_grad():
        together = method.objective(transformer, _batch(rows, lengths), progress).total
        alone = [
            method.objective(transformer, _batch([row], [length]), progress).total
            for row, length in zip(rows, lengths, strict=True)
        ]
    assert min(alone) > 0
    torch.testing.assert_close(together, torch.stack(alone).sum(), rtol=1e-5, atol=0)


@trained
def test_its_objective_does_not_see_the_pads(method, transformer, make_prompts):
    batch = _batch(make_prompts([14, 20, 9], seed=4), [4, 9, 1])
    ids = batch.ids.clone()
    for row, length in enumerate(batch.lengths.tolist()):
        ids[row, length:] = 7 + row
    assert not torch.equal(ids, batch.ids)
    with torch.no_grad():
        one, other = (
            method.objective(transformer, each, Progress(4, 10)).total
            for each in (batch, Batch(ids, batch.prompt_lengths, batch.lengths))
        )
    torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
