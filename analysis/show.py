"""One run on a page: what it is, what came out, where it was made.

Apart, because a reader of one run wants to see beside each number what it rests on. The page is
plain data first (``page``), which json shows as it is; free of torch. Not here: how a number is
made (``bench/``), tables over runs (``runs.py``), how the page looks (``layout.py``).
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import layout, record
from analysis.record import Run
from bench import columns, stats, surroundings
from bench.errors import InputError
from bench.latency import latency_columns, times
from bench.schema import BatchRecord, Leg
from bench.summary import BASELINE, METHOD

FORMATS = ("table", "json")
ABOUT = """One run on a page: the speed-up by each of its definitions, drift, latency, promises and
costs, scores with their verdicts, and where it was made. json holds the same as one object, with
every digit; null is not known or not applicable, never 0.
"""

_WHAT = tuple(column.name for column in columns.COLUMNS if not column.unit)
_COUNTS = ("batch_size", "examples", "tokens", "timed_passes")
_AGREEMENT = ("identical_to_dense", "differences_beyond_ties", "acceptance_rate")
# Shown among speed-ups, latencies and promises.
_ELSEWHERE = ("speedup", "decode_tokens_per_s", "ttft", "tpot", "round", "lost_to_overhead")
_MACHINE = ("device", "device_name", "driver", "cpu_model", "threads", "hostname", "platform")
_CODE = ("git_revision", "git_dirty", "python", "packages", "environment")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What ``show`` accepts beside folders, format and output."""
    parser.add_argument("run_id", metavar="RUN_ID", help="an id, or the beginning of one")


def answered(chosen: argparse.Namespace, width: int | None) -> str:
    """The text that was asked for.

    Args:
        chosen: of the command line.
        width: characters of a line of the screen; None for as many as are needed.

    Raises:
        InputError: for a run that is not to be had, or another format.
    """
    if chosen.format not in FORMATS:
        raise InputError(
            "There is no output format of this name",
            got=chosen.format,
            allowed=", ".join(FORMATS),
            where="--format",
        )
    (run,) = record.found(chosen.results, [chosen.run_id])
    found = page(run)
    if chosen.format == "json":
        return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    return layout.rendered(found, width)


def page(run: Run) -> dict[str, Any]:
    """All that the page shows, as plain data; null where not known or not applicable."""
    legs = {name: [batch.legs[name] for batch in run.batches] for name in run.batches[0].legs}
    row = run.columns
    return {
        "run": _about(run),
        "speedups": _speedups(legs),
        "speedup_total": row.get("speedup_total"),
        "drift": _drift(legs),
        "latency": {
            name: latency_columns({METHOD: legs[name]})
            for name in (METHOD, BASELINE)
            if name in legs
        },
        "promises": _promises(row),
        "costs": {
            name: row.get(name)
            for name, unit, _ in columns.COLUMNS
            if unit and name not in (*_COUNTS, *_AGREEMENT) and not name.startswith(_ELSEWHERE)
        },
        "agreement": {name: row.get(name) for name in _AGREEMENT},
        "scores": {name: _score(row, name) for name in run.scores},
        "segments": _segments(run),
        "unlike_segments": [
            {"field": each.field, "first": each.mine, "later": each.theirs}
            for each in run.conditions.within
        ],
    }


def _about(run: Run) -> dict[str, Any]:
    """What ran, and how much of it."""
    names = (*_WHAT, *_COUNTS)
    return {name: run.columns.get(name) for name in names} | {
        "max_new_tokens": run.start.identity.get("decode", {}).get("max_new_tokens"),
        "batches": len(run.batches),
        "started_at": run.start.started_at,
        "ended_at": run.ended_at,
    }


def _speedups(legs: Mapping[str, Sequence[Leg]]) -> dict[str, Any]:
    """Each definition by its name: value and ends of the interval; empty without a baseline."""
    if BASELINE not in legs:
        return {}
    dense, own = times(legs[BASELINE]), times(legs[METHOD])
    found = {}
    for name, definition in stats.SPEEDUPS.items():
        value, (low, high) = definition(dense.decode_s, dense.decoded, own.decode_s, own.decoded)
        found[name] = {"value": value, "low": low, "high": high}
    return found


def _drift(legs: Mapping[str, Sequence[Leg]]) -> dict[str, Any]:
    """The speed-up of either half of the timed batches, in the order of time."""
    if BASELINE not in legs:
        return {}
    dense, own = times(legs[BASELINE]), times(legs[METHOD])
    first, second = stats.drift(dense.decode_s, dense.decoded, own.decode_s, own.decoded)
    return {"first_half": first, "second_half": second}


def _promises(row: Mapping[str, Any]) -> dict[str, Any]:
    """Speed-ups that counts and models promised, beside the measured one."""
    prefix = "speedup_promised_by_"
    promised = {n.removeprefix(prefix): row[n] for n in row if n.startswith(prefix)}
    return promised | {
        "measured": row.get("speedup"),
        "lost_to_overhead": row.get("lost_to_overhead"),
    }


def _score(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A score's columns, by what they are."""
    return {
        column.name.replace(".NAME", ""): row.get(column.name.replace("NAME", name))
        for column in columns.SCORE_COLUMNS
    }


def _segments(run: Run) -> list[dict[str, Any]]:
    """Each process that worked on the run: where, with what, and what makes its times doubtful."""
    return [
        {"started_at": segment.started_at, "warnings": surroundings.warnings(segment.provenance)}
        | {name: segment.provenance.get(name) for name in (*_MACHINE, *_CODE)}
        | {"timed_batches": sum(_timed_in(number, batch) for batch in run.batches)}
        for number, segment in enumerate(run.segments)
    ]


def _timed_in(number: int, batch: BatchRecord) -> bool:
    return batch.segment == number and any(leg.timings for leg in batch.legs.values())
