"""CALM: decoding against the paper's rule written out plainly, its limits, costs and batches."""

from dataclasses import replace

import pytest
import torch

from bench.costs import flops
from methods.contract import Limits
from methods.engine.cache import Prompts
from methods.engine.confidence import Classifier
from methods.engine.sampling import Greedy
from tests.engine.plain_exit import HostReads, PlainRow, Recording, cut

# In float64: rounding is not what is looked for, nor which side of a threshold it falls on.
TOLERANCE = 1e-5
LAYERS, NEW = 6, 8
PROMPTS, EIGHT = [3, 9, 1, 6], [3, 9, 1, 6, 4, 2, 7, 5]
MEASURES = {"softmax response": "softmax", "saturation": "state", "a classifier": "classifier"}
measures = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
POLICIES = ("rows", "all")
policies = pytest.mark.parametrize("policy", POLICIES)
EXITS = {
    "every layer": ({}, [1, 2, 3, 4, 5]),
    "every other layer from the second": ({"min_layer": 2, "check_every": 2}, [2, 4]),
    "the last layer, which is none": ({"min_layer": LAYERS}, []),
}
exits = pytest.mark.parametrize("exits", EXITS.values(), ids=EXITS)


@pytest.fixture
def transformer(shape_name, tiny_transformer):
    return tiny_transformer(shape_name, num_layers=LAYERS).double()


@pytest.fixture(params=["an OPT", "a Llama with scaled rotary positions and a tied head"])
def one_of_two(request, tiny_transformer):
    return tiny_transformer(request.param, num_layers=LAYERS)


def _classifier():
    draw = torch.Generator().manual_seed(9)
    return Classifier(0.1 * torch.randn(32, generator=draw), torch.tensor(0.1))


@pytest.fixture
def calm(make_method):
    """``calm(shape, **settings)``: a CALM method, with a random classifier attached."""

    def make(shape, **settings):
        method = make_method("calm", shape, **settings)
        method.classifier = _classifier()
        return method

    return make


@pytest.fixture
def run(watch, calm, drive):
    """``run(transformer, prompts, **settings)``: what was decoded, and the watched model."""

    def decode(transformer, prompts, chooser=None, **settings):
        watched = watch(transformer, dtype=transformer.head_weight.dtype)
        method = calm(transformer.shape, **settings)
        return drive(method, watched.model, prompts, NEW, chooser), watched

    return decode


@torch.no_grad()
def _confidence(transformer, measure, x, before):
    """By the definitions; (..., D) to (...)."""
    if measure == "softmax":
        likely = transformer.head(x).softmax(dim=-1).sort(dim=-1).values
        return likely[..., -1] - likely[..., -2]
    if measure == "state":
        lengths = x.square().sum(-1) * before.square().sum(-1)
        return (x * before).sum(-1) / lengths.sqrt()
    return 1 / (1 + (-(x.float() @ _classifier().weight) - 0.1).exp())


@torch.no_grad()
def _middling(transformer, measure, share=0.5):
    """A threshold that this share of tokens reaches in no exit layer."""
    ids = torch.randint(3, 61, (8, 20), generator=torch.Generator().manual_seed(8))
    x, rope, found = transformer.embed(ids), transformer.rope(20), []
    for block in transformer.blocks[: LAYERS - 1]:
        before, x = x, block(x, rope)
        found.append(_confidence(transformer, measure, x, before))
    best = torch.stack(found[1 if measure == "state" else 0 :]).amax(dim=0)
    return float(best[:, 5:].quantile(share).clamp(0, 1))


def _leave_by_paper(rows, may_leave, together):
    """One step: layers asked for by each row, and logits; rows that leave together, or None."""
    asked = [LAYERS] * len(rows)
    for depth in range(1, LAYERS + 1):
        going = [row for row in range(len(rows)) if together or asked[row] == LAYERS]
        agreed = {row: may_leave(depth, *rows[row].run()) for row in going}
        for row in going:
            asked[row] = depth if agreed[row] and asked[row] == LAYERS else asked[row]
        if together and all(agreed[row] for row in together):
            break
    logits = [row.leave() for row in rows]
    return [min(wish, row.depth) for wish, row in zip(asked, rows, strict=True)], logits


def _plain_calm(transformer, prompts, measure, threshold, together=None):
    """Per step: layers asked for, layers run and logits (B, 1, V)."""
    rows = [PlainRow(transformer, prompt) for prompt in prompts]
    whole = [LAYERS] * len(rows)
    steps = [(whole, whole, torch.stack([row.logits for row in rows])[:, None])]

    def may_leave(depth, x, before):
        if depth == LAYERS or (depth == 1 and measure == "state"):
            return depth == LAYERS
        return bool(_confidence(transformer, measure, x, before) >= threshold)

    for _ in range(NEW - 1):
        for row, token in zip(rows, steps[-1][2].argmax(dim=-1).flatten().tolist(), strict=True):
            row.start(token)
        asked, logits = _leave_by_paper(rows, may_leave, together)
        steps.append((asked, [row.depth for row in rows], torch.stack(logits)[:, None]))
    return steps


