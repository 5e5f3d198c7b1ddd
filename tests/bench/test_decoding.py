"""The driver against a method whose every Round is written out: stops, cuts, counts, clock."""

from types import SimpleNamespace

import pytest
import torch

from bench.decoding import StopRule, Stops, cut, decode
from bench.meters import clock as clock_module
from bench.meters.device import CpuDevice
from methods.contract import Round
from methods.engine.cache import Prompts
from methods.engine.ledger import Extent, Sums
from methods.engine.sampling import Greedy

EOS = 2
NUM_LAYERS = 3


class Scripted:
    """Yields written-out Rounds, each charged as one block per layer; fails beyond its script."""

    def __init__(self, rounds, work=lambda: None):
        self.script, self.work = rounds, work
        self.live, self.given, self.closed = [], 0, False

    def decode(self, model, prompts, limits):
        # Held, so that it is not closed by being forgotten.
        self.generator = self.rounds(model, prompts, limits)
        return self.generator

    def rounds(self, model, prompts, limits):
        try:
            for latest in self.script:
                self.work()
                rows, new = latest.ids.shape
                extent = Extent(rows, new, 7, None, (7,) * rows)
                for layer in range(NUM_LAYERS):
                    model.ledger.charge("block", layer, extent)
                self.given += 1
                self.live.append((yield latest))
            raise AssertionError("a round was asked for that is not written")
        finally:
            self.closed = True


class LateDevice(CpuDevice):
    """Reads back one round late, as a GPU with its queue."""

    lag = 1


class BrokenDevice(CpuDevice):
    def read_back(self, value):
        raise RuntimeError("the device fell off the bus")


def one_each(*columns, **more):
    """Rounds of one token per row; each column holds the rows' tokens."""
    return [Round(torch.tensor(column)[:, None], NUM_LAYERS, **more) for column in columns]


def several(ids, counts=None, **more):
    counts = None if counts is None else torch.tensor(counts)
    return Round(torch.tensor(ids), NUM_LAYERS, counts, **more)


def run(rounds, rule, device=None, **script):
    method = Scripted(rounds, **script)
    prompts = Prompts.of([[EOS, 5]] * len(rounds[0].ids))
    model = SimpleNamespace(ledger=None)
    decoded = decode(method, model, prompts, rule, Greedy(), device or CpuDevice())
    return decoded, method


STOPS = {
    # name: (rounds, limit, kept ids, rounds asked for)
    "EOS first in every row": (one_each([EOS, EOS]), 5, [[EOS], [EOS]], 1),
    "EOS last": (one_each([8, 9], [7, 6], [EOS, EOS]), 3, [[8, 7, EOS], [9, 6, EOS]], 3),
    "EOS at different rounds": (
        one_each([EOS, 9], [7, 6], [5, EOS]),
        9,
        [[EOS], [9, 6, EOS]],
        3,
    ),
    "EOS again behind EOS": (one_each([EOS, 9], [EOS, EOS]), 9, [[EOS], [9, EOS]], 2),
    "EOS never": (one_each([8], [7], [6]), 3, [[8, 7, 6]], 3),
    "limit 1": (one_each([8, 9]), 1, [[8], [9]], 1),
    "EOS inside a round of several tokens": (
        [*one_each([8]), several([[7, EOS, 6]])],
        9,
        [[8, 7, EOS]],
        2,
    ),
    "limit inside a round of several tokens": (
        [*one_each([8]), several([[7, 6, 5]])],
        3,
        [[8, 7, 6]],
        2,
    ),
    "EOS in the part of a round that is not the row's": (
        [
            *one_each([8, 9]),
            several([[7, EOS], [6, 5]], [1, 2]),
            several([[4, 4], [EOS, 3]], [2, 1]),
            several([[EOS, 3], [3, 3]], [1, 1]),
        ],
        9,
        [[8, 7, 4, 4, EOS], [9, 6, 5, EOS]],
        4,
    ),
    "rows reach the limit at different rounds": (
        [
            *one_each([8, 9]),
            several([[7, 6, 5], [4, 3, 3]], [3, 1]),
            several([[3, 3, 3], [5, 6, 3]], [1, 2]),
        ],
        4,
        [[8, 7, 6, 5], [9, 4, 5, 6]],
        3,
    ),
}


