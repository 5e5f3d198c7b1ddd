"""Columns of cost: what was run, what it should have taken, and what was lost on the way.

A method's counts promise a speed-up: by FLOPs, by bytes, by the device's roofline. Beside the
measured one this tells whether a method is slow because it saves little or because what it saves
does not become time. Promises are of the timed batches, which the measured speed-up is of; costs
per token are of all batches. Pure, free of torch. Not here: the count (``costs.py``), the device's
rates (``gpus.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, Literal

from bench.costs import Rates, bytes_moved, flops, roofline_s
from bench.latency import timed, times, tokens
from bench.schema import Leg
from methods.engine.ledger import Sums, Traffic
from methods.engine.shape import Shape

Legs = Mapping[str, Sequence[Leg]]


@dataclass(frozen=True, slots=True)
class Machine:
    """What turns counts into bytes and seconds.

    Attributes:
        dtype: of weights and cache.
        rates: of the device, for that dtype.
    """

    dtype: str
    rates: Rates = field(default_factory=Rates)


@dataclass(frozen=True, slots=True)
class Work:
    """What some batches of one leg cost in decoding.

    Attributes:
        executed: FLOPs that ran.
        required: FLOPs that live rows asked for.
        moved: bytes; None where a record does not say.
        decoded: kept decode tokens.
        roofline_s: the least time for it; None without bytes or rates.
        decode_s: the time it took, repeats averaged; None for batches that were not timed.
    """

    executed: int
    required: int
    moved: int | None
    decoded: int
    roofline_s: float | None
    decode_s: float | None


def cost_columns(legs: Legs, shapes: Mapping[str, Shape], machine: Machine) -> dict[str, Any]:
    """Costs per token, ratios to the baseline, roofline fractions and promises."""
    all_of = {n: _work(legs[n], shapes[n], machine) for n in ("method", "baseline") if n in legs}
    timed_of = {n: _work(timed(legs[n]), shapes[n], machine) for n in all_of}
    own, dense = all_of["method"], all_of.get("baseline")
    row: dict[str, Any] = {
        "flops_executed_per_token": _ratio(own.executed, own.decoded),
        "flops_required_per_token": _ratio(own.required, own.decoded),
        "bytes_per_token": _ratio(own.moved, own.decoded),
        "intensity_flops_per_byte": _ratio(own.executed, own.moved),
        "roofline_fraction": _fraction(timed_of["method"]),
    }
    if dense is None:
        return row
    row |= {
        "flops_executed_ratio": _saving(own, dense, "executed"),
        "flops_required_ratio": _saving(own, dense, "required"),
        "bytes_ratio": _saving(own, dense, "moved"),
        "dense.roofline_fraction": _fraction(timed_of["baseline"]),
    }
    return row | _promises(timed_of["method"], timed_of["baseline"])


def _promises(own: Work, dense: Work) -> dict[str, Any]:
    """Speed-ups that the counts promise, and the share of the best one that was not kept."""
    promised = {
        "flops": _saving(dense, own, "executed"),
        "bytes": _saving(dense, own, "moved"),
        "roofline": _saving(dense, own, "roofline_s"),
    }
    measured = _saving(dense, own, "decode_s")
    kept = _ratio(measured, promised["roofline"])
    return {f"speedup_promised_by_{name}": value for name, value in promised.items()} | {
        "lost_to_overhead": None if kept is None else 1 - kept
    }


def _work(legs: Sequence[Leg], shape: Shape, machine: Machine) -> Work:
    executed = flops(reduce(add, (leg.decode_executed for leg in legs), Sums()), shape)
    required = flops(reduce(add, (leg.decode_required for leg in legs), Sums()), shape)
    traffic = [leg.decode_traffic for leg in legs if leg.decode_traffic is not None]
    moved = None
    if len(traffic) == len(legs):
        moved = bytes_moved(reduce(add, traffic, Traffic()), shape, machine.dtype)
    return Work(
        executed=executed,
        required=required,
        moved=moved,
        decoded=tokens(legs, first=1),
        roofline_s=roofline_s(executed, moved, machine.rates),
        decode_s=sum(times(legs).decode_s) if legs and timed(legs) == list(legs) else None,
    )


def _saving(
    above: Work,
    below: Work,
    what: Literal["executed", "required", "moved", "roofline_s", "decode_s"],
) -> float | None:
    """Cost of a kept decode token of one, over that of the other."""
    return _ratio(
        _ratio(getattr(above, what), above.decoded), _ratio(getattr(below, what), below.decoded)
    )


def _fraction(work: Work) -> float | None:
    """Roofline time over measured time."""
    return _ratio(work.roofline_s, work.decode_s)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
