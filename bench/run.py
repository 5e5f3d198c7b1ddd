"""One run: find weights and examples, measure batch by batch, record, summarise.

Apart, as the one place where everything meets. Not here: how a batch is measured
(``measure.py``), what a record holds (``schema.py``), how the table looks (``report.py``).
"""

import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench import columns, lookup, provenance, report, store, summary
from bench.config import DENSE, RunConfig
from bench.decoding import StopRule
from bench.errors import InputError
from bench.identity import digest, identity
from bench.measure import Measurer, Plan, Runner
from bench.meters import device as devices
from bench.meters.clock import now_utc
from bench.models import Weights
from bench.preparation import Prepared, examples_hash, prepare
from bench.progress import Progress
from bench.schema import SCHEMA_VERSION, BatchRecord, Header, Start
from bench.summary import METHOD, OWN_DENSE
from methods.engine.inference import InferenceModel, Options
from methods.engine.sampling import Greedy
from methods.engine.transformer import Transformer
from methods.registry import find_method, find_params


def run(config: RunConfig) -> store.Attempt:
    """Runs, or shows what was already run; prints the table.

    Raises:
        SkipbenchError: for anything that cannot be run; nothing that was recorded is lost.
    """
    prepared = prepare(config)
    names = identity(
        config,
        device=devices.profile_name(prepared.device),
        weights={leg: weights.fingerprint for leg, weights in prepared.weights.items()},
        resolved=asdict(prepared.params),
        examples=examples_hash(prepared.examples),
    )
    attempt = store.next_attempt(Path(config.results_dir), digest(names), rerun=config.rerun)
    if attempt.status() == "done":
        report.say(f"already done: {attempt.folder} (rerun=true runs it again)", config.verbosity)
    else:
        with attempt.claim():
            try:
                _measure(prepared, attempt, names)
            except Exception:
                attempt.write_failure(traceback.format_exc())
                raise
    report.show(attempt, config.verbosity)
    return attempt


def _measure(prepared: Prepared, attempt: store.Attempt, names: dict[str, Any]) -> None:
    """Batches without a record, then the header."""
    config, device = prepared.config, devices.of(prepared.device)
    known = _known_columns(prepared, attempt)
    if attempt.start() is None:
        attempt.write_start(
            Start(
                schema_version=SCHEMA_VERSION,
                run_id=digest(names),
                attempt=attempt.number,
                identity=names,
                config=asdict(config),
                columns=known,
                shapes={leg: asdict(each.shape) for leg, each in prepared.weights.items()},
                provenance=provenance.collect(prepared.device),
                started_at=now_utc(),
            )
        )
    records = attempt.batches()
    device.reset_peak_memory()
    measurer = Measurer(_runners(prepared), _plan(prepared), device)
    size = config.meter.batch_size
    starts = range(0, len(prepared.rows), size)
    label = f"{config.method.name} on {config.model.name}"
    with Progress(label, len(starts), quiet=config.verbosity == "quiet") as progress:
        for index, start in enumerate(starts):
            if index >= len(records):
                part = slice(start, start + size)
                records.append(measurer.batch(index, prepared.examples[part], prepared.rows[part]))
                attempt.append(records[-1])
                progress.note(_so_far(records[-1]))
            progress.to(index + 1)
    row = dict.fromkeys(columns.names(list(prepared.task.scores))) | known
    row |= {"status": "done", "peak_memory_bytes": device.peak_memory_bytes()}
    row |= summary.summarise(
        records,
        {leg: each.shape for leg, each in prepared.weights.items()},
        prepared.task.scores,
        own_reference=prepared.own_reference,
        dense_alone=config.method.name == DENSE,
    )
    attempt.write_header(Header(SCHEMA_VERSION, row, len(records), now_utc()))


def _known_columns(prepared: Prepared, attempt: store.Attempt) -> dict[str, Any]:
    """The columns that are known before anything is measured."""
    config, own = prepared.config, prepared.weights[METHOD]
    return {
        "run_id": attempt.folder.parent.name,
        "status": attempt.status(),
        "method": config.method.name,
        "setting": _setting(prepared),
        "model": config.model.name,
        "checkpoint": _checkpoint(config, own),
        "task": config.task.name,
        "gpu": devices.profile_name(prepared.device),
        "dtype": config.engine.dtype,
        "length": config.decode.length,
        "seed": config.seed,
        "attempt": attempt.number,
        "batch_size": config.meter.batch_size,
    }


def _checkpoint(config: RunConfig, own: Weights) -> str:
    if own.folder is None:
        return own.fingerprint
    if config.model.checkpoint is not None:
        return config.model.checkpoint
    if config.model.variants is not None:
        return str(config.model.variants.get(config.method.name, config.model.variants[DENSE]))
    return f"{config.model.hub_id}@{own.folder.name}"


def _setting(prepared: Prepared) -> str:
    """Changed settings, and those the weights were trained for where they differ."""
    parts = [f"{key}={value}" for key, value in prepared.config.method.changed.items()]
    trained = prepared.weights[METHOD].trained
    if trained.get("method") == prepared.config.method.name:
        now = asdict(prepared.params)
        other = [f"{k}:{v}" for k, v in trained["settings"].items() if now.get(k) != v]
        parts += [f"trained_for={','.join(other)}"] if other else []
    return ";".join(parts)


def _runners(prepared: Prepared) -> dict[str, Runner]:
    """Each leg's method and weights; equal weights are held once."""
    held: dict[str, InferenceModel] = {}
    runners = {}
    for leg, weights in prepared.weights.items():
        if weights.fingerprint not in held:
            held[weights.fingerprint] = _inference_form(prepared, weights)
        name = prepared.config.method.name if leg == METHOD else DENSE
        params = prepared.params if leg == METHOD else find_params(DENSE).Params()
        method = find_method(name).Method(params, weights.shape)
        runners[leg] = Runner(method, held[weights.fingerprint], timed=leg != OWN_DENSE)
    return runners


def _inference_form(prepared: Prepared, weights: Weights) -> InferenceModel:
    config = prepared.config
    dtype: torch.dtype = getattr(torch, config.engine.dtype)
    packs = prepared.device.type == "cpu" and config.engine.dtype == "float32"
    if config.engine.packed == "on" and not packs:
        raise InputError(
            "Packed weights are not to be had here",
            got=f"{prepared.device.type}, {config.engine.dtype}",
            allowed="a CPU with float32",
            where="engine.packed",
        )
    transformer: Transformer = weights.load(dtype)
    options = Options(
        dtype=dtype,
        device=str(prepared.device),
        packed=packs and config.engine.packed != "off",
        rows=config.meter.batch_size,
    )
    return InferenceModel(transformer, options)


def _plan(prepared: Prepared) -> Plan:
    config = prepared.config
    stops = prepared.text.stop_ids if config.decode.length == "until_eos" else ()
    return Plan(
        rule=StopRule(config.max_new_tokens, stops),
        chooser=Greedy,
        repeats=config.meter.repeats,
        warmups=config.meter.warmups,
        timed_batches=config.meter.timed_batches,
        decode_text=prepared.text.decode,
        scores={name: lookup.find("bench.scores", name, "score") for name in prepared.task.scores},
    )


def _so_far(record: BatchRecord) -> str:
    """Tokens per second of the method leg's last timed pass, for the progress bar."""
    leg = record.legs[METHOD]
    if not leg.timings:
        return "decoding the rest for quality"
    tokens = sum(len(row) - 1 for row in leg.ids)
    return f"{tokens / leg.timings[-1].decode_s:.0f} tokens/s"