@pytest.mark.parametrize("name", STOPS)
def test_rows_end_with_their_first_eos_or_at_the_limit(name):
    rounds, limit, kept, asked = STOPS[name]
    decoded, method = run(rounds, StopRule(limit, (EOS,)))
    assert decoded.ids == kept
    assert decoded.rounds == method.given == asked == len(rounds)
    assert [len(row) for row in decoded.layers] == [len(row) for row in kept]
    for row in decoded.ids:
        assert row.count(EOS) <= 1
        assert EOS not in row[:-1]


@pytest.mark.parametrize("device", [CpuDevice(), LateDevice()], ids=["at once", "one round late"])
def test_fixed_length_ignores_eos(device):
    rounds = one_each([EOS, 8], [7, EOS], [EOS, EOS])
    decoded, method = run(rounds, StopRule(3, ()), device)
    assert decoded.ids == [[EOS, 7, EOS], [8, EOS, EOS]]
    assert decoded.rounds == 3
    # Nothing is read back: no row is ever told to have ended.
    assert method.live == [None, None]


def test_every_stop_id_stops():
    decoded, _ = run(one_each([8, 8], [4, EOS]), StopRule(9, (EOS, 4)))
    assert decoded.ids == [[8, 4], [8, EOS]]


LATE = {
    name: (rounds, kept)
    for name, (rounds, _, kept, _) in STOPS.items()
    if "limit" not in name and name != "EOS never"
}


@pytest.mark.parametrize("name", LATE)
def test_reading_back_late_costs_a_round_and_changes_no_kept_token(name):
    rounds, kept = LATE[name]
    extra = several([[9, EOS]] * len(kept))
    soon, _ = run(rounds, StopRule(99, (EOS,)))
    late, method = run([*rounds, extra], StopRule(99, (EOS,)), LateDevice())
    assert late.ids == soon.ids == kept
    assert late.layers == soon.layers
    assert late.rounds == method.given == soon.rounds + 1
    # What nobody keeps runs, but was not asked for by a live row.
    assert late.decode_required == soon.decode_required
    assert late.decode_executed.mlp_positions > soon.decode_executed.mlp_positions


def test_a_known_limit_needs_no_reading_back():
    decoded, _ = run(one_each([8], [7], [6]), StopRule(3, (EOS,)), LateDevice())
    assert decoded.rounds == 3


def test_the_method_hears_which_rows_are_live():
    rounds = one_each([8, EOS, 8], [EOS, 7, 7], [5, 5, 6], [5, 5, EOS])
    _, method = run(rounds, StopRule(9, (EOS,)))
    heard = [live.tolist() for live in method.live]
    assert heard == [[True, False, True], [False, False, True], [False, False, True]]


def test_live_stays_unknown_while_nothing_can_have_ended():
    stops = Stops(StopRule(9, ()), 2, CpuDevice())
    assert stops.goes_on(one_each([8, 8])[0])
    assert stops.live is None


