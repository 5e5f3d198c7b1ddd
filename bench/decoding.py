"""Drives a method's generator: stop rule, cut and count, for every method and the baseline.

Apart, because here and nowhere else is decided which tokens count. A method may overshoot a stop;
what is behind it is cut here, once the clock has stopped. Not here: batches, repeats and order
(``measure.py``).
"""

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from operator import add, or_

import torch
from torch import Tensor

from bench.meters.clock import Stopwatch, Timing
from bench.meters.device import AnyDevice
from bench.schema import Speculation
from methods.contract import Limits, LiveRows, Method, Round
from methods.engine.cache import Prompts
from methods.engine.dropping import Kept, select, staying
from methods.engine.inference import InferenceModel
from methods.engine.ledger import Ledger, Sums, Traffic
from methods.engine.sampling import Chooser


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a row is finished.

    Attributes:
        max_new_tokens: the limit of each row.
        stop_ids: ids that end a row, kept as its last token; empty for fixed length.
        drop_finished: finished rows leave the batch; else they go on computing, for nobody.
    """

    max_new_tokens: int
    stop_ids: tuple[int, ...]
    drop_finished: bool = False


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decode of one batch, cut and counted.

    Attributes:
        ids: kept new ids of each row, the first EOS included.
        layers: layers run for each kept id.
        rounds: rounds in all, the prompt pass included.
        prompt_executed: what ran up to the first Round.
        decode_executed: what ran after it, padded and finished rows included.
        decode_required: what live rows' own rules asked for after it.
        decode_traffic: calls, keys and values of what ran after it.
        timing: the two intervals.
        non_finite_rows: rows with a NaN or infinite logit.
        speculation: of a method that drafts; None for others.
        round_s: seconds of each round; empty unless each was timed.
        first_round: kept tokens of the first Round, per row; None where each row has one, as every
            method of ours gives.
    """

    ids: list[list[int]]
    layers: list[list[int]]
    rounds: int
    prompt_executed: Sums
    decode_executed: Sums
    decode_required: Sums
    decode_traffic: Traffic
    timing: Timing
    non_finite_rows: list[int]
    speculation: Speculation | None = None
    round_s: list[float] = field(default_factory=list)
    first_round: list[int] | None = None


class Stops:
    """Which rows are live, and which are held, without forcing the device to wait.

    Attributes:
        live: what the method is sent.
        held: the batch's rows that the next Round is of.
    """

    def __init__(self, rule: StopRule, rows: int, device: AnyDevice) -> None:
        self.rule, self.device = rule, device
        self.live: LiveRows = None
        self.held: Sequence[int] = range(rows)
        # Of the held rows: who is finished.
        self._finished: Tensor | None = None
        # Tokens of every row: one number while all rows get the same, else one per row.
        self._total: int | Tensor = 0
        self._pending: list[tuple[Sequence[int], Callable[[], list[bool]]]] = []

    def goes_on(self, latest: Round) -> bool:
        """Takes a Round into account; False once every row is known to be finished."""
        self._total = self._total + (
            latest.ids.shape[1] if latest.counts is None else latest.counts
        )
        equal = isinstance(self._total, int)
        if equal and self._total >= self.rule.max_new_tokens:
            return False
        if equal and not self.rule.stop_ids:
            return True
        finished = self._update(latest)
        self.live = ~finished
        self._pending.append((self.held, self.device.read_back(finished)))
        if len(self._pending) <= self.device.lag:
            return True
        held, read = self._pending.pop(0)
        known = read()
        if all(known):
            return False
        if self.rule.drop_finished:
            self._drop({row for row, ended in zip(held, known, strict=True) if ended}, finished)
        return True

    def _drop(self, ended: Collection[int], finished: Tensor) -> None:
        """Lets go of rows known to have ended, once they are enough."""
        going = staying([row in ended for row in self.held])
        if len(going) == len(self.held):
            return
        self.held = select(self.held, going)
        self._finished = select(finished, going)
        if isinstance(self._total, Tensor):
            self._total = select(self._total, going)
        self.live = Kept(tuple(going), ~self._finished)

    def _update(self, latest: Round) -> Tensor:
        ids = latest.ids
        # No id is negative: under fixed length nothing is hit.
        hits = reduce(or_, (ids == stop for stop in self.rule.stop_ids or (-1,)))
        if latest.counts is not None:
            hits &= torch.arange(ids.shape[1], device=ids.device) < latest.counts[:, None]
        finished = hits.any(dim=1)
        if self._finished is not None:
            finished = finished | self._finished
        if not isinstance(self._total, int):
            finished = finished | (self._total >= self.rule.max_new_tokens)
        self._finished = finished
        return finished


