"""``action=calibrate``: decodes the calibration prompts at one threshold after another.

Apart from ``calibration.py``, which decides what passes and knows no model. What is decoded here
is what will run: the deployed method with its batches, dtype, stop rule and limit, in the legs of a
run (``measure.py``), untimed. Batches are recorded as they come, and a calibration that was stopped
goes on at the first that is not there. Not here: which prompts and thresholds
(``calibration_plan.py``), paths (``calibration_store.py``).
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

from bench import legs, log, lookup, provenance
from bench.calibration import Outcome, fixed_sequence, risk_losses, textual_losses
from bench.calibration_plan import Wanted
from bench.calibration_report import show
from bench.calibration_store import Calibration, Folder, Part, complete_ones
from bench.errors import InputError
from bench.measure import Measurer, Runner
from bench.meters import device as devices
from bench.meters.clock import now_utc
from bench.planning import resolve_params
from bench.preparation import Prepared, prepare
from bench.progress import Progress
from bench.schema import SCHEMA_VERSION
from bench.scores.contract import Score, quality, similarity
from bench.summary import BASELINE, METHOD
from bench.tasks.contract import Example
from bench.treatment import measuring_plan


def make(wanted: Wanted) -> Calibration:
    """Calibrates from where it was stopped; prints the table.

    Raises:
        SkipbenchError: for anything that cannot be run; nothing that was recorded is lost.
    """
    folder = wanted.folder
    prepared = prepare(wanted.planned)
    debug = prepared.planned.config.verbosity == "debug"
    with folder.claim(), log.to_file(folder.log, debug=debug):
        outcome = _walk(wanted, prepared, folder)
        record = _record(wanted, prepared, outcome)
        folder.complete(record)
    show(record, wanted)
    return record


def _walk(wanted: Wanted, prepared: Prepared, folder: Folder) -> Outcome:
    """Tests thresholds up to the first that fails."""
    config = prepared.planned.config
    asked, size = config.calibrate, config.meter.batch_size
    batches = range(-(-len(prepared.rows) // size))
    label = f"calibrating {config.method.name} on {config.model.name}"
    total = len(batches) * (1 + len(wanted.thresholds))
    decoder = Decoder(wanted, prepared, folder)
    with Progress(label, total, quiet=config.verbosity == "quiet") as progress:

        def losses_of(threshold: float) -> Sequence[float]:
            losses: list[float] = []
            for batch in batches:
                losses += decoder.part(threshold, batch).losses
                mean = sum(losses) / len(losses)
                progress.note(f"{wanted.setting} {threshold:g}: mean loss {mean:.3f}")
                progress.to(progress.done + 1)
            log.LOG.info("%s", progress.text)
            return losses

        for batch in batches:
            decoder.part(None, batch)
            log.LOG.info("full model, batch %d of %d", batch + 1, len(batches))
            progress.to(progress.done + 1)
        return fixed_sequence(wanted.thresholds, losses_of, asked.delta, asked.epsilon)


class Decoder:
    """Texts and losses of one batch at one threshold; what is recorded is not decoded again."""

    def __init__(self, wanted: Wanted, prepared: Prepared, folder: Folder) -> None:
        self._wanted, self._prepared, self._folder = wanted, prepared, folder
        self._known = {(part.threshold, part.batch): part for part in folder.parts()}
        self._plan = replace(
            measuring_plan(prepared),
            repeats=1,
            warmups=0,
            timed_batches=0,
            scores={},
            reference=None,
            execute=None,
        )
        self._score: Score = lookup.find("bench.scores", wanted.score, "score")
        self._runners = legs.runners(prepared)

    def part(self, threshold: float | None, batch: int) -> Part:
        """One batch; ``threshold`` None is the full model, which must come first."""
        key = (threshold, batch)
        if key not in self._known:
            self._known[key] = self._decoded(threshold, batch)
            self._folder.append(self._known[key])
        return self._known[key]

    def _decoded(self, threshold: float | None, batch: int) -> Part:
        planned = self._prepared.planned
        size = planned.config.meter.batch_size
        rows = slice(batch * size, (batch + 1) * size)
        examples = planned.examples[rows]
        leg, runner = (BASELINE, self._runners[BASELINE])
        if threshold is not None:
            leg, runner = METHOD, self._at(threshold)
        measurer = Measurer({leg: runner}, self._plan, devices.of(self._prepared.device))
        record = measurer.batch(batch, examples, self._prepared.rows[rows], batch * size)
        # What can be calibrated has a score of texts.
        texts = record.legs[leg].texts or []
        by_references = planned.config.calibrate.objective == "risk"
        found = Part(threshold, batch, texts, [], [])
        if by_references:
            found = replace(found, qualities=self._qualities(texts, examples))
        if threshold is None:
            return found
        return replace(found, losses=self._losses(found, self.part(None, batch), examples))

    def _losses(self, early: Part, full: Part, examples: Sequence[Example]) -> list[float]:
        if self._prepared.planned.config.calibrate.objective == "risk":
            found = risk_losses(early_quality=early.qualities, full_quality=full.qualities)
            return list(found)
        near = [
            self._judged(example, similarity(self._score, text, other, example))
            for text, other, example in zip(early.texts, full.texts, examples, strict=True)
        ]
        return list(textual_losses(near))

    def _qualities(self, texts: Sequence[str], examples: Sequence[Example]) -> list[float]:
        pairs = zip(texts, examples, strict=True)
        return [self._judged(each, quality(self._score, text, each)) for text, each in pairs]

    def _judged(self, example: Example, value: float | None) -> float:
        if value is None:
            raise InputError(
                f"Score {self._wanted.score} says nothing of a text alone",
                got=f"example {example.id}",
                allowed="a score with a value for every text",
                where="calibration_score of the task",
            )
        return value

    def _at(self, threshold: float) -> Runner:
        """The method's leg at a threshold, on the weights that are held."""
        planned = self._prepared.planned
        config = planned.config
        given = replace(config.method.params, **{self._wanted.setting: threshold})
        config = replace(config, method=replace(config.method, params=given))
        params = resolve_params(config, planned.weights[METHOD], planned.known)
        method = legs.method_of(self._prepared, params)
        return replace(self._runners[METHOD], method=method)


def _record(wanted: Wanted, prepared: Prepared, outcome: Outcome) -> Calibration:
    planned = prepared.planned
    config = planned.config
    known = complete_ones(wanted.folder.path.parent.parent)
    return Calibration(
        schema_version=SCHEMA_VERSION,
        calibration_id=wanted.calibration_id,
        number=max((each.number for each in known), default=0) + 1,
        setting=wanted.setting,
        promise=dict(wanted.promise),
        threshold=outcome.threshold,
        tested=list(outcome.tested),
        thresholds=list(wanted.thresholds),
        score=wanted.score,
        split=config.calibrate.split,
        examples=planned.identity["task"]["examples"],
        n=outcome.n,
        smallest_n=outcome.smallest_n,
        config=asdict(config),
        provenance=provenance.collect(prepared.device),
        ended_at=now_utc(),
    )
