"""One run: find weights and examples, measure batch by batch, record, summarise.

Apart, as the one place where everything meets. Not here: how a batch is measured
(``measure.py``), what a record holds (``schema.py``), how the table looks (``report.py``).
"""

import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench import columns, log, lookup, models, provenance, report, store, summary
from bench.config import DENSE, RunConfig
from bench.decoding import StopRule
from bench.errors import InputError
from bench.measure import Measurer, Plan, Runner
from bench.meters import device as devices
from bench.meters.clock import now_utc
from bench.planning import Planned, plan
from bench.preparation import Prepared, prepare
from bench.progress import Progress
from bench.schema import SCHEMA_VERSION, BatchRecord, Header, Segment, Start
from bench.summary import BASELINE, METHOD, OWN_DENSE
from bench.weights import Weights
from methods.engine.inference import InferenceModel, Options
from methods.engine.sampling import Greedy
from methods.engine.transformer import Transformer
from methods.registry import find_method, find_params


def run(config: RunConfig) -> store.Attempt:
    """Runs, or shows what was already run; prints the table.

    Raises:
        SkipbenchError: for anything that cannot be run; nothing that was recorded is lost.
    """
    planned = plan(config)
    return report.show_if_done(planned) or make(planned)


def make(planned: Planned) -> store.Attempt:
    """Makes a run that is not done, from where it was stopped; prints the table."""
    config = planned.config
    attempt = store.next_attempt(Path(config.results_dir), planned.run_id, rerun=config.rerun)
    prepared = prepare(planned)
    with attempt.claim(), log.to_file(attempt.log, debug=config.verbosity == "debug"):
        try:
            _measure(prepared, attempt)
        except BaseException as error:
            log.LOG.exception("ended by %s", type(error).__name__)
            # A run that was stopped is no failure: the same command goes on with it.
            if isinstance(error, Exception):
                attempt.write_failure(traceback.format_exc())
            raise
    report.show(attempt, config.verbosity)
    return attempt


def _measure(prepared: Prepared, attempt: store.Attempt) -> None:
    """Batches without a record, then the header."""
    planned, device = prepared.planned, devices.of(prepared.device)
    config = planned.config
    known = _known_columns(prepared, attempt)
    shapes = {leg: each.shape for leg, each in planned.weights.items()}
    if attempt.start() is None:
        attempt.write_start(
            Start(
                schema_version=SCHEMA_VERSION,
                run_id=planned.run_id,
                attempt=attempt.number,
                identity=dict(planned.identity),
                config=asdict(config),
                columns=known,
                shapes={leg: asdict(shape) for leg, shape in shapes.items()},
                started_at=now_utc(),
            )
        )
    device.reset_peak_memory()
    records = _batches(prepared, attempt, device)
    row = dict.fromkeys(columns.names(list(planned.task.scores))) | known
    row |= {"status": "done", "peak_memory_bytes": device.peak_memory_bytes()}
    row |= summary.summarise(
        records,
        shapes,
        planned.task.scores,
        own_reference=planned.own_reference,
        dense_alone=config.method.name == DENSE,
    )
    attempt.write_header(Header(SCHEMA_VERSION, row, len(records), now_utc()))


def _batches(
    prepared: Prepared, attempt: store.Attempt, device: devices.AnyDevice
) -> list[BatchRecord]:
    """All records of the run: those that are there, and the rest measured and appended."""
    config, examples = prepared.planned.config, prepared.planned.examples
    segment = Segment(provenance.collect(prepared.device), now_utc())
    records = _usable(attempt, segment)
    number = len(attempt.segments())
    attempt.append(segment)
    log.LOG.info("segment %d: %s", number, segment.provenance)
    measurer = Measurer(_runners(prepared), _plan(prepared), device, number)
    size = config.meter.batch_size
    starts = range(0, len(prepared.rows), size)
    label = f"{config.method.name} on {config.model.name}"
    with Progress(label, len(starts), quiet=config.verbosity == "quiet") as progress:
        for index, start in enumerate(starts):
            if index not in records:
                part = slice(start, start + size)
                records[index] = measurer.batch(index, examples[part], prepared.rows[part])
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
    config = prepared.planned.config
    parts = [f"{key}={value}" for key, value in config.method.changed.items()]
    trained = prepared.planned.weights[METHOD].trained
    if trained.get("method") == config.method.name:
        now = asdict(prepared.params)
        other = [f"{k}:{v}" for k, v in trained["settings"].items() if now.get(k) != v]
        parts += [f"trained_for={','.join(other)}"] if other else []
    return ";".join(parts)


