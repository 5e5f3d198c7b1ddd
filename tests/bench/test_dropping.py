"""The driver lets go of finished rows: when, what it tells whom, and what it counts."""

from types import SimpleNamespace

import pytest
import torch

from bench.decoding import StopRule, decode
from bench.meters.device import CpuDevice
from bench.schema import Speculation
from methods.contract import Round
from methods.engine.cache import Prompts
from methods.engine.dropping import Kept
from methods.engine.ledger import Extent, Sums
from methods.engine.sampling import Greedy

EOS, KEYS = 2, 7


class Scripted:
    """Yields written-out (rows, Round) pairs, each charged as one block; notes what it is sent."""

    def __init__(self, script):
        self.script, self.sent = script, []

    def decode(self, model, prompts, limits):
        for rows, latest in self.script:
            # By the keys that are counted for it a row is known.
            keys = tuple(10**row for row in rows)
            extent = Extent(len(rows), latest.ids.shape[1], KEYS, None, keys)
            model.ledger.charge("block", 0, extent)
            self.sent.append((yield latest))
        raise AssertionError("a round was asked for that is not written")


class LateDevice(CpuDevice):
    """Reads back one round late, as a GPU with its queue."""

    lag = 1


class Noting(Greedy):
    """Notes which rows it was told of."""

    def __init__(self):
        super().__init__()
        self.told = []

    def keep(self, rows):
        self.told.append(list(rows))
        super().keep(rows)


def each(rows, *ending):
    """One token of each row: EOS where it ends, else its number, 10 on. Row 4 asks for no layer."""
    ids = [[EOS if row in ending else 10 + row] for row in rows]
    depths = torch.tensor([[1 + row] for row in rows])
    needed = [0 if row == 4 else 1 for row in rows]
    return rows, Round(torch.tensor(ids), depths, layers_needed=needed)


def run(script, rule, device=None):
    method, chooser = Scripted(script), Noting()
    prompts = Prompts.of([[EOS, 5]] * len(script[0][0]))
    model = SimpleNamespace(ledger=None)
    found = decode(method, model, prompts, rule, chooser, device or CpuDevice())
    return found, method.sent, chooser.told


def plain(sent):
    return [
        (each.rows, each.live.tolist()) if isinstance(each, Kept) else each.tolist()
        for each in sent
    ]


ALL = [0, 1, 2, 3, 4, 5]
IDS = [
    [10, EOS],
    [11, 11, 11, 11, 11, EOS],
    [12, 12, 12, EOS],
    [13, 13, EOS],
    [14, 14, 14, 14, EOS],
    [15, 15, 15, 15, EOS],
]
# What all rows but 4 keep behind the prompt's token, each times its own keys.
REQUIRED = Sums(15, 1 * 1 + 5 * 10 + 3 * 100 + 2 * 1000 + 4 * 100000, 15)


def test_rows_leave_once_they_are_enough_and_are_counted_as_what_they_are():
    script = [
        each(ALL),
        each(ALL, 0),
        # One of six was not enough, two are; then one of four is.
        each(ALL, 0, 3),
        each([1, 2, 4, 5], 2),
        each([1, 4, 5], 4, 5),
        each([1], 1),
    ]
    found, sent, told = run(script, StopRule(9, (EOS,), drop_finished=True))
    assert found.ids == IDS
    assert found.layers == [[1 + row] * len(ids) for row, ids in enumerate(IDS)]
    assert plain(sent) == [
        [True] * 6,
        [False, True, True, True, True, True],
        ((1, 2, 4, 5), [True] * 4),
        ((0, 2, 3), [True] * 3),
        ((0,), [True]),
    ]
    assert told == [[1, 2, 4, 5], [0, 2, 3], [0]]
    ran = 6 + 6 + 4 + 3 + 1
    assert found.decode_executed == Sums(ran, KEYS * ran, ran)
    assert found.decode_required == REQUIRED


def test_what_is_known_a_round_late_is_known_of_the_rows_of_that_round():
    script = [
        each(ALL),
        each(ALL, 0),
        each(ALL, 3),
        each(ALL, 2),
        # Told here that rows 0 and 3 are finished; row 2 is known only when they have left.
        each([1, 2, 4, 5], 4, 5),
        each([1, 4, 5], 1),
        each([1]),
    ]
    found, sent, told = run(script, StopRule(9, (EOS,), drop_finished=True), LateDevice())
    assert found.ids == IDS
    assert plain(sent)[3:] == [
        ((1, 2, 4, 5), [True, False, True, True]),
        ((0, 2, 3), [True, False, False]),
        ((0,), [False]),
    ]
    assert told == [[1, 2, 4, 5], [0, 2, 3], [0]]
    ran = 6 + 6 + 6 + 4 + 3 + 1
    assert found.decode_executed == Sums(ran, KEYS * ran, ran)
    assert found.decode_required == REQUIRED


def test_without_the_option_nobody_leaves():
    script = [each(ALL), each(ALL, 0, 1, 2, 3), each(ALL), each(ALL, 4, 5)]
    found, sent, told = run(script, StopRule(9, (EOS,)))
    assert found.ids[4] == [14, 14, 14, EOS]
    assert plain(sent)[1:] == [[False] * 4 + [True] * 2] * 2
    assert told == []


def _several(rows, ids, counts, drafted, accepted):
    more = {"drafted": torch.tensor(drafted), "accepted": torch.tensor(accepted)}
    return rows, Round(torch.tensor(ids), 1, torch.tensor(counts), **more)


@pytest.mark.parametrize("stop_ids", [(), (EOS,)], ids=["fixed length", "until EOS"])
def test_rows_that_reach_their_limit_leave_and_drafts_are_summed_over_those_held(stop_ids):
    script = [
        each([0, 1, 2]),
        _several([0, 1, 2], [[5, 6, 7], [8, 3, 3], [9, 4, 3]], [3, 1, 2], [2, 2, 2], [2, 0, 1]),
        _several([1, 2], [[7, 3], [8, 3]], [1, 1], [2, 1], [0, 0]),
        _several([1], [[6, 5]], [2], [1], [1]),
    ]
    found, _, told = run(script, StopRule(4, stop_ids, drop_finished=True))
    assert found.ids == [[10, 5, 6, 7], [11, 8, 7, 6], [12, 9, 4, 8]]
    assert told == [[1, 2], [0]]
    assert found.speculation == Speculation(
        verifications=6, drafted=10, accepted=4, offered_at=[6, 4], accepted_at=[3, 1]
    )


def test_at_a_length_that_all_share_nothing_is_read_back():
    script = [each([0, 1], 0), each([0, 1]), each([0, 1])]
    found, sent, told = run(script, StopRule(3, (), drop_finished=True))
    assert (sent, told) == ([None, None], [])
    assert found.ids == [[EOS, 10, 10], [11, 11, 11]]
