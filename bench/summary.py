"""A run's row of the table, from its records: pure, free of torch.

Apart, so that a number in the table can be computed again from the records by anyone. Not here: the
meaning of the columns (``columns.py``), the intervals (``stats.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import add
from statistics import fmean, median
from typing import Any

from bench import lookup, stats
from bench.costs import flops
from bench.schema import BatchRecord, Leg
from methods.engine.ledger import Sums
from methods.engine.shape import Shape

METHOD, BASELINE, OWN_DENSE = "method", "baseline", "own_dense"


def summarise(
    batches: Sequence[BatchRecord],
    shapes: Mapping[str, Shape],
    scores: Sequence[str],
    *,
    own_reference: str | None = None,
    dense_alone: bool = False,
) -> dict[str, Any]:
    """The measured columns.

    Args:
        batches: all records of the run.
        shapes: leg -> architecture.
        scores: names of the task's scores.
        own_reference: the leg that ran dense on the method's own weights, if any did.
        dense_alone: the method leg is the dense model, and there is no other.
    """
    legs = {name: [b.legs[name] for b in batches] for name in batches[0].legs}
    row: dict[str, Any] = {
        "examples": sum(len(batch.example_ids) for batch in batches),
        "tokens": _tokens(legs[METHOD], first=0),
        "layers_per_token": _ratio(
            sum(sum(row[1:]) for leg in legs[METHOD] for row in leg.layers),
            _tokens(legs[METHOD], first=1),
        ),
    }
    row |= _speed(legs)
    row |= _flops(legs, shapes)
    row |= _speculation(legs[METHOD])
    if own_reference is not None:
        row["identical_to_dense"] = _identical(legs[METHOD], legs[own_reference])
    for score in scores:
        row |= _score(score, legs)
        if dense_alone and BASELINE not in legs:
            row[f"dense.{score}"] = row[f"score.{score}"]
    return row


def _tokens(legs: Sequence[Leg], first: int) -> int:
    """Kept tokens from the ``first``-th of each row on."""
    return sum(max(len(row) - first, 0) for leg in legs for row in leg.ids)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _speed(legs: Mapping[str, list[Leg]]) -> dict[str, Any]:
    """Times of the timed batches; repeats are averaged first."""
    timed = {name: [leg for leg in of if leg.timings] for name, of in legs.items()}
    decode_s = {
        n: [fmean(t.decode_s for t in leg.timings) for leg in of] for n, of in timed.items()
    }
    ttft_s = {n: [fmean(t.ttft_s for t in leg.timings) for leg in of] for n, of in timed.items()}
    decoded = {n: [_tokens([leg], first=1) for leg in of] for n, of in timed.items()}
    longest = [max(len(row) for row in leg.ids) - 1 for leg in timed[METHOD]]
    per_token = [s / n for s, n in zip(decode_s[METHOD], longest, strict=True) if n > 0]
    row: dict[str, Any] = {
        # Where no row went past the prompt's token there is no rate, not a rate of 0.
        "decode_tokens_per_s": _ratio(sum(decoded[METHOD]) or None, sum(decode_s[METHOD])),
        "ttft_s": median(ttft_s[METHOD]) if ttft_s[METHOD] else None,
        "tpot_s": median(per_token) if per_token else None,
    }
    if BASELINE in legs:
        speedup, (low, high) = stats.speedup(
            decode_s[BASELINE], decoded[BASELINE], decode_s[METHOD], decoded[METHOD]
        )
        whole = {n: [a + b for a, b in zip(ttft_s[n], decode_s[n], strict=True)] for n in timed}
        kept = {n: [_tokens([leg], first=0) for leg in of] for n, of in timed.items()}
        total, _ = stats.speedup(whole[BASELINE], kept[BASELINE], whole[METHOD], kept[METHOD])
        row |= {"speedup": speedup, "speedup_low": low, "speedup_high": high}
        row |= {"speedup_total": total}
    return row


def _flops(legs: Mapping[str, list[Leg]], shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Decode FLOPs per kept decode token, of the first pass over every batch."""
    row: dict[str, Any] = {}
    for kind in ("executed", "required"):
        per_token = {}
        for name in (METHOD, BASELINE):
            if name in legs:
                sums = reduce(add, (getattr(leg, f"decode_{kind}") for leg in legs[name]), Sums())
                per_token[name] = _ratio(flops(sums, shapes[name]), _tokens(legs[name], first=1))
        row[f"flops_{kind}_per_token"] = per_token[METHOD]
        row[f"flops_{kind}_ratio"] = _ratio(per_token[METHOD], per_token.get(BASELINE))
    return row


def _speculation(legs: Sequence[Leg]) -> dict[str, Any]:
    """Acceptance over all drafts together; null for a method that does not draft."""
    if any(leg.drafted is None or leg.accepted is None for leg in legs):
        return {}
    drafted = sum(sum(leg.drafted or ()) for leg in legs)
    accepted = sum(sum(leg.accepted or ()) for leg in legs)
    return {"acceptance_rate": _ratio(accepted, drafted)}


def _identical(method: Sequence[Leg], dense: Sequence[Leg]) -> float:
    """Share of examples whose ids are equal."""
    pairs = [
        (mine, theirs)
        for a, b in zip(method, dense, strict=True)
        for mine, theirs in zip(a.ids, b.ids, strict=True)
    ]
    return sum(mine == theirs for mine, theirs in pairs) / len(pairs)


def _score(name: str, legs: Mapping[str, list[Leg]]) -> dict[str, Any]:
    """A score of both legs, with intervals, and the paired difference."""
    value: Callable[[Sequence[float]], float | None] = lookup.find(
        "bench.scores", name, "score"
    ).value
    of = {n: [row for leg in legs[n] for row in leg.statistics[name]] for n in legs}
    low, high = stats.bootstrap([of[METHOD]], lambda totals: value(totals[0]))
    mine = value(_sums(of[METHOD]))
    row: dict[str, Any] = {
        f"score.{name}": mine,
        f"score.{name}.low": low,
        f"score.{name}.high": high,
    }
    if BASELINE not in legs:
        return row
    dense = value(_sums(of[BASELINE]))
    difference = partial(_difference, value)
    low, high = stats.bootstrap([of[METHOD], of[BASELINE]], difference)
    return row | {
        f"dense.{name}": dense,
        f"diff.{name}": difference([_sums(of[METHOD]), _sums(of[BASELINE])]),
        f"diff.{name}.low": low,
        f"diff.{name}.high": high,
    }


def _difference(
    value: Callable[[Sequence[float]], float | None], totals: Sequence[Sequence[float]]
) -> float | None:
    mine, dense = value(totals[0]), value(totals[1])
    return None if mine is None or dense is None else mine - dense


def _sums(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]
