"""LayerSkip's decoding: dense ids and the plain law whatever is drafted; nothing computed twice."""

import itertools
from dataclasses import fields

import pytest
import torch

from bench.meters.device import CpuDevice
from methods.contract import Limits
from methods.engine.cache import Prompts
from methods.engine.drawing import Warp
from methods.engine.ledger import Sums
from methods.engine.sampling import Greedy, Sampled
from tests.engine.plain_exit import HostReads
from tests.methods.speculation import (
    NEW,
    PROMPTS,
    LateDevice,
    Noting,
    agreeing,
    bind,
    columns,
    count_writes,
    decode_until,
    may_follow,
    plain_law,
    rooms,
    total,
)

LAYERS = 4
DRAFTS = {"float32": (torch.float32, range(1, 9)), "float64": (torch.float64, (2, 5, 7))}
# How much the layers behind the first drafting ones add: at 0 every draft is accepted.
SCALES = {"all are accepted": 0.0, "some are accepted": 0.3, "hardly any is accepted": 1.0}
scales = pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
SOME = 0.3


@pytest.fixture
def run(make_method, drive):
    """``run(transformer, prompts, new, name, **settings)``: what was decoded, and the model."""

    def decoded(transformer, prompts, new=NEW, name="layerskip", chooser=None, **settings):
        model = bind(transformer)
        method = make_method(name, transformer.shape, **settings)
        return drive(method, model, prompts, new, chooser), model

    return decoded


@pytest.fixture
def stopped(make_method):
    """``stopped(transformer, prompts, stop_ids, name, **settings)``: through the driver."""

    def decoded(transformer, prompts, stop_ids=(), name="layerskip", device=None, **settings):
        method = make_method(name, transformer.shape, **settings)
        return decode_until(method, transformer, prompts, stop_ids, device)

    return decoded


@pytest.fixture
def half_right(tiny_transformer):
    """A model of six layers of whose drafts some are accepted, in float64."""
    return agreeing(tiny_transformer("an OPT", num_layers=6), SOME).double()


# --- the dense ids --------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "lengths"), DRAFTS.values(), ids=DRAFTS)
def test_ids_are_dense_for_every_exit_layer_and_draft_length_in_a_batch_and_alone(
    shape_name, tiny_transformer, run, make_prompts, dtype, lengths
):
    # No position more than prompt and limit need: no draft may run past a table of them.
    transformer = tiny_transformer(shape_name, max_positions=max(PROMPTS) + NEW)
    agreeing(transformer, SOME).to(dtype)
    prompts = make_prompts(PROMPTS, seed=1)
    expected = run(transformer, prompts, name="dense")[0].rows
    drafted, accepted = [], []
    for exit_layer, most in itertools.product(range(1, LAYERS), lengths):
        settings = {"exit_layer": exit_layer, "num_speculations": most}
        decoded, _ = run(transformer, prompts, **settings)
        assert decoded.rows == expected, settings
        for row in (0, 1, 2) if most in (2, 7) else ():
            assert run(transformer, [prompts[row]], **settings)[0].rows == [expected[row]]
        drafted.append(total(decoded.rounds, "drafted"))
        accepted.append(total(decoded.rounds, "accepted"))
    assert 0 < sum(accepted) < sum(drafted)


@scales
def test_ids_are_dense_at_every_limit_and_no_row_passes_it(
    tiny_transformer, run, make_prompts, scale
):
    for new in (1, 2, 3, 4, 5, 6, 9):
        transformer = tiny_transformer("an OPT", max_positions=12 + new)
        agreeing(transformer, scale, first=2)
        prompts = make_prompts([3, 12, 1, 7, 5], seed=3)
        expected = run(transformer, prompts, new, name="dense")[0].rows
        decoded, model = run(transformer, prompts, new, exit_layer=2, num_speculations=4)
        assert decoded.rows == expected
        assert len(decoded.rounds) > 1 or new == 1
        assert all(extent.keys <= 12 + new for _, _, extent in model.ledger.calls)
        foreseen = [tuple(rooms(kept, 4, new)) for kept in columns(decoded.rounds, "accepted")]
        assert columns(decoded.rounds, "drafted") == foreseen


@scales
def test_a_row_ends_as_the_dense_one_wherever_in_a_block_its_eos_stands(
    tiny_transformer, stopped, make_prompts, scale
):
    transformer = agreeing(tiny_transformer("an OPT", num_layers=6), scale, first=2)
    prompts, places = make_prompts(PROMPTS, seed=4), {}
    whole = stopped(transformer, prompts, name="dense").ids
    for row, ids in enumerate(whole):
        for stop in ids:
            at = ids.index(stop)
            places.setdefault((at - 1) % 4 if at else "the prompt's token", (row, at, stop))
    # Where all is accepted a block is four tokens.
    assert places.keys() == {"the prompt's token", 0, 1, 2, 3}
    for row, at, stop in places.values():
        expected = stopped(transformer, prompts, [stop], name="dense").ids
        assert expected[row] == whole[row][: at + 1]
        for device in (CpuDevice(), LateDevice()):
            settings = {"exit_layer": 2, "num_speculations": 3, "device": device}
            assert stopped(transformer, prompts, [stop], **settings).ids == expected


