"""What the legs of a run decode with: each one's method and weights, in inference form.

Apart, because equal weights are held once, and because sizes and rates of what is held belong
together. Not here: which weights a leg has (``planning.py``), how legs are measured
(``measure.py``).
"""

import shutil
from collections.abc import Hashable, Mapping
from typing import Any, Literal

import torch
from safetensors.torch import load_file

from bench import companion, gpus, log, models
from bench.config import DENSE
from bench.costs import Rates
from bench.decoding import decode
from bench.errors import InputError
from bench.measure import Runner
from bench.memory_estimate import estimate
from bench.peers import PeerDecoder
from bench.preparation import Prepared
from bench.progress import Progress
from bench.promise import Machine
from bench.summary import METHOD, OWN_DENSE
from bench.weights import Weights
from methods.contract import HasCompanion, Method
from methods.engine.bound import Options, best_attention
from methods.engine.hf import HfModel
from methods.engine.inference import InferenceModel
from methods.engine.transformer import Transformer
from methods.registry import find_method, find_params

# What the compiler of blocks looks for on a CPU.
COMPILERS = ("g++", "clang++")


def runners(prepared: Prepared, held: dict[Hashable, Any] | None = None) -> Mapping[str, Runner]:
    """Each leg's method and weights; equal weights are held once.

    Args:
        prepared: the run.
        held: models of the last run in this process; those that this one needs are not loaded
            again, the others are let go. Changed in place. None for a run alone.
    """
    held = {} if held is None else held
    config, legs = prepared.planned.config, prepared.planned.weights
    engines = {leg: _engine(prepared, leg) for leg in legs}
    keys = {leg: _held_as(prepared, engines[leg], weights) for leg, weights in legs.items()}
    distinct = {keys[leg]: (engines[leg], weights) for leg, weights in legs.items()}
    for key in set(held) - set(distinct):
        del held[key]
    with Progress("loading weights", len(distinct), quiet=config.verbosity == "quiet") as progress:
        for at, (key, (engine, weights)) in enumerate(distinct.items()):
            if key not in held:
                told = weights.folder or weights.fingerprint
                log.LOG.info("loading %s for engine %s", told, engine)
                load = _inference_form if engine == "own" else _peer_form
                held[key] = load(prepared, weights)
            progress.to(at + 1)
    # A time that nobody could have stands beside none.
    realisable = find_params(config.method.name).ABILITIES.realisable
    found = {}
    for leg, weights in legs.items():
        if leg == METHOD:
            method = method_of(prepared, prepared.params)
        else:
            method = find_method(DENSE).Method(find_params(DENSE).Params(), weights.shape)
        timed = realisable and leg != OWN_DENSE
        drive = decode if engines[leg] == "own" else PeerDecoder()
        found[leg] = Runner(method, held[keys[leg]], timed=timed, decode=drive)
    return found


def _engine(prepared: Prepared, leg: str) -> str:
    """Whose code decodes a leg: a peer's is the method leg."""
    name = prepared.planned.config.method.name if leg == METHOD else DENSE
    return find_params(name).ABILITIES.engine


def method_of(prepared: Prepared, params: Any) -> Method:  # noqa: ANN401  # each method has its own type of params
    """The run's method with these settings, and with what it needs beside its weights."""
    name, own = prepared.planned.config.method.name, prepared.planned.weights[METHOD]
    method = find_method(name).Method(params, own.shape)
    beside = companion.find(name, params, own)
    if beside is not None and isinstance(method, HasCompanion):
        method.attach(load_file(beside.path), prepared.device)
    return method


def machine(prepared: Prepared) -> Machine:
    """Dtype and rates that turn a run's counts into bytes and seconds."""
    dtype = prepared.planned.config.engine.dtype
    rates = gpus.rates_for(prepared.planned.profile, torch.get_num_threads())
    return Machine(
        dtype, Rates(getattr(rates.peak_flops_per_s, dtype), rates.read_bandwidth_bytes_per_s)
    )


