"""Legs over batches on a scripted clock: order, warm-ups, repeats, what times are divided by."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from bench import measure
from bench.decoding import StopRule
from bench.errors import InvalidRunError
from bench.measure import Measurer, Plan, Runner
from bench.meters import clock as clock_module
from bench.meters.device import CpuDevice
from bench.promise import Machine
from bench.schema import Difference, batch_from, plain
from bench.summary import summarise
from bench.tasks.contract import Example
from methods.contract import Round
from methods.engine.sampling import Greedy

EOS = 2
PROMPT_S, ROUND_S, FIRST_CALL_S = 0.2, 0.05, 1.0


class FakeTime:
    """Time that passes only where a method says so."""

    now = 100.0

    def perf_counter(self):
        return self.now


class Scripted:
    """Rounds of written-out ids, each of a stated length; the first decode of all costs more."""

    def __init__(self, time, rounds, round_s=ROUND_S):
        self.time, self.script, self.round_s, self.decodes = time, rounds, round_s, 0

    def decode(self, model, prompts, limits):
        self.decodes += 1
        self.time.now += FIRST_CALL_S if self.decodes == 1 else 0.0
        for index, ids in enumerate(self.script):
            self.time.now += self.round_s if index else PROMPT_S
            yield Round(torch.tensor([ids] * len(prompts.lengths)), 1)
        raise AssertionError("a round was asked for that is not written")


@pytest.fixture
def time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "time", fake)
    return fake


def measurer(runners, limit=5, **plan):
    settings = {"repeats": 2, "warmups": 1, "timed_batches": 2} | plan
    model = SimpleNamespace(ledger=None, options=SimpleNamespace(device="cpu"), forms_made=0)
    return Measurer(
        {name: Runner(method, model) for name, method in runners.items()},
        Plan(
            rule=StopRule(limit, (EOS,)),
            chooser=lambda numbers: Greedy(),
            decode_text=lambda ids: " ".join(map(str, ids)),
            scores={},
            **settings,
        ),
        CpuDevice(),
    )


def measured(runners, batches=1, rows=1, **plan):
    examples = [Example(str(row), "", ("",)) for row in range(rows)]
    made = measurer(runners, **plan)
    return [made.batch(index, examples, [[EOS, 5]] * rows) for index in range(batches)]


def row_of(records, shape):
    shapes = dict.fromkeys(records[0].legs, shape)
    return summarise(records, shapes, [], machine=Machine("float32"), margin=0.01)


ONE_EACH = [[7], [6], [5], [4], [EOS]]


def test_the_cost_of_a_first_call_is_kept_apart(time):
    (record,) = measured({"method": Scripted(time, ONE_EACH)})
    leg = record.legs["method"]
    assert [t.ttft_s for t in leg.timings] == pytest.approx([PROMPT_S] * 2)
    assert [t.ttft_s for t in leg.warmups] == pytest.approx([PROMPT_S + FIRST_CALL_S])


def test_each_number_of_rows_is_warmed_up_once(time):
    method = Scripted(time, ONE_EACH)
    made = measurer({"method": method}, timed_batches=9)
    example = Example("0", "", ("",))
    warmed = [
        len(made.batch(index, [example] * rows, [[EOS]] * rows).legs["method"].warmups)
        for index, rows in enumerate((2, 2, 1, 2))
    ]
    assert warmed == [1, 0, 1, 0]


def test_legs_take_turns_at_being_first(time):
    legs = {name: Scripted(time, ONE_EACH) for name in ("method", "baseline")}
    records = measured(legs, batches=2, repeats=3)
    orders = [order for record in records for order in record.order]
    assert all(sorted(order) == ["baseline", "method"] for order in orders)
    assert [order[0] for order in orders] == [
        *("method", "baseline", "method"),
        *("baseline", "method", "baseline"),
    ]


def test_a_round_of_several_tokens_is_one_round_and_that_many_tokens(time, tiny_shape):
    several = Scripted(time, [[7], [6, 5, 4, 3]])
    single = Scripted(time, [[7], [6], [5], [4], [3]])
    records = measured({"method": several, "baseline": single})
    row = row_of(records, tiny_shape("an OPT"))
    assert records[0].legs["method"].rounds == 2
    # 0.05 s for four tokens; the baseline needs 0.05 s for each.
    assert row["tpot_s"] == pytest.approx(ROUND_S / 4)
    assert row["decode_tokens_per_s"] == pytest.approx(4 / ROUND_S)
    assert row["speedup"] == pytest.approx(4.0)


def test_a_method_that_ends_early_is_not_credited_for_what_it_leaves_out(time, tiny_shape):
    early = Scripted(time, [[7], [EOS]])
    full = Scripted(time, ONE_EACH)
    row = row_of(measured({"method": early, "baseline": full}), tiny_shape("an OPT"))
    # A quarter of the time for a quarter of the tokens.
    assert row["speedup"] == pytest.approx(1.0)


def test_a_profile_is_a_pass_of_its_own(time, tiny_shape):
    method = Scripted(time, ONE_EACH)
    (record,) = measured({"method": method}, profile=True, repeats=3)
    leg = record.legs["method"]
    assert method.decodes == 1 + 3 + 1
    assert len(leg.timings) == 3
    assert leg.round_s == pytest.approx([PROMPT_S] + [ROUND_S] * 4)
    assert row_of([record], tiny_shape("an OPT"))["round_s"] == pytest.approx(ROUND_S)


def test_rounds_are_not_timed_unless_asked_for(time):
    (record,) = measured({"method": Scripted(time, ONE_EACH)})
    assert record.legs["method"].round_s is None


def test_a_batch_for_quality_alone_is_decoded_once_and_not_timed(time):
    method = Scripted(time, ONE_EACH)
    records = measured({"method": method}, batches=3, timed_batches=1, profile=True)
    assert method.decodes == 1 + 2 + 1 + 1 + 1
    assert [len(record.legs["method"].timings) for record in records] == [2, 0, 0]
    assert records[1].legs["method"].round_s is None


def test_a_record_comes_back_from_its_json_form_as_it_was(time):
    def as_json(value):
        if isinstance(value, dict):
            return {key: as_json(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [as_json(each) for each in value]
        return as_json(plain(value)) if hasattr(value, "__slots__") else value

    (record,) = measured({"method": Scripted(time, ONE_EACH)}, profile=True)
    assert batch_from(as_json(record)) == record


def test_time_only_goes_forward(time):
    (record,) = measured({"method": Scripted(time, ONE_EACH)})
    ends = [t.ttft_s + t.decode_s for t in record.legs["method"].timings]
    assert all(end > 0 for end in ends)
    assert all(a == pytest.approx(b) for a, b in pairwise(ends))


class FakeTies:
    def __init__(self, gap):
        self.gap = gap

    def differences(self, dense, examples, rows, found, expected, device):
        return [Difference(examples[0].id, 1, self.gap)] if found != expected else []


def _lossless(time, monkeypatch, gap, ids, dtype=torch.float32):
    monkeypatch.setattr(measure, "ties", FakeTies(gap))
    made = measurer(
        {"method": Scripted(time, ids), "own_dense": Scripted(time, ONE_EACH)},
        reference="own_dense",
    )
    for runner in made.runners.values():
        runner.model.options.dtype = dtype
    return made.batch(0, [Example("e7", "", ("",))], [[EOS]])


def test_a_lossless_method_with_other_ids_than_a_tie_explains_is_invalid(time, monkeypatch):
    with pytest.raises(InvalidRunError, match=r"e7 at token 1 \(0.5\)"):
        _lossless(time, monkeypatch, 0.5, [[7], [9], [5], [4], [EOS]])


def test_a_tie_is_kept_in_the_record_and_so_is_any_difference_of_a_coarser_dtype(time, monkeypatch):
    other = [[7], [9], [5], [4], [EOS]]
    assert _lossless(time, monkeypatch, 1e-5, other).differences == [Difference("e7", 1, 1e-5)]
    coarse = _lossless(time, monkeypatch, 0.5, other, dtype=torch.bfloat16)
    assert coarse.differences == [Difference("e7", 1, 0.5)]
    assert _lossless(time, monkeypatch, 0.5, ONE_EACH).differences == []


def test_a_pass_in_which_something_was_compiled_tells_no_time(time):
    class Compiling(Scripted):
        def decode(self, model, prompts, limits):
            # Not in the warm-up: a later batch may need what no earlier one did.
            if self.decodes in (1, 3):
                model.forms_made += 1
                self.time.now += 100.0
            yield from super().decode(model, prompts, limits)

    method = Compiling(time, [[5], [6], [EOS]])
    (record,) = measured({"method": method}, warmups=1, repeats=2)
    for found in record.legs["method"].timings:
        assert (found.ttft_s, found.decode_s) == pytest.approx((PROMPT_S, 2 * ROUND_S))
    # A warm-up, two passes thrown away, two timed.
    assert method.decodes == 5