def test_required_counts_live_rows_and_the_layers_they_asked_for():
    rounds = [
        *one_each([8, 8, 8]),
        *one_each([7, EOS, 7]),
        *one_each([6, 9, 6], layers_needed=[3, 3, 1]),
        *one_each([EOS, 9, EOS]),
    ]
    decoded, _ = run(rounds, StopRule(9, (EOS,)))
    # Live rows: 3, then 2 (3 + 1 layers), then 2; the prompt's round is counted apart.
    positions = NUM_LAYERS * 3 + (3 + 1) + NUM_LAYERS * 2
    assert decoded.decode_required == Sums(positions, 7 * positions, positions)
    ran = NUM_LAYERS * 3 * 3
    assert decoded.decode_executed == Sums(ran, 7 * ran, ran)
    assert decoded.prompt_executed == Sums(ran // 3, 7 * ran // 3, ran // 3)


def test_only_the_first_round_leaves_nothing_to_decode():
    decoded, _ = run(one_each([EOS]), StopRule(9, (EOS,)))
    assert decoded.decode_executed == decoded.decode_required == Sums()
    assert decoded.speculation is None


def test_layers_of_kept_tokens_are_each_tokens_own():
    depths = torch.tensor([[1, 2, 3], [4, 5, 6]])
    second = Round(torch.tensor([[7, EOS, 9], [6, 5, 4]]), depths, torch.tensor([3, 2]))
    decoded, _ = run([*one_each([8, 8]), second], StopRule(3, (EOS,)))
    assert decoded.ids == [[8, 7, EOS], [8, 6, 5]]
    assert decoded.layers == [[NUM_LAYERS, 1, 2], [NUM_LAYERS, 4, 5]]


def test_drafts_are_summed_over_the_rounds_after_the_first():
    def counted(ids, counts, drafted, accepted):
        more = {"drafted": torch.tensor(drafted), "accepted": torch.tensor(accepted)}
        return several(ids, counts, **more)

    rounds = [
        *one_each([8, 8]),
        counted([[7, 6, 5], [4, 4, 4]], [3, 1], [2, 2], [2, 0]),
        counted([[EOS, 1, 1], [4, EOS, 4]], [1, 2], [2, 1], [0, 1]),
    ]
    decoded, _ = run(rounds, StopRule(9, (EOS,)))
    found = decoded.speculation
    # Drafts of 2, 2, 2 and 1 tokens, of which 2, 0, 0 and 1 were accepted.
    assert (found.verifications, found.drafted, found.accepted) == (4, 7, 3)
    assert found.offered_at == [4, 3]
    assert found.accepted_at == [2, 1]
    # A round of several tokens is one round.
    assert decoded.rounds == 3
    assert [len(row) for row in decoded.ids] == [5, 4]


def test_drafts_of_a_finished_row_count_for_nothing():
    def counted(ids, counts, drafted, accepted):
        more = {"drafted": torch.tensor(drafted), "accepted": torch.tensor(accepted)}
        return several(ids, counts, **more)

    rounds = [
        *one_each([8, EOS]),
        counted([[7, 6, 5], [4, 4, 4]], [3, 1], [2, 2], [2, 0]),
        counted([[EOS, 1, 1], [4, 4, 4]], [1, 3], [2, 2], [0, 2]),
    ]
    decoded, _ = run(rounds, StopRule(9, (EOS,)))
    found = decoded.speculation
    assert (found.verifications, found.drafted, found.accepted) == (2, 4, 2)


CUTS = {
    "no id": ([], 3, 0),
    "fewer than the limit": ([8, 7], 3, 2),
    "exactly the limit": ([8, 7, 6], 3, 3),
    "EOS first": ([EOS, 7], 3, 1),
    "EOS at the limit": ([8, 7, EOS], 3, 3),
    "EOS behind the limit": ([8, 7, 6, EOS], 3, 3),
    "two EOS": ([8, EOS, EOS], 3, 2),
}


@pytest.mark.parametrize("name", CUTS)
def test_cut_keeps_up_to_the_first_stop_or_the_limit(name):
    ids, limit, kept = CUTS[name]
    assert cut(ids, StopRule(limit, (EOS,))) == kept


def test_the_generator_is_closed_when_all_rows_are_finished():
    _, method = run(one_each([8], [EOS], [9]), StopRule(9, (EOS,)))
    assert method.closed
    assert method.given == 2


def test_the_generator_is_closed_when_the_driver_fails():
    method = Scripted(one_each([8], [7]))
    model, prompts = SimpleNamespace(ledger=None), Prompts.of([[EOS, 5]])
    with pytest.raises(RuntimeError, match="fell off"):
        decode(method, model, prompts, StopRule(9, (EOS,)), Greedy(), BrokenDevice())
    assert method.closed
    assert method.given == 1


def test_an_error_of_the_method_comes_through():
    with pytest.raises(AssertionError, match="not written"):
        run(one_each([8], [7]), StopRule(9, (EOS,)))


def test_a_row_with_a_bad_logit_is_named():
    class Poisoned(Scripted):
        def rounds(self, model, prompts, limits):
            logits = torch.zeros(3, 1, 9)
            logits[1, 0, 4] = torch.nan
            limits.chooser.choose(logits, 0)
            yield from super().rounds(model, prompts, limits)

    method, model = Poisoned(one_each([8, 8, 8])), SimpleNamespace(ledger=None)
    prompts = Prompts.of([[EOS]] * 3)
    decoded = decode(method, model, prompts, StopRule(1, ()), Greedy(), CpuDevice())
    assert decoded.non_finite_rows == [1]


# ---- the clock ----

HOST_S, WORK_S = 0.001, 0.050


class FakeTime:
    """Host time, and a device that works through a queue of its own."""

    def __init__(self):
        self.now, self.busy_until = 100.0, 0.0

    def perf_counter(self):
        return self.now

    def hand_over(self, seconds=WORK_S):
        """A call that returns at once while the device works on."""
        self.now += HOST_S
        self.busy_until = max(self.busy_until, self.now) + seconds

    def compute(self):
        """A call that works on the host itself."""
        self.now += WORK_S


class FakeDevice(CpuDevice):
    """Work is done only when waited for; no marks in the queue."""

    def __init__(self, time):
        self.time, self.synchronised = time, 0

    def synchronise(self):
        self.synchronised += 1
        self.time.now = max(self.time.now, self.time.busy_until)


class QueueDevice(FakeDevice):
    """The same with marks, as CUDA events give."""

    last = 0.0

    def stamp(self):
        before, self.last = self.last, max(self.time.now, self.time.busy_until)
        seconds = self.last - before
        return lambda: seconds


@pytest.fixture
def time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "time", fake)
    return fake


