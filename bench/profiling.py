"""``action=profile-gpu``: measures how fast a device reads, copies and multiplies at best.

Apart from ``gpus.py``, because measuring needs torch. What is measured are the calls that decoding
makes of torch, not what the hardware could do: so a run can come near to these rates, and a data
sheet's are seldom reached. Not here: which profile a run gets (``gpus.py``).
"""

import json
import math
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import disk, gpus, presence
from bench.checking import available_bytes
from bench.config import RunConfig
from bench.errors import InputError
from bench.gpus import GpuConfig, PeakFlops
from bench.meters import device as devices
from bench.meters.clock import elapsed, now_utc
from bench.progress import Progress

_MIB = 2**20
# Far beyond the caches; less only where memory does not suffice.
_ARRAY_BYTES, _LEAST_ARRAY_BYTES = 1024 * _MIB, 256 * _MIB
# Two to copy, and one as room for everything else.
_ARRAYS_HELD = 3
# One pass is as many calls as fill this time, so that starting them does not count.
_PASS_S, _PASSES, _TICK_S = 0.1, 5, 1e-7
# Square matrices, each size twice the last; a call that would take longer is not tried.
_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_CALL_S = 0.5
# So begins the source of a profile that may be measured anew.
_MEASURED = "measured by action=profile-gpu"

_HEAD = """\
# {device}, measured on one machine.
# Run: python -m bench +method=skipdecode gpu={stem}

name: {name}
# What the driver or the system calls it.
device_names: {device_names}
# Dense square matrix products by torch.
peak_flops_per_s:
  float32: {float32}
  bfloat16: {bfloat16}
  float16: {float16}
# A sum over a large array; a copy of one, as bytes read and bytes written.
read_bandwidth_bytes_per_s: {read_bandwidth_bytes_per_s}
copy_bandwidth_bytes_per_s: {copy_bandwidth_bytes_per_s}
memory_bytes: {memory_bytes}
threads: {threads}
source: {source}
"""


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is measured.

    Attributes:
        device: where.
        known: its profile so far, with the rates for this number of threads.
        called: what the driver or the system calls it; None if it does not tell.
        threads: of a CPU; None for a GPU.
        stem: name of the profile's file.
    """

    device: torch.device
    known: GpuConfig
    called: str | None
    threads: int | None
    stem: str


def profile(config: RunConfig) -> None:
    """Measures the device, prints its rates, and writes a profile where none has them.

    Raises:
        InputError: for a device that is not there, too little memory, or a folder that cannot be
            written; the rates are printed before.
    """
    subject = _subject(config.gpu)
    array_bytes = _array_bytes(available_bytes(subject.device))
    if array_bytes < _ARRAY_BYTES:
        sys.stdout.write(f"little memory is free: arrays of {array_bytes // _MIB} MiB only\n")
    measured = _measure(subject, array_bytes, quiet=config.verbosity == "quiet")
    sys.stdout.write(table(subject.known, measured))
    if gpus.has_rates(subject.known) and not _was_measured(subject.known):
        sys.stdout.write(f"nothing written: gpu={subject.known.name} keeps its rates\n")
        return
    path = gpus.FOLDER / f"{subject.stem}.yaml"
    _write(path, text(measured, subject.stem))
    sys.stdout.write(f"{path}\n{_use(subject)}\n")


def table(known: GpuConfig, measured: GpuConfig) -> str:
    """The measured rates, a line each, beside those that were known."""
    lines = [f"{measured.device_names[0] if measured.device_names else measured.name}:"]
    for (label, new), (_, old) in zip(_labelled(measured), _labelled(known), strict=True):
        beside = ""
        if old is not None:
            share = "" if new is None else f", so {new / old:.0%} of it"
            beside = f"   (profile: {_giga(old)}{share})"
        lines.append(f"  {label:<20} {_giga(new):>12}{beside}")
    if gpus.has_rates(known) and known.source is not None:
        lines.append(f"  profile: {known.source}")
    return "\n".join(lines) + "\n"


def text(measured: GpuConfig, stem: str) -> str:
    """The file of a measured profile."""
    peak = measured.peak_flops_per_s
    numbers = {each.name: getattr(peak, each.name) for each in fields(PeakFlops)} | {
        each.name: getattr(measured, each.name)
        for each in fields(GpuConfig)
        if each.name not in ("name", "device_names", "peak_flops_per_s", "source")
    }
    threads = "" if measured.threads is None else f" with {_counted(measured.threads)}"
    called = measured.device_names[0] if measured.device_names else measured.name
    return _HEAD.format(
        device=called + threads,
        stem=stem,
        name=measured.name,
        device_names=json.dumps(list(measured.device_names)),
        source=json.dumps(measured.source),
        **{key: _yaml(value) for key, value in numbers.items()},
    )


def _subject(gpu: GpuConfig) -> _Subject:
    """The device to measure, by torch's own word: a driver's tool may list another one first."""
    if gpu.name == gpus.AUTO and torch.cuda.is_available():
        device = torch.device("cuda")
        known = gpus.of_device(torch.cuda.get_device_name(device))
    else:
        known = replace(gpu, name=gpus.CPU) if gpu.name == gpus.AUTO else gpus.resolve(gpu)
        device = presence.resolve(known)
    if device.type == "cuda":
        return _Subject(device, known, torch.cuda.get_device_name(device), None, known.name)
    threads, called = torch.get_num_threads(), gpus.cpu_model()
    stem = f"cpu-{gpus.slug(called or platform.machine())}-{threads}t"
    return _Subject(device, gpus.rates_for(known, threads), called, threads, stem)


def _array_bytes(available: int | None) -> int:
    """Bytes of one array, by what memory allows.

    Raises:
        InputError: if not even small ones fit.
    """
    if available is None:
        return _ARRAY_BYTES
    fits = min(_ARRAY_BYTES, available // _ARRAYS_HELD // _MIB * _MIB)
    if fits < _LEAST_ARRAY_BYTES:
        raise InputError(
            "Too little memory is free to measure the device",
            got=f"{available / _MIB:,.0f} MiB",
            allowed=f"{_ARRAYS_HELD * _LEAST_ARRAY_BYTES // _MIB} MiB, better "
            f"{_ARRAYS_HELD * _ARRAY_BYTES // _MIB:,}",
            where="the machine, or what else runs on it",
        )
    return fits


def _measure(subject: _Subject, array_bytes: int, *, quiet: bool) -> GpuConfig:
    """The profile with the rates that were measured."""
    dtypes = [each.name for each in fields(PeakFlops)]
    peaks: dict[str, float | None] = {}
    device = subject.device
    with Progress(f"measuring {subject.known.name}", 1 + len(dtypes), quiet=quiet) as progress:
        progress.note("memory")
        read, copied = _bandwidths(device, array_bytes)
        progress.to(1)
        for name in dtypes:
            progress.note(f"matrix products in {name}")
            peaks[name] = _peak(device, getattr(torch, name), 2 * array_bytes)
            progress.to(1 + len(peaks))
    source = f"{_MEASURED} on {now_utc()[:10]} with torch {torch.__version__}"
    if array_bytes < _ARRAY_BYTES:
        source += f", arrays of {array_bytes // _MIB} MiB only"
    return GpuConfig(
        name=subject.known.name,
        device_names=() if subject.called is None else (subject.called,),
        peak_flops_per_s=PeakFlops(**peaks),
        read_bandwidth_bytes_per_s=read,
        copy_bandwidth_bytes_per_s=copied,
        memory_bytes=_memory_bytes(device),
        threads=subject.threads,
        source=source,
    )


def _bandwidths(device: torch.device, array_bytes: int) -> tuple[float, float]:
    """Bytes per second of a sum, and of a copy: those read and those written."""
    # Not zeros: pages that nobody wrote to may all be one.
    values = torch.ones(array_bytes // 4, dtype=torch.float32, device=device)
    read = array_bytes / _best_s(device, values.sum)
    target = torch.empty_like(values)
    return read, 2 * array_bytes / _best_s(device, partial(target.copy_, values))


def _peak(device: torch.device, dtype: torch.dtype, room_bytes: int) -> float | None:
    """FLOPs per second of the square matrix product that does best; None if the device has none."""
    best: float | None = None
    for size in _SIZES:
        if 3 * size * size * dtype.itemsize > room_bytes:
            break
        # Random, for a GPU slows down with the bits that change.
        one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(one)
        try:
            seconds = _best_s(device, partial(torch.matmul, one, other, out=out))
        except RuntimeError:
            # Every device has room for the smallest: it is the dtype that is not to be had.
            if best is None:
                return None
            raise
        best = max(best or 0.0, 2 * size**3 / seconds)
        if 8 * seconds > _CALL_S:
            break
    return best


def _best_s(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds of one call, in the best of several passes."""
    waited = devices.of(device)
    # What is set up at the first call is no part of it.
    elapsed(waited, work)
    calls = max(1, math.ceil(_PASS_S / max(elapsed(waited, work), _TICK_S)))

    def once() -> None:
        for _ in range(calls):
            work()

    return min(elapsed(waited, once) for _ in range(_PASSES)) / calls