# --- acceptance, and what it costs ----------------------------------------------------------------


def test_late_layers_that_add_nothing_accept_every_draft(
    shape_name, tiny_transformer, run, make_prompts
):
    transformer = agreeing(tiny_transformer(shape_name), 0.0, first=2)
    if transformer.shape.norm_placement == "post":
        # Where norms stand behind, they must leave alone what is normed already.
        for block in transformer.blocks[1:]:
            for norm in (block.attention_norm, block.mlp_norm):
                torch.nn.init.ones_(norm.weight)
                torch.nn.init.zeros_(norm.bias)
    prompts = make_prompts(PROMPTS, seed=5)
    decoded, _ = run(transformer, prompts, exit_layer=2, num_speculations=3)
    # Twelve tokens behind the prompt's, four a round.
    assert columns(decoded.rounds, "drafted") == [(3, 3, 3)] * 5
    assert columns(decoded.rounds, "accepted") == [(3, 3, 3)] * 5
    assert decoded.rows == run(transformer, prompts, name="dense")[0].rows


@scales
def test_every_layer_sees_the_prompt_and_one_token_more_than_drafted_in_each_round(
    tiny_transformer, make_method, drive, make_prompts, scale
):
    transformer = agreeing(tiny_transformer("an OPT", num_layers=6), scale, first=2)
    for most in (1, 4, 6):
        model, seen = bind(transformer), [0] * 6
        written, block = count_writes(model), model.block

        def noted(layer, x, *rest, block=block, seen=seen):
            seen[layer] += x.shape[0] * x.shape[1]
            return block(layer, x, *rest)

        model.block = noted
        method = make_method("layerskip", transformer.shape, exit_layer=2, num_speculations=most)
        rounds = drive(method, model, make_prompts([7], seed=6), NEW).rounds[1:]
        drafted, kept = ([int(getattr(r, n)) for r in rounds] for n in ("drafted", "accepted"))
        assert drafted == rooms(kept, most)
        assert [int(each.counts) for each in rounds] == [1 + each for each in kept]
        # d + 1 tokens a round, fewer at the limit; early and late layers alike.
        tokens = sum(drafted) + len(rounds)
        assert written == [7 + tokens] * 6
        assert seen == [tokens] * 6
        for ran, count in zip(model.ledger.executed()[1:], drafted, strict=True):
            assert ran.mlp_positions == ran.attention_positions == 6 * (count + 1)
            # Each draft is chosen by a head; verification looks at each again, and behind.
            assert ran.head_positions == count + count + 1
            assert ran.embed_positions == count + 1


def test_what_rows_required_is_what_they_cost_alone_and_layers_are_told_of_all_of_it(
    half_right, stopped, make_prompts
):
    prompts = make_prompts(PROMPTS, seed=7)
    settings = {"exit_layer": 3, "num_speculations": 4}
    stop = stopped(half_right, prompts).ids[2][6]
    for stop_ids in ((), (stop,)):
        together = stopped(half_right, prompts, stop_ids, **settings)
        alone = [stopped(half_right, [prompt], stop_ids, **settings) for prompt in prompts]
        assert together.ids == [each.ids[0] for each in alone]
        # A row alone has no padding: its rejected drafts are in both sums.
        assert all(each.decode_required == each.decode_executed for each in alone)
        required = sum((each.decode_required for each in alone), start=Sums())
        assert together.decode_required == required
        for field in fields(required):
            needs, ran = (getattr(e, field.name) for e in (required, together.decode_executed))
            assert needs < ran or needs == ran == 0
        assert 0 < together.speculation.accepted < together.speculation.drafted
        for row, each in enumerate(alone):
            if len(each.ids[0]) == NEW:
                assert sum(together.layers[row][1:]) == each.decode_required.mlp_positions
                assert together.layers[row][0] == 6


