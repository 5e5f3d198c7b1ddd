"""One run: find weights and examples, measure batch by batch, record, summarise.

Apart, as the one place where everything meets. Not here: how a batch is measured
(``measure.py``), what a record holds (``schema.py``), how the table looks (``report.py``).
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench import (
    columns,
    executed,
    gpus,
    legs,
    log,
    provenance,
    report,
    store,
    summary,
    surroundings,
    turns,
)
from bench.config import DENSE, RunConfig
from bench.measure import Measurer
from bench.meters import device as devices
from bench.meters import energy
from bench.meters.clock import now_utc
from bench.planning import Planned, plan
from bench.preparation import Prepared, prepare
from bench.progress import Progress
from bench.schema import SCHEMA_VERSION, BatchRecord, Header, Segment, Start
from bench.session import Session
from bench.summary import BASELINE, METHOD
from bench.tracking import handover
from bench.training_output import trained_settings
from bench.treatment import measuring_plan
from bench.weights import Weights


def run(config: RunConfig) -> store.Attempt:
    """Runs, or shows what was already run; prints the table.

    Raises:
        SkipbenchError: for anything that cannot be run; nothing that was recorded is lost.
    """
    planned = plan(config)
    shown = report.show_if_done(planned)
    if shown is None:
        attempt = store.next_attempt(Path(config.results_dir), planned.run_id, rerun=config.rerun)
        with handover.beside(attempt, config) as settle:
            make(planned, attempt, settle)
        return attempt
    handover.catch_up([shown], config)
    return shown


def make(
    planned: Planned,
    attempt: store.Attempt,
    settle: Callable[[], None],
    session: Session | None = None,
) -> None:
    """Makes a run that is not done, from where it was stopped; prints the table.

    Args:
        planned: what runs.
        attempt: that it is made as.
        settle: waits until nothing beside it works any more; called before anything is timed.
        session: what it shares with other runs of the process; None for a run alone.
    """
    config = planned.config
    prepared = prepare(planned)
    with attempt.claim(), log.to_file(attempt.log, debug=config.verbosity == "debug"):
        try:
            settle()
            _measure(prepared, attempt, session or Session())
        except BaseException as error:
            log.LOG.exception("ended by %s", type(error).__name__)
            # A run that was stopped is no failure: the same command goes on with it.
            if isinstance(error, Exception):
                attempt.write_failure(traceback.format_exc())
            raise
    report.show(attempt, config)


def _measure(prepared: Prepared, attempt: store.Attempt, session: Session) -> None:
    """Batches without a record, then the header."""
    planned, device = prepared.planned, devices.of(prepared.device)
    config = planned.config
    known = _known_columns(prepared, attempt)
    shapes = {leg: each.shape for leg, each in planned.weights.items()}
    if attempt.start() is None:
        start = Start(
            schema_version=SCHEMA_VERSION,
            run_id=planned.run_id,
            attempt=attempt.number,
            identity=dict(planned.identity),
            config=asdict(config),
            columns=known,
            shapes={leg: asdict(shape) for leg, shape in shapes.items()},
            started_at=now_utc(),
            data=prepared.about(),
        )
        with session.held():
            attempt.write_start(start)
    records = _batches(prepared, attempt, device, session)
    row = dict.fromkeys(columns.names(list(planned.task.scores))) | known
    row |= {"status": "done"} | legs.sizes(prepared)
    row |= summary.summarise(
        records,
        shapes,
        planned.task.scores,
        machine=legs.machine(prepared),
        margin=config.meter.margin,
        own_reference=planned.own_reference,
        dense_alone=config.method.name == DENSE,
    )
    row["speedup_promised_by_model"] = legs.predicted_speedup(prepared, row)
    with session.held():
        attempt.write_header(Header(SCHEMA_VERSION, row, len(records), now_utc()))


def _batches(
    prepared: Prepared, attempt: store.Attempt, device: devices.AnyDevice, session: Session
) -> list[BatchRecord]:
    """All records of the run: those that are there, and the rest measured and appended."""
    config, examples = prepared.planned.config, prepared.planned.examples
    segment = Segment(
        provenance.collect(prepared.device) | session.facts | executed.facts(examples), now_utc()
    )
    if prepared.n_truncated:
        cut = f"{prepared.n_truncated} of {len(examples)} prompts were cut to fit"
        report.say(f"note: {cut}", config.verbosity)
    for warning in _doubts(prepared, segment):
        report.say(f"note: {warning}", config.verbosity)
    records = _usable(attempt, segment)
    number = len(attempt.segments())
    with session.held():
        attempt.append(segment)
    log.LOG.info("segment %d: %s", number, segment.provenance)
    counter = _energy_counter(prepared, segment)
    runners = legs.runners(prepared, session.models)
    size = config.meter.batch_size
    starts = range(0, len(prepared.rows), size)
    label = f"{config.method.name} on {config.model.name}"
    with Progress(label, len(starts), quiet=config.verbosity == "quiet") as progress:
        how = measuring_plan(prepared, progress.note)
        measurer = Measurer(runners, how, device, counter, number)
        for index, start in enumerate(starts):
            if index not in records:
                session.check()
                part = slice(start, start + size)
                rows = turns.rows(prepared, part, records.values())
                records[index] = measurer.batch(index, examples[part], rows, start)
                with session.held():
                    attempt.append(records[index])
                progress.note(_so_far(list(records.values())))
                log.LOG.info("batch %d of %d: %s", index + 1, len(starts), progress.text)
            progress.to(index + 1)
    return [records[index] for index in sorted(records)]


def _usable(attempt: store.Attempt, now: Segment) -> dict[int, BatchRecord]:
    """Records that stand: times from other hardware do not; they are taken anew, from the start.

    Batches that were decoded for quality alone stay, wherever that was.
    """
    # A record whose segment was lost is from an unknown machine, which is not this one.
    hardware = dict(enumerate(segment.hardware for segment in attempt.segments()))
    return {
        record.index: record
        for record in attempt.batches()
        if not any(leg.timings for leg in record.legs.values())
        or hardware.get(record.segment) == now.hardware
    }


def _known_columns(prepared: Prepared, attempt: store.Attempt) -> dict[str, Any]:
    """The columns that are known before anything is measured."""
    config, own = prepared.planned.config, prepared.planned.weights[METHOD]
    return {
        "run_id": attempt.folder.parent.name,
        "status": attempt.status(),
        "method": config.method.name,
        "setting": _setting(prepared),
        "model": config.model.name,
        "checkpoint": _checkpoint(config, own),
        "task": config.task.name,
        "gpu": prepared.planned.gpu,
        "dtype": config.engine.dtype,
        "length": config.decode.length,
        "seed": config.seed,
        "attempt": attempt.number,
        "batch_size": config.meter.batch_size,
        "n_truncated": prepared.n_truncated,
    }


def _checkpoint(config: RunConfig, own: Weights) -> str:
    if own.folder is None:
        return f"random:{own.seed}"
    if config.model.checkpoint is not None:
        return config.model.checkpoint
    if config.model.variants is not None:
        return str(config.model.variants.get(config.method.name, config.model.variants[DENSE]))
    return f"{config.model.hub_id}@{own.folder.name}"


def _setting(prepared: Prepared) -> str:
    """Changed settings, and those the weights were trained for where they differ."""
    config, found = prepared.planned.config, prepared.planned.calibration
    changed = dict(config.method.changed)
    if found is not None:
        changed[found.setting] = f"calibrated:{found.value}@{found.calibration_id}"
    parts = [f"{key}={value}" for key, value in changed.items()]
    trained = prepared.planned.weights[METHOD].trained
    if trained.get("method") == config.method.name:
        now = asdict(prepared.params)
        bearing = trained_settings(config.method.name, trained["settings"])
        other = [f"{k}:{v}" for k, v in bearing.items() if now.get(k) != v]
        parts += [f"trained_for={','.join(other)}"] if other else []
    return ";".join(parts)


def _doubts(prepared: Prepared, segment: Segment) -> list[str]:
    """What makes the numbers of this process doubtful or incomplete."""
    rates = gpus.rates_for(prepared.planned.profile, torch.get_num_threads())
    unknown = gpus.unknown_rates(rates)
    unscored = executed.note(prepared.planned.task, prepared.planned.examples)
    return [*surroundings.warnings(segment.provenance), *filter(None, (unknown, unscored))]


def _energy_counter(prepared: Prepared, segment: Segment) -> energy.Counter | None:
    """The device's counter, where energy is wanted; says so where there is none."""
    config = prepared.planned.config
    if not config.meter.energy:
        return None
    counter = energy.find(prepared.device.type, uuid=segment.provenance["device_uuid"])
    if counter is None:
        text = "note: this machine has no energy counter that can be read; energy stays empty"
        report.say(text, config.verbosity)
    return counter


def _so_far(records: Sequence[BatchRecord]) -> str:
    """Tokens per second and speed-up of the timed batches so far, for the progress bar."""
    timed = [record for record in records if record.legs[METHOD].timings]
    if len(timed) < len(records):
        return "decoding the rest for quality"
    seconds, tokens = {}, {}
    for leg in (METHOD, BASELINE):
        of = [record.legs[leg] for record in timed if leg in record.legs]
        seconds[leg] = sum(each.timings[-1].decode_s for each in of)
        tokens[leg] = sum(len(row) - 1 for each in of for row in each.ids)
    if not (tokens[METHOD] and seconds[METHOD]):
        return ""
    rate = tokens[METHOD] / seconds[METHOD]
    if not tokens[BASELINE]:
        return f"{rate:.0f} tokens/s"
    return f"{rate:.0f} tokens/s, {rate * seconds[BASELINE] / tokens[BASELINE]:.2f}x"
