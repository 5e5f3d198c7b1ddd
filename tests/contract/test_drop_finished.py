"""Finished rows leave the batch: what is kept stays the same for every method, and less is run."""

from dataclasses import fields
from itertools import combinations

import pytest
import torch

from bench.costs import flops
from bench.decoding import StopRule, cut, decode
from bench.meters.device import CpuDevice
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.drawing import Warp
from methods.engine.dropping import size, staying
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy, Sampled
from methods.registry import find_params, method_names
from tests.engine.plain_exit import HostReads

METHODS = [name for name in method_names() if find_params(name).ABILITIES.engine == "own"]
# Beside the defaults, what decides by row or lets rows wait for one another.
CASES = {name: (name, {}) for name in METHODS} | {
    "skipdecode by position": ("skipdecode", {"clock": "position", "schedule_length": 16}),
    "calm that exits": ("calm", {"threshold": 0.1}),
    "calm as one batch": ("calm", {"threshold": 0.02, "batch_policy": "all"}),
    "layerskip that stops drafting": ("layerskip", {"exit_layer": 3, "stop_confidence": 0.3}),
}
LENGTHS, NEW, LAYERS = [3, 9, 1, 6, 4, 2, 5], 12, 6
MODELS = ["an OPT", "a Llama with scaled rotary positions and a tied head"]
CHOOSERS = {
    "greedy": lambda rows: Greedy(),
    "sampled": lambda rows: Sampled(5, range(3, 3 + rows), Warp(), NEW),
}


class LateDevice(CpuDevice):
    """Reads back one round late, as a GPU with its queue."""

    lag = 1


@pytest.fixture(params=MODELS)
def transformer(request, tiny_transformer):
    return tiny_transformer(request.param, num_layers=LAYERS)


@pytest.fixture
def decoded(transformer, make_method, make_prompts):
    """``decoded(case, stop_ids, drop, chooser=, device=, lengths=)``, with a checked cache."""

    def make(
        case, stop_ids, drop, *, chooser=CHOOSERS["greedy"], device=None, lengths=LENGTHS, **options
    ):
        name, settings = CASES[case]
        method = make_method(name, transformer.shape, **settings)
        options = {"packed": False, "checked_cache": True} | options
        model = InferenceModel(transformer, Options(**options))
        prompts = Prompts.of(make_prompts(lengths, seed=1))
        rule = StopRule(NEW, tuple(stop_ids), drop)
        made = chooser(len(lengths)) if callable(chooser) else chooser
        return decode(method, model, prompts, rule, made, device or CpuDevice())

    return make


def stops(ids):
    """Two ids by which as many rows as can be end at different steps."""

    def ends(pair):
        return {cut(row, StopRule(NEW, pair)) for row in ids}

    pair = max(
        combinations(sorted({token for row in ids for token in row}), 2),
        key=lambda pair: len(ends(pair)),
    )
    assert len(ends(pair)) >= 3
    return pair


def _equal(one, other, *, layers=True):
    assert one.ids == other.ids
    assert one.decode_required == other.decode_required
    assert one.prompt_executed == other.prompt_executed
    assert one.speculation == other.speculation
    assert one.rounds == other.rounds
    assert one.non_finite_rows == other.non_finite_rows == []
    if layers:
        assert one.layers == other.layers


@pytest.mark.parametrize("device", [CpuDevice(), LateDevice()], ids=["at once", "one round late"])
@pytest.mark.parametrize("chooser", CHOOSERS.values(), ids=CHOOSERS)
@pytest.mark.parametrize("case", CASES)
def test_rows_that_leave_change_nothing_that_is_kept_and_run_less(decoded, case, chooser, device):
    free = decoded(case, (), False, chooser=chooser)
    pair = stops(free.ids)
    held, left = (decoded(case, pair, drop, chooser=chooser, device=device) for drop in (0, 1))
    # A row at the deepest place of a schedule takes its layers along: they ran for all.
    _equal(left, held, layers=case != "skipdecode by position")
    assert left.decode_executed.head_positions < held.decode_executed.head_positions
    assert left.decode_executed.mlp_positions < held.decode_executed.mlp_positions
    for field in fields(left.decode_executed):
        ran, needed = (
            getattr(each, field.name) for each in (left.decode_executed, left.decode_required)
        )
        assert needed <= ran <= getattr(held.decode_executed, field.name)


def test_layers_that_only_a_row_that_left_asked_for_no_longer_run(decoded):
    case = "skipdecode by position"
    pair = stops(decoded(case, (), False).ids)
    held, left = (decoded(case, pair, drop) for drop in (False, True))
    depths = [zip(*rows, strict=True) for rows in zip(left.layers, held.layers, strict=True)]
    assert all(less <= more for row in depths for less, more in row)
    assert sum(map(sum, left.layers)) < sum(map(sum, held.layers))


