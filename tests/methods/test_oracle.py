"""The oracle: exit by hindsight, against a cache-free one; its look ahead costs nothing."""

from itertools import count

import pytest
import torch

from methods.contract import Round
from methods.engine.early_exit import Answer, leave_singly
from methods.engine.lockstep import Lockstep
from methods.engine.sampling import Forced
from methods.oracle.params import ABILITIES, Params, resolve
from tests.engine.plain_exit import PlainRow, Recording

# In float64: rounding is not what is looked for, nor which of two near tokens it prefers.
TOLERANCE = 1e-5
LAYERS, NEW = 6, 8
PROMPTS = [3, 9, 1, 6]
least_layers = pytest.mark.parametrize("least", [1, 4], ids=["from layer 1", "from layer 4"])


@pytest.fixture
def transformer(shape_name, tiny_transformer):
    """Upper layers that add less and less: the last one's choice is made at any depth."""
    model = tiny_transformer(shape_name, num_layers=LAYERS).double()
    with torch.no_grad():
        for layer, block in enumerate(model.blocks):
            for part in (block.out, block.down):
                part.weight.mul_(0.6**layer)
                if part.bias is not None:
                    part.bias.mul_(0.6**layer)
    return model


def _plain_oracle(transformer, prompts, least):
    """Per row: ids, layers and logits (N, V)."""
    for prompt in prompts:
        row = PlainRow(transformer, prompt)
        ids, depths, logits = [int(row.logits.argmax())], [LAYERS], [row.logits]
        while len(ids) < NEW:
            row.start(ids[-1])
            ahead, choices = row.fork(), []
            while ahead.depth < LAYERS:
                ahead.run()
                choices.append(int(transformer.head(ahead.x).argmax()))
            first = next(n for n in range(least, LAYERS + 1) if choices[n - 1] == choices[-1])
            while row.depth < first:
                row.run()
            logits.append(row.leave())
            ids.append(int(logits[-1].argmax()))
            depths.append(first)
        yield ids, depths, torch.stack(logits)


@least_layers
def test_each_token_leaves_at_the_first_layer_that_agrees_with_the_last(
    transformer, least, watch, make_method, make_prompts, drive
):
    watched, chooser = watch(transformer, dtype=torch.float64), Recording()
    method, prompts = (
        make_method("oracle", transformer.shape, min_layer=least),
        make_prompts(PROMPTS),
    )
    decoded = drive(method, watched.model, prompts, NEW, chooser)
    depths = [[LAYERS] * 4, *(answer.layers_run[:, 0].tolist() for answer in decoded.rounds[1:])]
    assert decoded.rounds[0].layers_run == LAYERS
    assert [answer.layers_needed for answer in decoded.rounds[1:]] == depths[1:]
    logits, later = torch.cat(chooser.logits, dim=1), set()
    expected = _plain_oracle(transformer, prompts, least)
    for row, (ids, layers, scores) in enumerate(expected):
        assert decoded.rows[row] == ids
        assert [step[row] for step in depths] == layers
        torch.testing.assert_close(logits[row], scores, atol=TOLERANCE, rtol=0)
        later.update(layers[1:])
    # The bound means something: tokens leave at several depths, and on the whole early.
    assert min(later) == least
    assert len(later) >= (2 if least == 1 else 1)
    assert sum(map(sum, depths[1:])) < LAYERS * 4 * (NEW - 1)


def test_the_first_decoded_token_is_the_dense_one_since_nothing_was_copied_yet(
    transformer, watch, make_method, make_prompts, drive
):
    dense, oracle = (
        drive(
            make_method(name, transformer.shape),
            watch(transformer, dtype=torch.float64).model,
            make_prompts([5, 2, 9, 4, 7, 1, 3, 8], seed=6),
            NEW,
        )
        for name in ("dense", "oracle")
    )
    assert [row[:2] for row in oracle.rows] == [row[:2] for row in dense.rows]


class Knowing:
    """Leaves singly at depths that it was told, and looks at nothing."""

    def __init__(self, depths):
        self.depths = depths

    def decode(self, model, prompts, limits):
        cache = model.new_cache(prompts, limits.max_new_tokens)
        ids = limits.chooser.choose(model.head(model.prefill(prompts, cache)), 0)
        live = yield Round(ids, LAYERS)
        step = Lockstep(model, cache)
        for index in count(1):
            positions, wanted = step.advance(live), self.depths[index]

            def rule(depth, x, before, at, rows, wanted=wanted):
                return Answer(torch.tensor([wanted[row] <= depth for row in rows]))

            left = leave_singly(model, model.embed(ids, positions), positions, cache, rule)
            ids = limits.chooser.choose(left.logits, index)
            live = yield Round(ids, LAYERS)


def test_its_costs_and_its_cache_are_those_of_a_rule_that_knew(
    transformer, watch, make_method, make_prompts, drive
):
    rows = make_prompts([length + NEW for length in PROMPTS], seed=2)
    prompts = [row[:length] for row, length in zip(rows, PROMPTS, strict=True)]
    given = [row[length:] for row, length in zip(rows, PROMPTS, strict=True)]
    looking, knowing = (watch(transformer, dtype=torch.float64) for _ in range(2))
    method, chooser = make_method("oracle", transformer.shape), Forced(given)
    decoded = drive(method, looking.model, prompts, NEW, chooser)
    depths = [answer.layers_needed for answer in decoded.rounds]
    assert len({depth for step in depths[1:] for depth in step}) > 1
    plain = Forced(given)
    drive(Knowing(depths), knowing.model, prompts, NEW, plain)
    one, other = looking.model.ledger, knowing.model.ledger
    assert one.executed() == other.executed()
    assert one.traffic() == other.traffic()
    # No head but that of the layer left, and no check: the look ahead is not charged.
    assert {sums.head_positions for sums in one.executed()} == {4}
    assert {sums.check_positions for sums in one.executed()} == {0}
    # What the look ahead wrote was written over.
    for layer, kept in zip(looking.cache.layers, knowing.cache.layers, strict=True):
        assert torch.equal(layer, kept)
    assert torch.equal(torch.cat(chooser.log_probs, dim=1), torch.cat(plain.log_probs, dim=1))


@pytest.mark.parametrize("layer", [0, 7], ids=["no layer", "too many"])
def test_an_impossible_layer_is_named_with_what_is_allowed(tiny_shape, layer):
    shape = tiny_shape("an OPT", num_layers=6)
    with pytest.raises(ValueError, match=rf"min_layer={layer}: allowed 1\.\.6"):
        resolve(Params(min_layer=layer), shape, {})
    assert resolve(Params(min_layer=6), shape, {}) == Params(min_layer=6)


def test_it_declares_that_it_cannot_be_real():
    assert not ABILITIES.realisable
    assert not ABILITIES.lossless
    assert ABILITIES.whole_prompt