def predicted_speedup(prepared: Prepared, row: Mapping[str, Any]) -> float | None:
    """What the method's own latency model makes of its acceptance; None if it has none."""
    abilities = find_params(prepared.planned.config.method.name).ABILITIES
    given, drafted = row.get("tokens_per_verification"), row.get("drafted_per_verification")
    if abilities.latency_model is None or given is None or drafted is None:
        return None
    shape = prepared.planned.weights[METHOD].shape
    return abilities.latency_model(prepared.params, shape, given, drafted)


def sizes(prepared: Prepared) -> dict[str, Any]:
    """Bytes that the method leg holds."""
    planned = prepared.planned
    config = planned.config
    needed = estimate(
        [planned.weights[METHOD].shape],
        dtype=config.engine.dtype,
        packed=_engine(prepared, METHOD) == "own" and _packs(prepared),
        rows=min(config.meter.batch_size, len(prepared.rows)),
        positions=prepared.positions,
    )
    return {
        "weights_bytes": needed.weights_bytes + needed.packed_copies_bytes,
        "kv_cache_bytes": needed.cache_bytes,
    }


def _packs(prepared: Prepared) -> bool:
    """Whether matrices are laid out anew for the CPU.

    Raises:
        InputError: if that is demanded where it is not to be had.
    """
    engine = prepared.planned.config.engine
    kind = prepared.device.type
    can = kind == "cpu" and engine.dtype in ("float32", "bfloat16") and not engine.compile
    if engine.packed == "on" and not can:
        raise InputError(
            "Packed weights are not to be had here",
            got=f"{kind}, {engine.dtype}, engine.compile={str(engine.compile).lower()}",
            allowed="a CPU with float32 or bfloat16, blocks not compiled",
            where="engine.packed, engine.compile",
        )
    return can and engine.packed != "off"


def _inference_form(prepared: Prepared, weights: Weights) -> InferenceModel:
    options = _options(prepared)
    transformer: Transformer = models.load(weights, options.dtype)
    # The parameters are given up block by block, so that weights are held once.
    return InferenceModel(transformer, options, consume=True)


def _peer_form(prepared: Prepared, weights: Weights) -> HfModel:
    """As the library holds it: of the engine's options, dtype and device alone apply."""
    options = _options(prepared)
    return models.load_peer(
        weights, Options(dtype=options.dtype, device=options.device, packed=False)
    )


def _held_as(prepared: Prepared, engine: str, weights: Weights) -> Hashable:
    """What a model must be for a leg to run on it: these weights, held like this."""
    return engine, weights.fingerprint, _options(prepared)


def _options(prepared: Prepared) -> Options:
    config = prepared.planned.config
    packed = _packs(prepared)
    return Options(
        dtype=getattr(torch, config.engine.dtype),
        device=str(prepared.device),
        packed=packed,
        # Of what is not laid out by it, the rows make no other model.
        rows=config.meter.batch_size if packed else 1,
        attention=_attention(prepared),
        compiled=_compiles(prepared),
        cuda_graphs=_records(prepared),
    )


def _compiles(prepared: Prepared) -> bool:
    """Whether blocks are compiled.

    Raises:
        InputError: if that is demanded of a CPU without a C++ compiler.
    """
    wanted = prepared.planned.config.engine.compile
    if wanted and prepared.device.type == "cpu" and not any(map(shutil.which, COMPILERS)):
        raise InputError(
            "Blocks cannot be compiled here",
            got="no C++ compiler",
            allowed=" or ".join(COMPILERS),
            where="engine.compile",
        )
    return wanted


def _records(prepared: Prepared) -> bool:
    """Whether blocks are recorded as CUDA graphs.

    Raises:
        InputError: if that is demanded of another device.
    """
    wanted = prepared.planned.config.engine.cuda_graphs
    if wanted and prepared.device.type != "cuda":
        raise InputError(
            "CUDA graphs are not to be had here",
            got=prepared.device.type,
            allowed="a CUDA device",
            where="engine.cuda_graphs, gpu",
        )
    return wanted


def _attention(prepared: Prepared) -> Literal["sdpa", "products"]:
    engine, rows = prepared.planned.config.engine, prepared.planned.config.meter.batch_size
    if engine.attention != "auto":
        return engine.attention
    return best_attention(prepared.device.type, getattr(torch, engine.dtype), rows)