def test_a_finished_row_among_live_ones_stays_and_leaves_them_alone(
    half_right, make_method, make_prompts, stopped
):
    prompts = make_prompts(PROMPTS, seed=8)
    expected = stopped(half_right, prompts, name="dense").ids
    model, seen, held = bind(half_right), [], []
    embed = model.embed

    def noted(ids, positions):
        assert positions.visible <= max(PROMPTS) + NEW
        seen.append(positions.ids[:, 0].tolist())
        return embed(ids, positions)

    model.embed = noted
    method = make_method("layerskip", half_right.shape, exit_layer=3, num_speculations=4)
    decoding = method.decode(model, Prompts.of(prompts), Limits(NEW, Greedy()))
    # One is known to be finished from its prompt's token on, another from its fifth on.
    rows, live = [[] for _ in prompts], torch.tensor([True, False, True, True, True])
    while min(len(rows[row]) for row in (0, 2, 3)) < NEW:
        before, told = len(seen), not live[4]
        with torch.inference_mode():
            answer = decoding.send(live) if rows[0] else next(decoding)
        held += [each[4] for each in seen[before:] if told]
        counts = [1] * 5 if answer.counts is None else answer.counts.tolist()
        for row, ids, count in zip(rows, answer.ids.tolist(), counts, strict=True):
            row.extend(ids[:count])
        live[4] = len(rows[4]) < 5
    assert [rows[row][:NEW] for row in (0, 2, 3)] == [expected[row] for row in (0, 2, 3)]
    assert {each[1] for each in seen} == {PROMPTS[1] - 1}
    assert len(held) > 5
    assert len(set(held)) == 1
    assert all(each[row] < length + NEW for each in seen for row, length in enumerate(PROMPTS))


def test_the_host_reads_once_a_round(half_right, make_method, make_prompts):
    for settings, most in (({}, 1), ({"stop_confidence": 0.0}, 5)):
        method = make_method("layerskip", half_right.shape, num_speculations=4, **settings)
        model = bind(half_right, checked_cache=False)
        prompts, live = Prompts.of(make_prompts(PROMPTS, seed=9)), torch.tensor([True] * 5)
        decoding = method.decode(model, prompts, Limits(40, Greedy()))
        with torch.inference_mode():
            next(decoding)
            for _ in range(5):
                with HostReads() as reads:
                    decoding.send(live)
                # A stop by confidence is decided on the host, at each draft.
                assert reads.found == ["tolist"] * most


# --- a draft that stops by itself -----------------------------------------------------------------


def test_a_draft_ends_behind_the_first_token_that_is_not_sure_and_keeps_it(
    half_right, run, make_prompts
):
    prompts, before, chooser = make_prompts(PROMPTS, seed=10), Noting(), Noting()
    settings = {"exit_layer": 3, "num_speculations": 5}
    plain, _ = run(half_right, prompts, chooser=before, **settings)
    threshold = torch.tensor([step for part in before.likely for step in part]).quantile(0.3).item()
    settings["stop_confidence"] = threshold
    decoded, _ = run(half_right, prompts, chooser=chooser, **settings)
    assert decoded.rows == plain.rows == run(half_right, prompts, name="dense")[0].rows
    lengths = set()
    for row, kept in enumerate(columns(decoded.rounds, "accepted")):
        counts = columns(decoded.rounds, "drafted")[row]
        for count, room, likely in zip(counts, rooms(kept, 5), chooser.likely, strict=False):
            sure = [step[row] >= threshold for step in likely[:room]]
            # The first that is not sure is drafted all the same.
            assert count == (sure.index(False) + 1 if False in sure else room)
            lengths.add(count)
    assert lengths == {0, 1, 2, 3, 4, 5}
    assert total(decoded.rounds, "drafted") < total(plain.rounds, "drafted")


def test_a_threshold_of_0_never_stops_a_draft_and_one_of_1_lets_each_draft_one_token(
    half_right, run, make_prompts
):
    prompts, settings = make_prompts(PROMPTS, seed=11), {"exit_layer": 3, "num_speculations": 3}
    never, zero, one = (
        run(half_right, prompts, stop_confidence=threshold, **settings)[0]
        for threshold in (None, 0.0, 1.0)
    )
    for name in ("drafted", "accepted", "counts"):
        assert columns(zero.rounds, name) == columns(never.rounds, name)
    assert {count for row in columns(one.rounds, "drafted") for count in row} == {0, 1}
    assert one.rows == never.rows


# --- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [None, 0.4], ids=["drafts of full length", "drafts that stop"])
def test_sampled_tokens_follow_the_law_of_plain_sampling(
    tiny_transformer, make_method, drive, stop
):
    sizes = {"vocab_size": 8, "num_layers": 2, "width": 8, "num_heads": 2, "ffn_width": 16}
    transformer = tiny_transformer("an OPT", seed=1, **sizes)
    settings = {"exit_layer": 1, "num_speculations": 2, "stop_confidence": stop}
    method = make_method("layerskip", transformer.shape, **settings)
    number, prompt = 20_000, [2, 5, 3, 7]
    chooser = Sampled(0, range(number), Warp(0.7, None, 0.9), positions=4)
    model = bind(transformer, checked_cache=False)
    decoded = drive(method, model, [prompt] * number, 4, chooser)
    first = decoded.rounds[1]
    assert (int(first.drafted.min()) == 2) is (stop is None)
    assert 0.3 < first.accepted.sum() / first.drafted.sum() < 0.6
    # The second and the third token are the first that are drafted.
    rows = [row[:3] for row in decoded.rows]
    assert may_follow(rows, plain_law(transformer, prompt, 3, 0.7, 0.9))