def _memory_bytes(device: torch.device) -> int | None:
    """All memory of a GPU; of a CPU it is the machine's, and nobody's to state."""
    if device.type == "cpu":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def _was_measured(known: GpuConfig) -> bool:
    return known.source is not None and known.source.startswith(_MEASURED)


def _write(path: Path, content: str) -> None:
    try:
        disk.replace(path, content.encode())
    except InputError as error:
        raise InputError(
            "Cannot write the device profile",
            got=error.got,
            allowed="a folder that can be written; or the rates above, put into a file by hand",
            where=str(path),
        ) from error


def _use(subject: _Subject) -> str:
    """How the new profile is chosen."""
    if subject.called is None:
        return f"gpu={subject.stem} takes it: the system does not tell the CPU's model"
    if subject.threads is not None:
        return f"gpu=cpu takes it on this CPU model, with {_counted(subject.threads)}"
    return f"gpu=auto takes it on this device, gpu={subject.stem} as well"


def _counted(threads: int) -> str:
    return f"{threads} thread" if threads == 1 else f"{threads} threads"


def _labelled(each: GpuConfig) -> list[tuple[str, float | None]]:
    peaks = each.peak_flops_per_s
    return [
        ("read, GB/s", each.read_bandwidth_bytes_per_s),
        ("copy, GB/s", each.copy_bandwidth_bytes_per_s),
        *((f"{one.name}, GFLOP/s", getattr(peaks, one.name)) for one in fields(PeakFlops)),
    ]


def _giga(value: float | None) -> str:
    return "not known" if value is None else f"{value / 1e9:,.1f}"


def _yaml(value: Any) -> str:  # noqa: ANN401  # any number or None
    """A number with four digits; a float keeps its point, so that it stays one."""
    if value is None:
        return "null"
    return f"{value:.3e}" if isinstance(value, float) else str(value)
