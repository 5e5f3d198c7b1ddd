"""A run's row of the table, from its records: pure, free of torch.

Apart, so that a number in the table can be computed again from the records by anyone. Not here: the
meaning of the columns (``columns.py``), how times (``latency.py``), costs (``promise.py``) and
scores (``quality.py``) are made of raw values.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.latency import latency_columns, speedup_columns, tokens
from bench.promise import Machine, cost_columns
from bench.quality import score_columns
from bench.schema import BatchRecord, Leg
from methods.engine.shape import Shape

METHOD, BASELINE, OWN_DENSE = "method", "baseline", "own_dense"
# A logit gap up to this is a tie, which the rounding of other kernels may decide otherwise.
TIE = 1e-4


def summarise(
    batches: Sequence[BatchRecord],
    shapes: Mapping[str, Shape],
    scores: Sequence[str],
    *,
    machine: Machine,
    margin: float,
    own_reference: str | None = None,
    dense_alone: bool = False,
) -> dict[str, Any]:
    """The measured columns.

    Args:
        batches: all records of the run.
        shapes: leg -> architecture.
        scores: names of the task's scores.
        machine: dtype, and the device's rates.
        margin: of the verdict, as a share of a score's range.
        own_reference: the leg that ran dense on the method's own weights, if any did.
        dense_alone: the method leg is the dense model, and there is no other.
    """
    legs = {name: [b.legs[name] for b in batches] for name in batches[0].legs}
    own = legs[METHOD]
    decoded = tokens(own, first=1)
    layers = sum(
        sum(row[before:])
        for leg in own
        for row, before in zip(leg.layers, leg.first_tokens(), strict=True)
    )
    row: dict[str, Any] = {
        "examples": len({example for batch in batches for example in batch.example_ids}),
        "tokens": tokens(own, first=0),
        "layers_per_token": layers / decoded if decoded else None,
    }
    row |= latency_columns(legs)
    row |= speedup_columns(legs)
    row |= cost_columns(legs, shapes, machine)
    row |= _speculation(own)
    row |= _resources(legs)
    if own_reference is not None:
        row["identical_to_dense"] = _identical(own, legs[own_reference])
    row["differences_beyond_ties"] = _beyond_ties(batches)
    for score in scores:
        row |= score_columns(score, batches, margin)
        if dense_alone and BASELINE not in legs:
            row[f"dense.{score}"] = row[f"score.{score}"]
    return row


def _speculation(legs: Sequence[Leg]) -> dict[str, Any]:
    """Acceptance over all drafts together; null for a method that does not draft."""
    found = [leg.speculation for leg in legs if leg.speculation is not None]
    drafted = sum(each.drafted for each in found)
    verifications = sum(each.verifications for each in found)
    if not found:
        return {}
    accepted = sum(each.accepted for each in found)
    kept = tokens(legs, first=1)
    return {
        "acceptance_rate": accepted / drafted if drafted else None,
        "tokens_per_verification": kept / verifications if verifications else None,
        "drafted_per_verification": drafted / verifications if verifications else None,
    }


def _resources(legs: Mapping[str, Sequence[Leg]]) -> dict[str, Any]:
    """Peaks over all batches, and energy for each kept token; of both legs where they ran."""
    row: dict[str, Any] = {}
    for leg, prefix in ((METHOD, ""), (BASELINE, "dense.")):
        of = legs.get(leg, ())
        row |= {
            f"{prefix}peak_memory_bytes": _highest([each.peak_memory_bytes for each in of]),
            f"{prefix}peak_rss_bytes": _highest([each.peak_rss_bytes for each in of]),
            f"{prefix}joules_per_token": _energy_per_token(of),
        }
    return row


def _highest(peaks: Sequence[int | None]) -> int | None:
    """The highest; None if one is not known, for it may have been the highest."""
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _energy_per_token(legs: Sequence[Leg]) -> float | None:
    """Joules of whole passes, prompt included, for each kept token: mean over measured batches."""
    found = [
        leg.energy.joules / leg.energy.passes / kept
        for leg in legs
        if leg.energy is not None and (kept := tokens([leg], first=0))
    ]
    return fmean(found) if found else None


def _beyond_ties(batches: Sequence[BatchRecord]) -> int | None:
    """Examples of a lossless method whose difference is no tie; None if nobody looked."""
    if any(batch.differences is None for batch in batches):
        return None
    gaps = [each.logit_gap for batch in batches for each in batch.differences or ()]
    return sum(gap > TIE for gap in gaps)


def _identical(method: Sequence[Leg], dense: Sequence[Leg]) -> float:
    """Share of examples whose ids are equal."""
    pairs = [
        (mine, theirs)
        for a, b in zip(method, dense, strict=True)
        for mine, theirs in zip(a.ids, b.ids, strict=True)
    ]
    return sum(mine == theirs for mine, theirs in pairs) / len(pairs)
