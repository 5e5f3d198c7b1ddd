"""Early exit under a scripted rule: against a cache-free decode, and its costs by hand."""

import random

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.costs import flops
from methods.engine.cache import Prompts
from methods.engine.early_exit import Answer, leave_singly, leave_together
from methods.engine.ledger import Ledger, Sums, Traffic
from methods.engine.lockstep import Lockstep
from tests.engine.plain_exit import HostReads, PlainRow

TOLERANCE = 1e-4
LAYERS, NEW = 6, 8
PROMPTS = [3, 9, 1, 6]
LOOKS = {"a rule that computes logits": True, "a rule that does not": False}
looks = pytest.mark.parametrize("with_logits", LOOKS.values(), ids=LOOKS)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture
def transformer(shape_name, tiny_transformer):
    return tiny_transformer(shape_name, num_layers=LAYERS)


def _scripts():
    """Layers at which each row leaves, per step: deep and shallow in turn, rows differing."""
    draw, rows = random.Random(5), len(PROMPTS)
    scripts = [[draw.randint(1, LAYERS) for _ in range(rows)] for _ in range(NEW)]
    # First none leaves, then all at once, then at both ends.
    scripts[:3] = [[LAYERS] * rows, [1] * rows, [1, LAYERS] * (rows // 2)]
    assert {depth for script in scripts for depth in script} == set(range(1, LAYERS + 1))
    return scripts


def _rule(model, script, with_logits, asked=None):
    """A row may leave from its layer on; exits are behind every layer."""

    def rule(depth, x, before, at, rows):
        assert len(x) == len(before) == len(at.ids) == len(rows)
        if asked is not None:
            asked.append((depth, list(rows)))
        leaves = torch.tensor([script[row] <= depth for row in rows])
        return Answer(leaves, model.head(x, at) if with_logits else None)

    return rule


def _decode(model, rows, prompt_lengths, steps, leave):
    """Feeds given ids; ``leave(step, x, positions, cache)`` does the layers. Cache and answers."""
    prompts = Prompts.of([row[:length] for row, length in zip(rows, prompt_lengths, strict=True)])
    cache, lockstep, found = model.new_cache(prompts, steps), None, []
    model.head(model.prefill(prompts, cache))
    model.ledger.close_round()
    lockstep = Lockstep(model, cache)
    for step in range(steps):
        positions = lockstep.advance(None)
        ids = [[row[length + step]] for row, length in zip(rows, prompt_lengths, strict=True)]
        found.append(leave(step, model.embed(torch.tensor(ids), positions), positions, cache))
        model.ledger.close_round()
    return cache, found


@pytest.fixture
def singly(transformer, bind, make_prompts):
    """A scripted decode, and the same rows written out plainly with their logits."""

    def run(with_logits):
        model, scripts = bind(transformer), _scripts()
        rows = make_prompts([length + NEW for length in PROMPTS], seed=1)

        def leave(step, x, positions, cache):
            rule = _rule(model, scripts[step], with_logits)
            return leave_singly(model, x, positions, cache, rule)

        cache, found = _decode(model, rows, PROMPTS, NEW, leave)
        depths = list(zip(*scripts, strict=True))
        return model, cache, found, *_plainly(transformer, rows, PROMPTS, depths)

    return run


def _plainly(transformer, rows, prompt_lengths, depths):
    """Each row for itself, leaving at its ``depths[row][step]``; PlainRows and logits (B, N, V)."""
    plain, logits = [], []
    for ids, length, layers in zip(rows, prompt_lengths, depths, strict=True):
        row = PlainRow(transformer, ids[:length])
        plain.append(row)
        for token, depth in zip(ids[length:], layers, strict=True):
            row.start(token)
            while row.depth < depth:
                row.run()
            logits.append(row.leave())
    return plain, torch.stack(logits).unflatten(0, (len(rows), -1))


@looks
def test_rows_that_leave_at_different_layers_equal_a_cache_free_decode(singly, with_logits):
    _, _, found, _, expected = singly(with_logits)
    logits = torch.cat([left.logits for left in found], dim=1)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)
    assert [left.depths for left in found] == [left.run for left in found] == _scripts()
    # The depth matters: a row's logits are not those of its other depths.
    assert (logits[:, 0] - logits[:, 1]).abs().max() > 0.1


def test_every_layer_holds_every_position_projected_from_the_state_that_was_copied(singly):
    _, cache, _, plain, _ = singly(with_logits=True)
    for index, (row, offset) in enumerate(zip(plain, cache.offsets, strict=True)):
        length = PROMPTS[index] + NEW
        for layer in range(LAYERS):
            assert cache.written[layer, index, offset : offset + length].all()
            held = (
                cache.layers[layer][:, index, :, offset : offset + length]
                .flatten(0, 1)
                .transpose(0, 1)
            )
            by_hand = torch.cat(row.keys_and_values(layer), dim=1)
            torch.testing.assert_close(held, by_hand, atol=TOLERANCE, rtol=0)
    assert not cache.layers[0][..., max(PROMPTS) + NEW :, :].any()


def test_copied_keys_are_the_upper_layers_own_of_the_exit_state_at_the_tokens_own_position(
    tiny_transformer, bind
):
    # One token, out behind layer 2, written out once more from the checkpoint's matrices.
    name = "a Llama with grouped heads"
    transformer = tiny_transformer(name, num_layers=LAYERS)
    model, states = bind(transformer), {}

    def leave(step, x, positions, cache):
        def rule(depth, x, before, at, rows):
            states[depth] = x[0, 0]
            return Answer(torch.tensor([depth == 2]))

        return leave_singly(model, x, positions, cache, rule)

    cache, _ = _decode(model, [[2, 7, 9, 11]], [3], 1, leave)
    angles = 3 / 1e4 ** (torch.arange(0, 8, 2) / 8)
    for layer in range(2, LAYERS):
        block, state = transformer.blocks[layer], states[2]
        normed = state / (state.square().mean() + transformer.shape.norm_eps).sqrt()
        keys = block.qkv.weight[32:48] @ (normed * block.attention_norm.weight)
        for head, key in enumerate(keys.view(2, 8)):
            first, second = key[:4], key[4:]
            turned = (
                first * angles.cos() - second * angles.sin(),
                second * angles.cos() + first * angles.sin(),
            )
            held = cache.layers[layer][0, 0, head, 3]
            torch.testing.assert_close(held, torch.cat(turned), atol=1e-5, rtol=0)


@looks
def test_a_batch_that_leaves_together_equals_a_cache_free_decode(
    transformer, bind, make_prompts, with_logits
):
    model, scripts = bind(transformer), [[1, 3, 2, 1], [6, 1, 1, 1], [1, 1, 1, 1], [2, 5, 4, 5]]
    rows = make_prompts([length + 4 for length in PROMPTS], seed=2)

    def leave(step, x, positions, cache):
        rule = _rule(model, scripts[step], with_logits)
        return leave_together(model, x, positions, cache, rule, None)

    cache, found = _decode(model, rows, PROMPTS, 4, leave)
    deepest = [3, 6, 1, 5]
    assert [left.run for left in found] == [[depth] * 4 for depth in deepest]
    assert [left.depths for left in found] == scripts
    _, expected = _plainly(transformer, rows, PROMPTS, [deepest] * 4)
    logits = torch.cat([left.logits for left in found], dim=1)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)
    assert cache.written[:, :, max(PROMPTS) : max(PROMPTS) + 4].all()