def test_host_work_is_split_at_the_first_round(time):
    decoded, _ = run(one_each([8], [7], [6]), StopRule(3, ()), CpuDevice(), work=time.compute)
    assert decoded.timing.ttft_s == pytest.approx(WORK_S)
    assert decoded.timing.decode_s == pytest.approx(2 * WORK_S)


@pytest.mark.parametrize("kind", [FakeDevice, QueueDevice])
def test_work_that_the_device_finishes_late_is_inside_the_interval(time, kind):
    device = kind(time)
    decoded, _ = run(one_each([8], [7], [6]), StopRule(3, ()), device, work=time.hand_over)
    whole = decoded.timing.ttft_s + decoded.timing.decode_s
    assert whole == pytest.approx(HOST_S + 3 * WORK_S)
    # Before the start and at the end; no round in between is waited for.
    assert device.synchronised == 2


def test_a_queue_tells_when_the_first_token_was_there(time):
    device = QueueDevice(time)
    decoded, _ = run(one_each([8], [7], [6]), StopRule(3, ()), device, work=time.hand_over)
    assert decoded.timing.ttft_s == pytest.approx(HOST_S + WORK_S)
    assert decoded.timing.decode_s == pytest.approx(2 * WORK_S)


@pytest.mark.parametrize("kind", [FakeDevice, QueueDevice])
def test_work_left_over_from_before_is_outside_the_interval(time, kind):
    time.hand_over(9.0)
    decoded, _ = run(one_each([8]), StopRule(1, ()), kind(time), work=time.hand_over)
    whole = decoded.timing.ttft_s + decoded.timing.decode_s
    assert whole == pytest.approx(HOST_S + WORK_S)


def test_closing_and_counting_are_outside_the_interval(time):
    class SlowToClose(Scripted):
        def rounds(self, model, prompts, limits):
            try:
                yield from super().rounds(model, prompts, limits)
            finally:
                time.compute()

    method, model = SlowToClose(one_each([8]), time.compute), SimpleNamespace(ledger=None)
    prompts, rule = Prompts.of([[EOS]]), StopRule(1, ())
    decoded = decode(method, model, prompts, rule, Greedy(), CpuDevice())
    assert time.now == pytest.approx(100.0 + 2 * WORK_S)
    assert decoded.timing.ttft_s == pytest.approx(WORK_S)
    assert decoded.timing.decode_s == 0.0