def decode(
    method: Method,
    model: InferenceModel,
    prompts: Prompts,
    rule: StopRule,
    chooser: Chooser,
    device: AnyDevice,
    *,
    every_round: bool = False,
) -> Decoded:
    """Decodes a batch under a stop rule.

    The clock runs from before the prompt pass to after the last Round; everything else (cutting,
    counting, summing the ledger) happens outside. With ``every_round`` each Round is waited for
    and timed, which perturbs the other times.
    """
    ledger = model.ledger = Ledger()
    limits = Limits(rule.max_new_tokens, chooser)
    watch = Stopwatch(device, every_round=every_round)
    generator = method.decode(model, prompts, limits)
    try:
        stops = Stops(rule, len(prompts.lengths), device)
        rounds, held = _rounds(generator, ledger, watch, stops, chooser)
    finally:
        generator.close()
    return counted(rounds, rule, ledger, watch, chooser, held)


def _rounds(
    generator: Generator[Round, LiveRows, None],
    ledger: Ledger,
    watch: Stopwatch,
    stops: Stops,
    chooser: Chooser,
) -> tuple[list[Round], list[Sequence[int]]]:
    """All rounds until every row is finished, under the clock; and the rows that each is of."""
    watch.start()
    with torch.inference_mode():
        latest = next(generator)
    ledger.close_round()
    watch.first_round()
    rounds, held = [latest], [stops.held]
    while True:
        with torch.inference_mode():
            if not stops.goes_on(latest):
                break
            if isinstance(stops.live, Kept):
                chooser.keep(stops.live.rows)
            latest = generator.send(stops.live)
        ledger.close_round()
        watch.round()
        rounds.append(latest)
        held.append(stops.held)
    watch.stop()
    return rounds, held


def counted(
    rounds: Sequence[Round],
    rule: StopRule,
    ledger: Ledger,
    watch: Stopwatch,
    chooser: Chooser,
    held: Sequence[Sequence[int]] | None = None,
) -> Decoded:
    """Cuts every row behind its stop and counts what is kept.

    ``held`` are the batch's rows that each round is of; None for all of them.
    """
    counts = [_per_row(r.counts, r.ids.shape[1], len(r.ids)) for r in rounds]
    given = [r.ids.tolist() for r in rounds]
    depth = [_depths(r) for r in rounds]
    rows = range(len(given[0]))
    places = [{row: at for at, row in enumerate(each)} for each in held or [rows] * len(rounds)]
    ids: list[list[int]] = []
    layers: list[list[int]] = []
    live: list[list[int]] = [[] for _ in rounds]
    for row in rows:
        of = [(index, place[row]) for index, place in enumerate(places) if row in place]
        all_ids = [i for index, at in of for i in given[index][at][: counts[index][at]]]
        all_layers = [n for index, at in of for n in depth[index][at][: counts[index][at]]]
        kept = cut(all_ids, rule)
        ids.append(all_ids[:kept])
        layers.append(all_layers[:kept])
        starts = accumulate((counts[index][at] for index, at in of), initial=0)
        for (index, at), start in zip(of, starts, strict=False):
            if start < kept:
                live[index].append(at)
    executed = ledger.executed()
    required = ledger.required(live, [r.layers_needed for r in rounds])
    return Decoded(
        ids=ids,
        layers=layers,
        rounds=len(rounds),
        prompt_executed=executed[0],
        decode_executed=reduce(add, executed[1:], Sums()),
        decode_required=reduce(add, required[1:], Sums()),
        decode_traffic=reduce(add, ledger.traffic()[1:], Traffic()),
        timing=watch.timing(),
        non_finite_rows=chooser.non_finite_rows(),
        speculation=_speculation(rounds[1:], live[1:]),
        round_s=watch.round_s(),
    )


def cut(ids: Sequence[int], rule: StopRule) -> int:
    """How many of a row's new ids are kept: up to and with the first stop id, or the limit."""
    for index, token in enumerate(ids[: rule.max_new_tokens]):
        if token in rule.stop_ids:
            return index + 1
    return min(len(ids), rule.max_new_tokens)


def _per_row(counts: Tensor | None, new: int, rows: int) -> list[int]:
    return [new] * rows if counts is None else counts.tolist()


def _depths(latest: Round) -> list[list[int]]:
    rows, new = latest.ids.shape
    run = latest.layers_run
    return [[run] * new] * rows if isinstance(run, int) else run.tolist()


def _speculation(rounds: Sequence[Round], live: Sequence[Sequence[int]]) -> Speculation | None:
    """Drafts of live rows over all rounds; None where a method does not draft."""
    counts = [
        (latest.drafted.tolist(), latest.accepted.tolist(), rows)
        for latest, rows in zip(rounds, live, strict=True)
        if latest.drafted is not None and latest.accepted is not None
    ]
    if not counts:
        return None
    pairs = [(d[row], a[row]) for d, a, rows in counts for row in rows]
    longest = max((drafted for drafted, _ in pairs), default=0)
    return Speculation(
        verifications=len(pairs),
        drafted=sum(drafted for drafted, _ in pairs),
        accepted=sum(accepted for _, accepted in pairs),
        offered_at=[sum(drafted > at for drafted, _ in pairs) for at in range(longest)],
        accepted_at=[sum(accepted > at for _, accepted in pairs) for at in range(longest)],
    )