@pytest.mark.parametrize("options", [{}, {"attention": "products"}], ids=["sdpa", "products"])
def test_what_the_dense_model_runs_is_a_sum_by_hand(decoded, transformer, options):
    pair = stops(decoded("dense", (), False).ids)
    left = decoded("dense", pair, True, checked_cache=False, **options)
    ends, held = [len(row) for row in left.ids], len(LENGTHS)
    rows = pairs = 0
    for made in range(1, max(ends)):
        live = sum(end > made for end in ends)
        held = min(held, next(each for each in (1, 2, 3, 4, 6, 8) if each >= live))
        rows += held
        # Shared slots: those of the longest prompt, and one a step; in buckets, the whole ones.
        keys = max(LENGTHS) + made
        pairs += held * (keys if not options else -(-(keys + 1) // 32) * 32)
    shape, sums = transformer.shape, left.decode_executed
    assert sums.mlp_positions == sums.attention_positions == rows * LAYERS
    assert (sums.attended_pairs, sums.head_positions) == (pairs * LAYERS, rows)
    weights = shape.width * shape.vocab_size * rows
    layer = 2 * shape.width * (shape.query_width + shape.kv_width)
    layer += (3 if shape.gated_mlp else 2) * shape.width * shape.ffn_width
    weights += LAYERS * (layer * rows + 2 * shape.query_width * pairs)
    assert flops(sums, shape) == 2 * weights


@pytest.mark.parametrize("case", CASES)
def test_nothing_leaves_at_fixed_length(decoded, case):
    held, left = (decoded(case, (), drop) for drop in (False, True))
    _equal(left, held, layers=True)
    if find_params(CASES[case][0]).ABILITIES.lossless and case != "dense":
        # Drafts end unequally, and a row at its limit is finished.
        assert left.decode_executed.mlp_positions <= held.decode_executed.mlp_positions
    else:
        assert left.decode_executed == held.decode_executed


@pytest.mark.parametrize("case", CASES)
def test_a_row_alone_has_nobody_to_leave(decoded, case):
    free = decoded(case, (), False, lengths=[5]).ids[0]
    held, left = (decoded(case, free[7:8], drop, lengths=[5]) for drop in (False, True))
    _equal(left, held)
    assert left.decode_executed == held.decode_executed


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("device", [CpuDevice(), LateDevice()], ids=["at once", "one round late"])
def test_rows_that_end_together_leave_nobody_behind(transformer, decoded, case, device):
    # Every token ends its row.
    every = range(transformer.shape.vocab_size)
    held, left = (decoded(case, every, drop, device=device) for drop in (False, True))
    _equal(left, held)
    assert [len(row) for row in left.ids] == [1] * len(LENGTHS)
    assert left.decode_executed == held.decode_executed


class Breaks(Greedy):
    """Spoils the logits of one of the batch's rows once others have left."""

    def __init__(self, row):
        super().__init__()
        self.row = row

    def note(self, logits):
        if self.held is not None:
            logits = logits.clone()
            logits[self.held.index(self.row)] = torch.nan
        super().note(logits)


@pytest.mark.parametrize("case", CASES)
def test_a_bad_logit_of_a_row_that_stayed_is_named_by_its_place_in_the_batch(decoded, case):
    free = decoded(case, (), False).ids
    pair = stops(free)
    ends = [cut(row, StopRule(NEW, pair)) for row in free]
    last = max(range(len(ends)), key=ends.__getitem__)
    assert decoded(case, pair, False, chooser=Breaks(last)).non_finite_rows == []
    assert decoded(case, pair, True, chooser=Breaks(last)).non_finite_rows == [last]


def test_the_host_reads_no_more_often_for_rows_that_leave(decoded):
    pair, reads = stops(decoded("dense", (), False).ids), []
    for drop in (False, True):
        with HostReads() as seen:
            decoded("dense", pair, drop, checked_cache=False)
        reads.append(sorted(seen.found))
    more = len(reads[1]) - len(reads[0])
    # Behind the clock, one look more for each time that rows left.
    assert reads[1].count("tolist") - reads[0].count("tolist") == more <= len(LENGTHS)
    assert len(reads[0]) > len(LENGTHS)


def test_batches_shrink_to_a_few_sizes_and_keep_finished_rows_to_fill_one():
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    assert [size(rows) for rows in range(1, 49)] == [
        next(each for each in sizes if each >= rows) for rows in range(1, 49)
    ]
    for rows, finished, stay in [
        (5, {0}, [1, 2, 3, 4]),
        (6, {0}, [0, 1, 2, 3, 4, 5]),
        (7, {1, 6}, [0, 1, 2, 3, 4, 5]),
        (10, {0, 1, 7}, [0, 2, 3, 4, 5, 6, 8, 9]),
        (4, {0, 2, 3}, [1]),
    ]:
        assert staying([row in finished for row in range(rows)]) == stay