@pytest.fixture
def opt(tiny_transformer, bind):
    """Four layers of width 32, MLP of 80, 61 rows in the head."""
    return bind(tiny_transformer("an OPT"), checked_cache=False)


def _one_step(model, script, leave, lengths=(2, 5, 3)):
    model.ledger, rows = Ledger(), [[2] + [5] * length for length in lengths]
    _, (left,) = _decode(model, rows, lengths, 1, lambda _, *given: leave(model, script, *given))
    ledger, batch = model.ledger, list(range(len(lengths)))
    (required,) = ledger.required([[], batch], [None, left.depths])[1:]
    return left, ledger.executed()[1], required, ledger.traffic()[1]


def _leave_with_heads(model, script, *given):
    return leave_singly(model, *given, _rule(model, script, with_logits=True))


def _checking(model, script):
    def rule(depth, x, before, at, rows):
        leaves = torch.tensor([script[row] <= depth for row in rows])
        return Answer(model.check(lambda: leaves, at))

    return rule


def test_only_rows_that_have_not_left_are_asked(opt):
    asked = []

    def leave(model, script, *given):
        return leave_singly(model, *given, _rule(model, script, False, asked))

    _one_step(opt, [1, 4, 2], leave)
    assert asked == [(1, [0, 1, 2]), (2, [1, 2]), (3, [1])]


def test_costs_of_rows_that_leave_singly_by_hand_where_heads_are_the_check(opt):
    left, executed, required, traffic = _one_step(opt, [1, 4, 2], _leave_with_heads)
    assert left.depths == [1, 4, 2]
    # Blocks of 3, 2, 1 and 1 rows over 6 slots; keys and values of 1, 2 and 2 rows that have left;
    # heads of 3, 2 and 1 rows as checks, and the last row's own: no row's logits twice.
    assert executed == Sums(7, 7 * 6, 7, 5, 3 + 2 + 1 + 1, 3, 0)
    # The rows see 3, 6 and 4 keys of their own, in 1, 4 and 2 layers.
    assert required == Sums(7, 1 * 3 + 4 * 6 + 2 * 4, 7, 3 + 2, 1 + 4 + 2, 3, 0)
    assert traffic == Traffic(4, 4, 3, 4, 1, 7 * 6, 3 * 4)
    assert flops(executed, opt.shape) == 7 * 18_432 + 42 * 128 + 5 * 4_096 + 7 * 3_904
    # Rows 0 and 2 alone.
    (live,) = opt.ledger.required([[], [0, 2]], [None, left.depths])[1:]
    assert live == Sums(3, 3 + 8, 3, 5, 3, 2, 0)