def _depths(answer, rows):
    return torch.as_tensor(answer.layers_run).expand(rows, 1).flatten().tolist()


@measures
def test_rows_leave_where_the_paper_says_and_go_on_from_copied_states(
    transformer, measure, run, make_prompts
):
    threshold, chooser = _middling(transformer, measure), Recording()
    prompts = make_prompts(PROMPTS)
    decoded, watched = run(transformer, prompts, chooser, measure=measure, threshold=threshold)
    steps = _plain_calm(transformer, prompts, measure, threshold)
    for index, (answer, (asked, ran, expected)) in enumerate(
        zip(decoded.rounds, steps, strict=True)
    ):
        torch.testing.assert_close(chooser.logits[index], expected, atol=TOLERANCE, rtol=0)
        assert answer.ids.tolist() == expected.argmax(dim=-1).tolist()
        assert _depths(answer, 4) == (answer.layers_needed or ran) == ran == asked
    # Exits vary, in one step too; and every layer holds every position.
    depths = [set(ran) for _, ran, _ in steps[1:]]
    assert len(set.union(*depths)) >= 3
    assert max(map(len, depths)) > 1
    for row, (offset, length) in enumerate(zip(watched.cache.offsets, PROMPTS, strict=True)):
        assert watched.cache.written[:, row, offset : offset + length + NEW - 1].all()


@measures
def test_a_batch_that_leaves_together_waits_for_its_last_live_row_and_no_other(
    one_of_two, measure, watch, calm, make_prompts
):
    threshold, sums = _middling(one_of_two.double(), measure, share=0.2), []
    method = calm(one_of_two.shape, measure=measure, threshold=threshold, batch_policy="all")
    prompts, rows = make_prompts(PROMPTS), [0, 1, 2, 3]
    for live in ([0], [0, 3], rows):
        chooser, mask = Recording(), torch.tensor([row in live for row in rows])
        model = watch(one_of_two, dtype=torch.float64).model
        decoding = method.decode(model, Prompts.of(prompts), Limits(NEW, chooser))
        steps = _plain_calm(one_of_two, prompts, measure, threshold, live)
        for index, (asked, ran, expected) in enumerate(steps):
            with torch.inference_mode():
                answer = decoding.send(mask) if index else next(decoding)
            found, expected = chooser.logits[index][live], expected[live]
            torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
            assert _depths(answer, 4) == ran == [ran[0]] * 4
            needed = answer.layers_needed or ran
            assert [needed[row] for row in live] == [asked[row] for row in live]
            assert max(needed) <= ran[0]
        sums.append(sum(ran[0] for _, ran, _ in steps[1:]))
    assert sums[0] <= sums[1] <= sums[2] != sums[0]


@measures
def test_eight_rows_at_once_equal_eight_single_runs_in_ids_and_layers(
    one_of_two, measure, run, make_prompts
):
    settings = {"measure": measure, "threshold": _middling(one_of_two, measure)}
    prompts = make_prompts(EIGHT, seed=1)
    together, _ = run(one_of_two, prompts, **settings)
    depths = torch.cat([answer.layers_run for answer in together.rounds[1:]], dim=1)
    assert len(depths.unique()) >= 3
    assert min(len(step.unique()) for step in depths.T) > 1
    for row, prompt in enumerate(prompts):
        alone, _ = run(one_of_two, [prompt], **settings)
        assert alone.rows == [together.rows[row]]
        ran = torch.cat([answer.layers_run for answer in alone.rounds[1:]], dim=1)
        assert torch.equal(ran[0], depths[row])


@measures
def test_with_one_row_both_policies_are_the_same_and_waste_nothing(
    one_of_two, measure, run, make_prompts
):
    threshold, outcomes = _middling(one_of_two, measure), []
    for policy in POLICIES:
        settings = {"measure": measure, "threshold": threshold, "batch_policy": policy}
        decoded, watched = run(one_of_two, make_prompts([5], seed=3), **settings)
        needed = [answer.layers_needed for answer in decoded.rounds]
        ledger = watched.model.ledger
        assert ledger.required([[0]] * NEW, needed) == ledger.executed()
        outcomes.append((decoded.rows, needed, ledger.executed(), ledger.traffic()))
        assert [_depths(answer, 1) for answer in decoded.rounds[1:]] == needed[1:]
    assert outcomes[0] == outcomes[1]
    assert len(set(map(str, needed[1:]))) > 1


