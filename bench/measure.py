"""Legs over batches: alternating order, repeats, warm-ups, scores.

Apart, so that baseline and method are treated by one text. Not here: one decode
(``decoding.py``), which models the legs run (``run.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from bench.decoding import Decoded, StopRule, decode
from bench.errors import InvalidRunError
from bench.meters.clock import Timing
from bench.meters.device import AnyDevice
from bench.schema import BatchRecord, Leg
from bench.tasks.contract import Example
from methods.contract import Method
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Chooser


@dataclass(frozen=True, slots=True)
class Runner:
    """What a leg runs.

    Attributes:
        method: with its settings.
        model: weights in inference form; legs on the same weights share one.
        timed: whether its time is wanted (a leg for ids alone is decoded once).
    """

    method: Method
    model: InferenceModel
    timed: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """How every batch is treated.

    Attributes:
        rule: stop rule of all legs.
        chooser: makes a fresh chooser for each decode.
        repeats: passes of each leg over a timed batch.
        warmups: untimed passes before the first one of each number of rows.
        timed_batches: the first batches, whose times count.
        decode_text: ids to text, cut at the first stop id.
        scores: name -> score module.
    """

    rule: StopRule
    chooser: Callable[[], Chooser]
    repeats: int
    warmups: int
    timed_batches: int
    decode_text: Callable[[Sequence[int]], str]
    scores: Mapping[str, ModuleType]


class Measurer:
    """Measures batch after batch."""

    def __init__(
        self, runners: Mapping[str, Runner], plan: Plan, device: AnyDevice, segment: int = 0
    ) -> None:
        self.runners, self.plan, self.device, self.segment = runners, plan, device, segment
        self._warm: set[int] = set()

    def batch(
        self, index: int, examples: Sequence[Example], rows: Sequence[Sequence[int]]
    ) -> BatchRecord:
        """All legs and passes of one batch.

        Args:
            index: number of the batch; its parity and the pass decide which leg goes first.
            examples: of the rows.
            rows: prompt ids.

        Raises:
            InvalidRunError: for a non-finite logit, naming the examples.
        """
        prompts = Prompts.of(rows, self.device_name)
        timed = index < self.plan.timed_batches
        if timed and len(rows) not in self._warm:
            self._warm.add(len(rows))
            for _ in range(self.plan.warmups):
                for name in self._timed_names():
                    self._decode(name, prompts)
        first: dict[str, Decoded] = {}
        timings: dict[str, list[Timing]] = {name: [] for name in self.runners}
        orders: list[list[str]] = []
        for repeat in range(self.plan.repeats if timed else 1):
            names = self._timed_names() if repeat else list(self.runners)
            if (index + repeat) % 2:
                names.reverse()
            for name in names:
                decoded = self._decode(name, prompts)
                self._check_finite(name, decoded, examples)
                first.setdefault(name, decoded)
                if timed and self.runners[name].timed:
                    timings[name].append(decoded.timing)
            if timed:
                orders.append(names)
        legs = {name: self._leg(first[name], timings[name], examples) for name in self.runners}
        ids = [example.id for example in examples]
        return BatchRecord(index, ids, list(prompts.lengths), legs, orders, self.segment)

    @property
    def device_name(self) -> str:
        """Where prompts go."""
        return next(iter(self.runners.values())).model.options.device

    def _timed_names(self) -> list[str]:
        return [name for name, runner in self.runners.items() if runner.timed]

    def _decode(self, name: str, prompts: Prompts) -> Decoded:
        runner = self.runners[name]
        chooser = self.plan.chooser()
        return decode(runner.method, runner.model, prompts, self.plan.rule, chooser, self.device)

    def _check_finite(self, name: str, decoded: Decoded, examples: Sequence[Example]) -> None:
        if decoded.non_finite_rows:
            bad = ", ".join(examples[row].id for row in decoded.non_finite_rows)
            raise InvalidRunError(
                f"Leg {name} gave a NaN or infinite logit: the run is invalid\n  examples: {bad}"
            )

    def _leg(self, decoded: Decoded, timings: list[Timing], examples: Sequence[Example]) -> Leg:
        texts = [self.plan.decode_text(ids) for ids in decoded.ids]
        statistics = {
            name: [list(score.statistics(text, e)) for text, e in zip(texts, examples, strict=True)]
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
            timings=timings,
            rounds=decoded.rounds,
            prompt_executed=decoded.prompt_executed,
            decode_executed=decoded.decode_executed,
            decode_required=decoded.decode_required,
            drafted=decoded.drafted,
            accepted=decoded.accepted,
        )
