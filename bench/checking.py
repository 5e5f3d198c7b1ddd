"""``action=check``: all that can be known of a run without running it.

Apart from ``planning.py``, because lengths in tokens need a tokenizer. Not here: the checks
themselves, which a run makes too (``planning.py``, ``preparation.py``).
"""

import sys
from pathlib import Path

import torch

from bench.config import RunConfig
from bench.errors import InputError
from bench.jobs import check_writable
from bench.memory_estimate import Estimate, estimate
from bench.planning import plan
from bench.preparation import Prepared, prepare
from bench.summary import METHOD
from methods.registry import find_params

_MEMORY_FILE = Path("/proc/meminfo")


def check(config: RunConfig) -> None:
    """Prints what was found.

    Raises:
        InputError: for whatever would refuse the run, and for memory that does not suffice.
    """
    check_writable(Path(config.results_dir))
    prepared = prepare(plan(config))
    planned = prepared.planned
    needed, available = memory_of(prepared), available_bytes(prepared.device)
    longest = max(map(len, prepared.rows))
    sys.stdout.write(
        f"run {planned.run_id}: {config.method.name} on {config.model.name}, {config.task.name}\n"
        f"  settings  {prepared.params}\n"
        f"  examples  {len(prepared.rows)}, longest prompt {longest} tokens, "
        f"{config.max_new_tokens} new\n"
        f"  memory    {_told(needed)}, of {_gigabytes(available)} on {planned.gpu}\n"
    )
    check_memory(needed, available)


def memory_of(prepared: Prepared) -> Estimate:
    """The estimate of a run's memory."""
    planned = prepared.planned
    config = planned.config
    own = find_params(config.method.name).ABILITIES.engine == "own"
    # A peer holds the weights in a model of its own, beside the baseline's.
    shapes = {
        (each.fingerprint, own or leg != METHOD): each.shape
        for leg, each in planned.weights.items()
    }
    packs = prepared.device.type == "cpu" and config.engine.dtype == "float32"
    return estimate(
        shapes.values(),
        dtype=config.engine.dtype,
        packed=packs and config.engine.packed != "off",
        rows=min(config.meter.batch_size, len(prepared.rows)),
        positions=prepared.positions,
    )


def available_bytes(device: torch.device) -> int | None:
    """Memory that is free for a run; None where it is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if not _MEMORY_FILE.exists():
        return None
    lines = _MEMORY_FILE.read_text(encoding="utf-8").splitlines()
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def check_memory(needed: Estimate, available: int | None) -> None:
    """Refuses what cannot fit.

    Raises:
        InputError: naming what the memory is needed for.
    """
    if available is not None and needed.total_bytes > available:
        raise InputError(
            "The run does not fit into memory",
            got=_told(needed),
            allowed=f"{_gigabytes(available)} are free",
            where="engine.dtype, engine.packed=off, meter.batch_size, decode.max_new_tokens, model",
        )


def _told(needed: Estimate) -> str:
    return (
        f"{_gigabytes(needed.total_bytes)} at least (weights {_gigabytes(needed.weights_bytes)}, "
        f"packed copies {_gigabytes(needed.packed_copies_bytes)}, "
        f"K/V cache {_gigabytes(needed.cache_bytes)})"
    )


def _gigabytes(size: int | None) -> str:
    return "an unknown amount" if size is None else f"{size / 1e9:,.2f} GB"