@policies
@measures
def test_what_rows_required_never_exceeds_what_was_executed(
    one_of_two, measure, policy, run, make_prompts
):
    threshold = _middling(one_of_two, measure, share=0.2)
    settings = {"measure": measure, "threshold": threshold, "batch_policy": policy}
    decoded, watched = run(one_of_two, make_prompts(EIGHT), **settings)
    ledger, needed = watched.model.ledger, [answer.layers_needed for answer in decoded.rounds]
    required = ledger.required([range(8)] * NEW, needed)
    for needs, ran, depths in zip(required, ledger.executed(), needed, strict=True):
        assert flops(needs, one_of_two.shape) < flops(ran, one_of_two.shape)
        assert needs.mlp_positions == (sum(depths) if depths else sum(EIGHT) * LAYERS)
        if depths and policy == "rows":
            assert ran.mlp_positions == needs.mlp_positions
            assert ran.kv_positions == needs.kv_positions == 8 * LAYERS - sum(depths)


@pytest.fixture
def dense_run(watch, make_method, drive):
    """``dense_run(transformer, prompts)``: likewise, of the baseline."""

    def decode(transformer, prompts):
        watched = watch(transformer)
        return drive(make_method("dense", transformer.shape), watched.model, prompts, NEW), watched

    return decode


@exits
@measures
def test_a_threshold_that_is_never_reached_costs_the_checks_and_gives_the_dense_ids(
    one_of_two, measure, exits, run, dense_run, make_prompts
):
    settings, layers = exits
    expected, dense = dense_run(one_of_two, make_prompts(PROMPTS))
    # Saturation has nothing to compare layer 1 with.
    checks = 4 * len([layer for layer in layers if measure != "state" or layer > 1])
    name = "head_positions" if measure == "softmax" else "check_positions"
    cost = 2 * checks * (61 if measure == "softmax" else 1) * 32
    for policy in POLICIES:
        given = settings | {"measure": measure, "threshold": 1.0, "batch_policy": policy}
        decoded, watched = run(one_of_two, make_prompts(PROMPTS), **given)
        assert decoded.rows == expected.rows
        for answer in decoded.rounds[1:]:
            assert _depths(answer, 4) == answer.layers_needed == [LAYERS] * 4
        (first, *ran), (prompt, *plain) = (w.model.ledger.executed() for w in (watched, dense))
        assert first == prompt
        for more, less in zip(ran, plain, strict=True):
            assert more == replace(less, **{name: getattr(less, name) + checks})
            assert flops(more, one_of_two.shape) == flops(less, one_of_two.shape) + cost


@measures
def test_never_is_dense_without_a_single_check(one_of_two, measure, run, dense_run, make_prompts):
    expected, dense = dense_run(one_of_two, make_prompts(PROMPTS))
    for policy in POLICIES:
        settings = {"measure": measure, "batch_policy": policy, "decay": 4.0}
        found, watched = run(one_of_two, make_prompts(PROMPTS), threshold="never", **settings)
        assert found.rows == expected.rows
        assert all(_depths(answer, 4) == [LAYERS] * 4 for answer in found.rounds)
        assert watched.model.ledger.executed() == dense.model.ledger.executed()
        assert watched.model.ledger.traffic() == dense.model.ledger.traffic()


@pytest.mark.parametrize("least", [1, 3], ids=["from layer 1", "from layer 3"])
@measures
def test_a_threshold_of_0_is_the_model_cut_at_the_first_exit(
    one_of_two, measure, least, run, make_prompts
):
    transformer = one_of_two.double()
    depth, prompts = max(least, 1 + (measure == "state")), make_prompts(PROMPTS)
    smaller, expected = cut(transformer, depth), []
    for prompt in prompts:
        # The prompt's token is the whole model's.
        ids = [int(PlainRow(transformer, prompt).logits.argmax())]
        row = PlainRow(smaller, prompt)
        while len(ids) < NEW:
            row.start(ids[-1])
            while row.depth < depth:
                row.run()
            ids.append(int(row.leave().argmax()))
        expected.append(ids)
    for policy in POLICIES:
        settings = {"measure": measure, "min_layer": least, "batch_policy": policy}
        decoded, _ = run(transformer, prompts, threshold=0.0, **settings)
        assert [_depths(answer, 4) for answer in decoded.rounds[1:]] == [[depth] * 4] * (NEW - 1)
        assert decoded.rows == expected


@policies
@exits
@measures
def test_the_host_reads_once_an_exit_point_and_never_below_the_first(
    tiny_transformer, measure, exits, policy, watch, calm, make_prompts
):
    settings, layers = exits
    transformer = tiny_transformer("an OPT", num_layers=LAYERS)
    threshold = _middling(transformer, measure, share=0.2)
    settings = settings | {"measure": measure, "threshold": threshold, "batch_policy": policy}
    model, prompts = watch(transformer, checked_cache=False).model, make_prompts(PROMPTS)
    method, live = calm(transformer.shape, **settings), torch.tensor([True] * 4)
    decoding = method.decode(model, Prompts.of(prompts), Limits(NEW, Greedy()))
    with torch.inference_mode():
        next(decoding)
        for _ in range(NEW - 1):
            with HostReads() as reads:
                answer = decoding.send(live)
            deepest = int(answer.layers_run.max())
            points = [n for n in layers if n <= deepest and (measure != "state" or n > 1)]
            assert reads.found == ["tolist"] * len(points)