def _runners(prepared: Prepared) -> dict[str, Runner]:
    """Each leg's method and weights; equal weights are held once."""
    config, legs = prepared.planned.config, prepared.planned.weights
    held: dict[str, InferenceModel] = {}
    distinct = {weights.fingerprint: weights for weights in legs.values()}
    with Progress("loading weights", len(distinct), quiet=config.verbosity == "quiet") as progress:
        for fingerprint, weights in distinct.items():
            log.LOG.info("loading %s", weights.folder or fingerprint)
            held[fingerprint] = _inference_form(prepared, weights)
            progress.to(len(held))
    runners = {}
    for leg, weights in legs.items():
        name = config.method.name if leg == METHOD else DENSE
        params = prepared.params if leg == METHOD else find_params(DENSE).Params()
        method = find_method(name).Method(params, weights.shape)
        runners[leg] = Runner(method, held[weights.fingerprint], timed=leg != OWN_DENSE)
    return runners


def _inference_form(prepared: Prepared, weights: Weights) -> InferenceModel:
    config = prepared.planned.config
    dtype: torch.dtype = getattr(torch, config.engine.dtype)
    packs = prepared.device.type == "cpu" and config.engine.dtype == "float32"
    if config.engine.packed == "on" and not packs:
        raise InputError(
            "Packed weights are not to be had here",
            got=f"{prepared.device.type}, {config.engine.dtype}",
            allowed="a CPU with float32",
            where="engine.packed",
        )
    transformer: Transformer = models.load(weights, dtype)
    options = Options(
        dtype=dtype,
        device=str(prepared.device),
        packed=packs and config.engine.packed != "off",
        rows=config.meter.batch_size,
    )
    # The parameters are given up block by block, so that weights are held once.
    return InferenceModel(transformer, options, consume=True)


def _plan(prepared: Prepared) -> Plan:
    config = prepared.planned.config
    scores = prepared.planned.task.scores
    stops = prepared.text.stop_ids if config.decode.length == "until_eos" else ()
    return Plan(
        rule=StopRule(config.max_new_tokens, stops),
        chooser=Greedy,
        repeats=config.meter.repeats,
        warmups=config.meter.warmups,
        timed_batches=config.meter.timed_batches,
        decode_text=prepared.text.decode,
        scores={name: lookup.find("bench.scores", name, "score") for name in scores},
    )


def _so_far(records: Sequence[BatchRecord]) -> str:
    """Tokens per second and speed-up of the timed batches so far, for the progress bar."""
    timed = [record for record in records if record.legs[METHOD].timings]
    if len(timed) < len(records):
        return "decoding the rest for quality"
    seconds, tokens = {}, {}
    for leg in (METHOD, BASELINE):
        legs = [record.legs[leg] for record in timed if leg in record.legs]
        seconds[leg] = sum(each.timings[-1].decode_s for each in legs)
        tokens[leg] = sum(len(row) - 1 for each in legs for row in each.ids)
    if not (tokens[METHOD] and seconds[METHOD]):
        return ""
    rate = tokens[METHOD] / seconds[METHOD]
    if not tokens[BASELINE]:
        return f"{rate:.0f} tokens/s"
    return f"{rate:.0f} tokens/s, {rate * seconds[BASELINE] / tokens[BASELINE]:.2f}x"
