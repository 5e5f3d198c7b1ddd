"""One complete run with all its records, found by its id or the start of it.

Apart, because pages and comparisons of single runs ask for them in the same words. Free of torch.
Not here: the table of all runs (``runs.py``), what a record means (``bench/schema.py``).
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import gate, store
from bench.errors import InputError
from bench.schema import BatchRecord, Segment, Start
from bench.summary import METHOD


@dataclass(frozen=True, slots=True)
class Run:
    """The newest complete attempt at a run.

    Attributes:
        start: what ran.
        columns: its row of the table.
        ended_at: UTC.
        segments: where.
        batches: in order.
    """

    start: Start
    columns: dict[str, Any]
    ended_at: str
    segments: list[Segment]
    batches: list[BatchRecord]

    @property
    def conditions(self) -> gate.Conditions:
        """What another run must share."""
        return gate.conditions(self.start, self.segments, self.batches)

    @property
    def scores(self) -> list[str]:
        """Names of the scores that every batch has."""
        return list(self.batches[0].legs[METHOD].statistics)


def found(results: Sequence[Path], wanted: Sequence[str]) -> list[Run]:
    """Complete runs by their ids, in the order in which they were asked for.

    Args:
        results: folders that runs were written to; a folder given twice is read once.
        wanted: ids, or beginnings that only one run has.

    Raises:
        InputError: for an id that no run or more than one has, a run that is not complete, and one
            that is named twice.
    """
    folders = dict.fromkeys(folder.resolve() for folder in results)
    there = [attempt for folder in folders for attempt in store.listed(folder)]
    chosen = [_one(there, name) for name in wanted]
    for at, attempt in enumerate(chosen):
        if attempt in chosen[:at]:
            raise InputError(
                "A run is named twice",
                got=f"{wanted[at]}: {_id(attempt)}",
                allowed="each run once",
                where="RUN_ID",
            )
    return [_read(attempt) for attempt in chosen]


def _one(there: Sequence[store.Attempt], wanted: str) -> store.Attempt:
    matching = [each for each in there if _id(each) == wanted]
    matching = matching or [each for each in there if wanted and _id(each).startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise InputError(
            "More than one run has an id that begins so",
            got=wanted,
            allowed=_few([str(each.folder.parent) for each in matching]),
            where="RUN_ID, --results",
        )
    raise InputError(
        "There is no run of this id",
        got=_with_near(wanted, [_id(each) for each in there]),
        allowed="an id, or the beginning of one, of: python -m analysis runs",
        where="RUN_ID, --results",
    )


def _read(attempt: store.Attempt) -> Run:
    header, start, batches = attempt.header(), attempt.start(), attempt.batches()
    if header is None or start is None or not batches:
        status = attempt.status()
        raise InputError(
            "The run is not complete",
            got=f"{attempt.folder}: {'without its records' if status == 'done' else status}",
            allowed="a run that is done",
            where="RUN_ID; python -m analysis runs --where status==done",
        )
    return Run(start, header.columns, header.ended_at, attempt.segments(), batches)


def _id(attempt: store.Attempt) -> str:
    return attempt.folder.parent.name


def _with_near(wanted: str, ids: Sequence[str]) -> str:
    """The text, with ids that begin nearly so."""
    by_start = {each[: len(wanted)]: each for each in ids}
    near = [by_start[start] for start in difflib.get_close_matches(wanted, by_start)]
    return f"{wanted} (near: {', '.join(near)})" if near else wanted


def _few(names: Sequence[str], most: int = 8) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
