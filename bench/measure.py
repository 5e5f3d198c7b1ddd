"""Legs over batches: alternating order, repeats, warm-ups, scores.

Apart, so that baseline and method are treated by one text. Not here: one decode
(``decoding.py``), which models the legs run (``run.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch

from bench import ties
from bench.decoding import Decoded, StopRule, decode
from bench.errors import InvalidRunError
from bench.executed import Execute
from bench.meters import energy
from bench.meters.clock import Timing
from bench.meters.device import AnyDevice
from bench.meters.memory import PeakRss
from bench.schema import BatchRecord, Difference, Leg
from bench.summary import METHOD, TIE
from bench.tasks.contract import Example
from methods.engine.cache import Prompts
from methods.engine.sampling import Chooser


@dataclass(frozen=True, slots=True)
class Runner:
    """What a leg runs.

    Attributes:
        method: a ``Method`` or, with ``model`` and ``decode`` to match, a ``Peer``.
        model: weights in inference form; legs on the same weights share one.
        timed: whether its time is wanted (a leg for ids alone is decoded once).
        decode: drives the method, as ``decoding.decode`` does.
    """

    method: Any
    model: Any
    timed: bool = True
    decode: Callable[..., Decoded] = decode


@dataclass(frozen=True, slots=True)
class Plan:
    """How every batch is treated.

    Attributes:
        rule: stop rule of all legs.
        chooser: makes a fresh chooser for each decode, of the numbers of its rows' examples.
        repeats: passes of each leg over a timed batch.
        warmups: untimed passes before the first one of each number of rows.
        timed_batches: the first batches, whose times count.
        decode_text: ids to text, cut at the first stop id; None where nothing is text.
        scores: name -> score module.
        reference: leg whose ids a lossless method must have; None where nothing is claimed.
        profile: also time every round, in a pass of its own over each timed batch.
        energy: also measure energy, in passes of its own over each timed batch.
        execute: runs texts that are code, for the scores; None where none is run.
    """

    rule: StopRule
    chooser: Callable[[Sequence[int]], Chooser]
    repeats: int
    warmups: int
    timed_batches: int
    decode_text: Callable[[Sequence[int]], str] | None
    scores: Mapping[str, ModuleType]
    reference: str | None = None
    profile: bool = False
    energy: bool = False
    execute: Execute | None = None


@dataclass(slots=True)
class _Passes:
    """What was found of one leg on one batch.

    Attributes:
        first: the first pass, whose ids and counts stand in the record.
        timings: of the timed passes.
        more: fields of ``Leg`` that come from measurements of their own.
    """

    first: Decoded
    timings: list[Timing] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)


class Measurer:
    """Measures batch after batch.

    Args:
        runners: leg -> what it runs.
        plan: how every batch is treated.
        device: where.
        counter: of energy; None where there is none.
        segment: which process this is.
    """

    def __init__(
        self,
        runners: Mapping[str, Runner],
        plan: Plan,
        device: AnyDevice,
        counter: energy.Counter | None = None,
        segment: int = 0,
    ) -> None:
        self.runners, self.plan, self.device, self.segment = runners, plan, device, segment
        self._counter, self._rss = counter, PeakRss()
        self._timed = [name for name, runner in runners.items() if runner.timed]
        self._warm: set[int] = set()
        self._numbers: Sequence[int] = ()

    def batch(
        self,
        index: int,
        examples: Sequence[Example],
        rows: Sequence[Sequence[int]],
        first: int = 0,
    ) -> BatchRecord:
        """All legs and passes of one batch.

        Args:
            index: number of the batch; its parity and the pass decide which leg goes first.
            examples: of the rows.
            rows: prompt ids.
            first: number of the first example in the run; what is drawn for a row depends on it.

        Raises:
            InvalidRunError: for a non-finite logit, naming the examples.
        """
        prompts = Prompts.of(rows, self.device_name)
        self._numbers = range(first, first + len(rows))
        timed = index < self.plan.timed_batches
        warmups = self._warm_up(prompts) if timed else {}
        passes: dict[str, _Passes] = {}
        orders: list[list[str]] = []
        for repeat in range(self.plan.repeats if timed else 1):
            names = list(self._timed if repeat else self.runners)
            if (index + repeat) % 2:
                names.reverse()
            for name in names:
                if repeat:
                    found = self._decode(name, prompts)
                else:
                    passes[name] = self._first(name, prompts)
                    found = passes[name].first
                self._check_finite(name, found, examples)
                if timed and name in self._timed:
                    passes[name].timings.append(found.timing)
            if timed:
                orders.append(names)
        for name in self._timed if timed else ():
            passes[name].more |= {"warmups": warmups.get(name, [])} | self._apart(name, prompts)
        return BatchRecord(
            index=index,
            example_ids=[example.id for example in examples],
            prompt_tokens=list(prompts.lengths),
            legs={name: self._leg(passes[name], examples) for name in self.runners},
            order=orders,
            segment=self.segment,
            differences=self._differences(passes, examples, rows),
        )

    @property
    def device_name(self) -> str:
        """Where prompts go."""
        device: str = next(iter(self.runners.values())).model.options.device
        return device

    def _warm_up(self, prompts: Prompts) -> dict[str, list[Timing]]:
        """Times of the first passes over a number of rows, which pay for what is made once."""
        rows = len(prompts.lengths)
        if rows in self._warm:
            return {}
        self._warm.add(rows)
        times: dict[str, list[Timing]] = {name: [] for name in self._timed}
        for _ in range(self.plan.warmups):
            for name in self._timed:
                times[name].append(self._decode(name, prompts).timing)
        return times

    def _first(self, name: str, prompts: Prompts) -> _Passes:
        """The first pass, with its peaks of memory; the marks are set and read off the clock."""
        self.device.reset_peak_memory()
        self._rss.reset()
        first = self._decode(name, prompts)
        peaks = {
            "peak_memory_bytes": self.device.peak_memory_bytes(),
            "peak_rss_bytes": self._rss.read(),
        }
        return _Passes(first, more=peaks)

    def _apart(self, name: str, prompts: Prompts) -> dict[str, Any]:
        """What is measured in passes of its own, for it would disturb the timed ones."""
        found: dict[str, Any] = {}
        if self.plan.profile:
            found["round_s"] = self._decode(name, prompts, every_round=True).round_s
        if self.plan.energy and self._counter is not None:
            found["energy"] = energy.measure(
                lambda: self._decode(name, prompts), self._counter, self.device
            )
        return found

    def _decode(self, name: str, prompts: Prompts, *, every_round: bool = False) -> Decoded:
        runner, plan = self.runners[name], self.plan
        while True:
            made = runner.model.forms_made
            found = runner.decode(
                runner.method,
                runner.model,
                prompts,
                plan.rule,
                plan.chooser(self._numbers),
                self.device,
                every_round=every_round,
            )
            # What is compiled is made once, for all later batches: no part of any one's time.
            if runner.model.forms_made == made:
                return found

    def _check_finite(self, name: str, decoded: Decoded, examples: Sequence[Example]) -> None:
        if decoded.non_finite_rows:
            bad = ", ".join(examples[row].id for row in decoded.non_finite_rows)
            raise InvalidRunError(
                f"Leg {name} gave a NaN or infinite logit: the run is invalid\n  examples: {bad}"
            )

    def _differences(
        self,
        passes: Mapping[str, _Passes],
        examples: Sequence[Example],
        rows: Sequence[Sequence[int]],
    ) -> list[Difference] | None:
        """Of a lossless method; more than ties in float32 make the run invalid."""
        reference = self.plan.reference
        if reference is None:
            return None
        dense = self.runners[reference]
        mine, theirs = passes[METHOD].first.ids, passes[reference].first.ids
        pair = (dense.method, dense.model)
        found = ties.differences(pair, examples, rows, mine, theirs, self.device)
        wrong = [each for each in found if each.logit_gap > TIE]
        if wrong and dense.model.options.dtype == torch.float32:
            told = ", ".join(
                f"{e.example_id} at token {e.index} ({e.logit_gap:.2g})" for e in wrong
            )
            raise InvalidRunError(
                "The method claims the ids of the dense model and has others: the run is invalid\n"
                f"  examples, with the dense model's logit gap: {told}"
            )
        return found

    def _leg(self, passes: _Passes, examples: Sequence[Example]) -> Leg:
        decoded = passes.first
        to_text = self.plan.decode_text
        texts = None if to_text is None else [to_text(ids) for ids in decoded.ids]
        outcomes = None
        if self.plan.execute is not None and texts is not None:
            outcomes = self.plan.execute(texts, examples)
            examples = [replace(e, outcome=o) for e, o in zip(examples, outcomes, strict=True)]
        statistics = {
            name: [
                list(score.statistics(text, e))
                for text, e in zip(texts or (), examples, strict=True)
            ]
            for name, score in self.plan.scores.items()
        }
        scores = {
            name: [score.value(row) for row in statistics[name]]
            for name, score in self.plan.scores.items()
        }
        return Leg(
            ids=decoded.ids,
            texts=texts,
            layers=decoded.layers,
            statistics=statistics,
            scores=scores,
            timings=passes.timings,
            rounds=decoded.rounds,
            prompt_executed=decoded.prompt_executed,
            decode_executed=decoded.decode_executed,
            decode_required=decoded.decode_required,
            decode_traffic=decoded.decode_traffic,
            speculation=decoded.speculation,
            first_round=decoded.first_round,
            outcomes=outcomes,
            **passes.more,
        )