def test_costs_of_rows_that_leave_singly_by_hand_where_checks_need_no_head(opt):
    def leave(model, script, *given):
        return leave_singly(model, *given, _checking(model, script))

    _, executed, required, traffic = _one_step(opt, [1, 4, 2], leave)
    # One head for all rows, at the end; checks of 3, 2 and 1 rows.
    assert executed == Sums(7, 7 * 6, 7, 5, 3, 3, 3 + 2 + 1)
    assert required == Sums(7, 3 + 24 + 8, 7, 5, 3, 3, 1 + 3 + 2)
    assert traffic == Traffic(4, 4, 3, 1, 1, 7 * 6, 3 * 4)
    assert flops(executed, opt.shape) == 7 * 18_432 + 42 * 128 + 5 * 4_096 + 3 * 3_904 + 6 * 64


def test_costs_of_a_batch_that_leaves_together_by_hand(opt):
    def with_heads(model, script, *given):
        return leave_together(model, *given, _rule(model, script, with_logits=True), None)

    left, executed, required, traffic = _one_step(opt, [1, 3, 2], with_heads)
    assert (left.run, left.depths) == ([3, 3, 3], [1, 3, 2])
    assert executed == Sums(9, 9 * 6, 9, 3, 9, 3, 0)
    assert required == Sums(6, 1 * 3 + 3 * 6 + 2 * 4, 6, 3, 1 + 3 + 2, 3, 0)
    assert traffic == Traffic(3, 3, 1, 3, 1, 9 * 6, 3 * 4)


def test_costs_of_a_batch_that_leaves_together_by_hand_where_checks_need_no_head(opt):
    def with_checks(model, script, *given):
        return leave_together(model, *given, _checking(model, script), None)

    _, executed, required, traffic = _one_step(opt, [1, 3, 2], with_checks)
    assert executed == Sums(9, 9 * 6, 9, 3, 3, 3, 9)
    assert required == Sums(6, 3 + 18 + 8, 6, 3, 3, 3, 1 + 3 + 2)
    assert traffic == Traffic(3, 3, 1, 1, 1, 9 * 6, 3 * 4)


@looks
@pytest.mark.parametrize("depth", [1, 4], ids=["behind the first layer", "never"])
def test_rows_that_all_leave_alike_cost_one_rectangle(opt, with_logits, depth):
    def leave(model, script, *given):
        return leave_singly(model, *given, _rule(model, script, with_logits))

    _, executed, required, traffic = _one_step(opt, [depth] * 3, leave, lengths=(5, 5, 5))
    looks = min(depth, 3) * with_logits + (depth == 4 or not with_logits)
    assert executed == required
    assert executed == Sums(3 * depth, 18 * depth, 3 * depth, 3 * (4 - depth), 3 * looks, 3, 0)
    assert traffic == Traffic(depth, depth, 4 - depth, looks, 1, 18 * depth, 12)


@looks
def test_flops_of_rows_that_leave_singly_equal_those_of_torchs_counter(
    transformer, bind, with_logits
):
    model, script = bind(transformer, checked_cache=False), [1, 6, 3, 2]

    def counted(step, x, positions, cache):
        rule = _rule(model, script, with_logits)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            leave_singly(model, x, positions, cache, rule)
        return counter.get_total_flops()

    rows = [[2] + [5] * length for length in PROMPTS]
    _, (expected,) = _decode(model, rows, PROMPTS, 1, counted)
    ran = model.ledger.executed()[1]
    # The embedding stands before what is counted.
    embeds = 2 * ran.embed_positions * 20 * 32 if model.shape.projects_embedding else 0
    assert flops(ran, model.shape) == expected + embeds


@looks
@pytest.mark.parametrize("script", [[1, 4, 2], [3, 1, 3], [1, 1, 1], [4, 4, 4]], ids=str)
def test_the_host_reads_once_at_each_depth_at_which_somebody_is_asked(opt, with_logits, script):
    def counted(leave):
        def run(model, script, *given):
            with HostReads() as reads:
                left = leave(model, *given, _rule(model, script, with_logits))
            found.append(reads.found)
            return left

        return run

    found = []
    live = torch.tensor([True] * 3)
    _one_step(opt, script, counted(leave_singly))
    _one_step(opt, script, counted(lambda *given: leave_together(*given, live)))
    assert found == [["tolist"] * min(max(script), 3)] * 2
