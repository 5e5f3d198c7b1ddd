"""Runs against a reference run: times per token and scores, and whether they may be compared.

Apart, because a ratio across runs is weaker than the paired one within a run, and must never be
mistaken for it. Pure but for ``answered``; free of torch. Not here: what runs must share
(``bench/gate.py``), how rows become text (``runs.py``).
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from analysis import record, runs
from analysis.record import Run
from bench import gate, lookup, stats
from bench.errors import InputError
from bench.latency import Times, times
from bench.quality import by_example, difference
from bench.summary import METHOD

ABOUT = """Sets runs beside the first of them, the reference.

ratio is the decode time per kept token of the method legs, reference / run, over the batches that
both timed: above 1 the run is faster. diff.NAME is run - reference over the examples of both. The
legs did not alternate in one process, so a ratio is weaker than speedup, which is each run's own,
paired with its baseline. Runs that differ in hardware, code, dtype, engine, batch size, prompts or
limits are refused, with the fields named; --allow-unlike shows them with a mark.
"""

SEPARATE = "separate processes"
_KNOWN = ("run_id", "method", "setting", "model", "task", "gpu", "dtype", "length", "batch_size")
_RATIO = ("unlike", "measured_in", "batches", "ratio", "ratio_low", "ratio_high")
_OWN = ("speedup", "speedup_low", "speedup_high", "examples")
_NOTE = """ratio: decode time per kept token, reference / run, in separate processes: weaker than
speedup, which each run measured beside its own baseline, legs alternating
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What ``compare`` accepts beside folders, format and output."""
    parser.add_argument("run_ids", nargs="+", metavar="RUN_ID", help="the first is the reference")
    parser.add_argument(
        gate.OVERRIDE, action="store_true", help="show runs that differ too, with a mark"
    )


def answered(chosen: argparse.Namespace, width: int | None) -> str:
    """The text that was asked for.

    Args:
        chosen: of the command line.
        width: characters of a line of the screen; None for as many as are needed.

    Raises:
        InputError: for runs that are not to be had or not to be compared.
    """
    if len(chosen.run_ids) < 2:
        raise InputError(
            "There is nothing to compare",
            got=" ".join(chosen.run_ids),
            allowed="two run ids or more, the reference first",
            where="RUN_ID",
        )
    reference, *others = record.found(chosen.results, chosen.run_ids)
    unlike = [gate.differences(reference.conditions, other.conditions) for other in others]
    for found in unlike:
        gate.refuse(found, allow_unlike=chosen.allow_unlike)
    rows = compared(reference, others)
    if chosen.format != "table":
        return runs.rendered(rows, chosen.format)
    marked = [{**row, "run_id": _marked(row)} for row in rows]
    # The note below says it of all rows.
    names = [name for name in rows[0] if name != "measured_in"]
    table = runs.rendered(marked, chosen.format, width, names=names)
    return "\n".join([table, _NOTE]) + "".join(_footnotes(others, unlike))


def compared(reference: Run, others: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for the reference, then one for each other run.

    Returns:
        Rows of equal columns, of the reference's scores. ``unlike`` names the fields that differ;
        null where none do. What takes two runs is null for the reference.
    """
    scores = reference.scores
    rows: list[dict[str, Any]] = [dict(reference.columns)]
    for other in others:
        unlike = gate.fields(gate.differences(reference.conditions, other.conditions))
        rows.append({**other.columns, **_across(reference, other, scores), "unlike": unlike})
    # The reference's own difference to its baseline is another number of the same name.
    rows[0] |= dict.fromkeys([*_RATIO, *(n for name in scores for n in _differences(name))])
    names = [*_KNOWN, *_RATIO, *_OWN]
    names += [n for name in scores for n in (f"score.{name}", *_differences(name))]
    return [{name: row.get(name) for name in names} for row in rows]


def _differences(score: str) -> tuple[str, str, str]:
    """The columns of a score's difference to the reference."""
    return f"diff.{score}", f"diff.{score}.low", f"diff.{score}.high"


def _across(reference: Run, other: Run, scores: Sequence[str]) -> dict[str, Any]:
    """The columns that take two runs."""
    mine, theirs = _timed_by_both(reference, other)
    ratio, (low, high) = stats.speedup(mine.decode_s, mine.decoded, theirs.decode_s, theirs.decoded)
    row: dict[str, Any] = {"measured_in": SEPARATE, "batches": len(mine.decoded)}
    row |= {"ratio": ratio, "ratio_low": low, "ratio_high": high}
    row["examples"] = len(_examples(reference) & _examples(other))
    for name in scores:
        row |= _score(name, reference, other)
    return row


def _timed_by_both(reference: Run, other: Run) -> tuple[Times, Times]:
    """Times of the batches of the same number that both runs timed."""
    theirs = {batch.index: batch.legs[METHOD] for batch in other.batches}
    pairs = [
        (batch.legs[METHOD], theirs[batch.index])
        for batch in reference.batches
        if batch.index in theirs
    ]
    both = [pair for pair in pairs if all(leg.timings for leg in pair)]
    return times([mine for mine, _ in both]), times([other for _, other in both])


def _score(name: str, reference: Run, other: Run) -> dict[str, Any]:
    """The difference of a score, and its paired interval over the examples of both runs."""
    value: Callable[[Sequence[float]], float | None] = lookup.find(
        "bench.scores", name, "score"
    ).value
    mine, theirs = (by_example(name, run.batches, METHOD) for run in (reference, other))
    ids = [example for example in mine if example in theirs]
    if not ids:
        return dict.fromkeys(_differences(name))
    tables = [[theirs[each] for each in ids], [mine[each] for each in ids]]
    totals = [[sum(column) for column in zip(*table, strict=True)] for table in tables]
    of = partial(difference, value)
    return dict(zip(_differences(name), (of(totals), *stats.bootstrap(tables, of)), strict=True))


def _examples(run: Run) -> set[str]:
    return {example for batch in run.batches for example in batch.example_ids}


def _marked(row: Mapping[str, Any]) -> str:
    return f"{gate.SIGN}{row['run_id']}" if row["unlike"] else str(row["run_id"])


def _footnotes(others: Sequence[Run], unlike: Sequence[Sequence[gate.Difference]]) -> list[str]:
    """For each run that differs, in what, reference / run."""
    told = [
        (f"{gate.SIGN}{other.columns['run_id']}", gate.explained(found))
        for other, found in zip(others, unlike, strict=True)
        if found
    ]
    return [f"{run} is unlike the reference in: {text}\n" for run, text in told]
