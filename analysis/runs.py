"""The table of runs: one row a run, from their records alone.

Apart, because whatever is tabulated or drawn starts from this one table. Free of torch. Not here:
what a column means (``bench/columns.py``), how it is computed (``bench/summary.py``), where records
lie (``bench/store.py``), which of the rows and columns are wanted (``selection.py``).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.cells import cell_len

from bench import columns, store
from bench.errors import InputError
from bench.identity import digest

FORMATS = ("table", "csv", "json")
# What names a row where a table too wide for the screen goes on below.
_KEYS = ("run_id", "method")
_GAP = "   "

# Names, and numbers that say which and not how much.
LABELS = frozenset(column.name for column in columns.COLUMNS if not column.unit)
# Not a column: a hash of all that bears on a run's numbers, but for its seed.
SETTINGS = "settings"

Row = Mapping[str, Any]


def rows(results: Iterable[Path], *, every: bool = False, settings: bool = False) -> list[Row]:
    """One row a run: its newest complete attempt, or its newest if none is complete.

    Args:
        results: folders that runs were written to; a folder given twice is read once.
        every: a row for each attempt instead.
        settings: rows have ``SETTINGS`` too; where it is not known, it is the run's id.

    Returns:
        Rows with every column of ``bench/columns.py`` in order, scores as they first appear; None
        where a value is not known. A run that is not done has the columns known at its start.

    Raises:
        InputError: for a folder that is not there or holds no run, and for records of a newer
            schema.
    """
    found: list[Row] = []
    for folder in dict.fromkeys(folder.resolve() for folder in results):
        listed = store.listed(folder, every=every)
        of_folder = [_row(attempt, settings=settings) for attempt in listed]
        if not of_folder:
            raise InputError(
                "There are no runs in this folder",
                got=folder,
                allowed="a folder that runs were written to: <folder>/<run id>/<attempt>",
                where="--results",
            )
        found += of_folder
    return whole(found, settings=settings)


def whole(found: Sequence[Row], *, settings: bool = False) -> list[Row]:
    """Rows with every column in order; None where a value is not known."""
    names = columns.names(_scores(found)) + [SETTINGS] * settings
    return [{name: row.get(name) for name in names} for row in found]


def table(results: Iterable[Path]) -> pd.DataFrame:
    """``rows`` as a frame, which figures start from.

    Returns:
        Columns of whole numbers as Int64, of other numbers as float64, text as objects; missing
        where a value is not known.
    """
    found = rows(results)
    return _frame(found, list(found[0]))


def rendered(
    found: Sequence[Row],
    form: str,
    width: int | None = None,
    *,
    names: Sequence[str] | None = None,
    as_named: bool = False,
) -> str:
    """Rows as text.

    Args:
        found: of ``rows``.
        form: one of ``FORMATS``.
        width: characters of a line of the screen; None for as many as are needed. A wider table
            goes on below. Only for ``table``.
        names: the columns, in order; those of the rows by default.
        as_named: ``table`` shows these columns too where it would leave them out.

    Raises:
        InputError: for another form.
    """
    names = list(found[0] if names is None else names)
    if form == "csv":
        return _frame(found, names).to_csv(index=False, lineterminator="\n")
    if form == "json":
        chosen = [{name: row[name] for name in names} for row in found]
        return json.dumps(chosen, indent=1, ensure_ascii=False) + "\n"
    if form == "table":
        return _for_the_eye(found, names, width, as_named=as_named)
    raise InputError(
        "There is no output format of this name",
        got=form,
        allowed=", ".join(FORMATS),
        where="--format",
    )


def _row(attempt: store.Attempt, *, settings: bool) -> Row:
    status, run_id = attempt.status(), attempt.folder.parent.name
    start = None if status == "done" and not settings else attempt.start()
    record = attempt.header() if status == "done" else start
    row = dict({} if record is None else record.columns)
    row |= {"run_id": run_id, "attempt": attempt.number, "status": status}
    if settings:
        known = {} if start is None else start.identity
        row[SETTINGS] = digest({**known, "seed": None}) if known else run_id
    return row


def _scores(found: Iterable[Row]) -> list[str]:
    known = dict.fromkeys(name for row in found for name in row)
    parts = [name.split(".") for name in known]
    return list(dict.fromkeys(part[1] for part in parts if part[0] == "score"))


def _frame(found: Sequence[Row], names: Sequence[str]) -> pd.DataFrame:
    series = {name: [row[name] for row in found] for name in names}
    return pd.DataFrame({n: pd.Series(each, dtype=_dtype(n, each)) for n, each in series.items()})


def _dtype(name: str, values: Iterable[object]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "object" if name in LABELS else "float64"
    if all(isinstance(value, int) for value in known):
        return "Int64"
    return "float64" if all(isinstance(value, int | float) for value in known) else "object"


def _for_the_eye(
    found: Sequence[Row], names: Sequence[str], width: int | None, *, as_named: bool
) -> str:
    """Without what is empty in all rows; what is the same in all stands once, above."""
    if not found:
        return "no run is as asked for\n"
    same: list[str] = []
    if not as_named:
        names = [name for name in names if any(row[name] not in (None, "") for row in found)]
        same = [name for name in names if len(found) > 1 and _is_same_label(found, name)]
    cells = {
        name: _padded(name, [row[name] for row in found]) for name in names if name not in same
    }
    text = ", ".join(f"{name}={found[0][name]}" for name in same)
    parts = [f"all runs: {text}\n"] if same else []
    parts += [_block({name: cells[name] for name in block}) for block in _blocks(cells, width)]
    return "\n".join(parts)


def _is_same_label(found: Sequence[Row], name: str) -> bool:
    """Whether a column that is no measurement says the same of all runs."""
    same = all(row[name] == found[0][name] for row in found)
    return same and name in LABELS and name not in _KEYS


def _padded(name: str, values: Sequence[object]) -> list[str]:
    """A column's name and values, all of one width; text on the left."""
    cells = [name, *map(_few_digits, values)]
    # Characters that take two places are rare, and counting places is slow.
    length = len if "".join(cells).isascii() else cell_len
    widths = [length(cell) for cell in cells]
    width = max(widths)
    if any(isinstance(value, str) for value in values):
        return [cell + " " * (width - own) for cell, own in zip(cells, widths, strict=True)]
    return [" " * (width - own) + cell for cell, own in zip(cells, widths, strict=True)]


def _blocks(cells: Mapping[str, Sequence[str]], width: int | None) -> list[list[str]]:
    """Names of the columns that stand side by side; the keys begin each block."""
    widths = {name: cell_len(column[0]) + len(_GAP) for name, column in cells.items()}
    keys = [name for name in _KEYS if name in cells]
    others = [name for name in cells if name not in keys]
    blocks: list[list[str]] = [] if others else [keys]
    room = 0
    for name in others:
        if not blocks or widths[name] > room:
            blocks.append(list(keys))
            room = (width or sum(widths.values())) - sum(widths[key] for key in keys)
        blocks[-1].append(name)
        room -= widths[name]
    return blocks


def _block(cells: Mapping[str, Sequence[str]]) -> str:
    heading, *lines = [_GAP.join(line) for line in zip(*cells.values(), strict=True)]
    rule = "\u2500" * cell_len(heading)
    return "".join(f"{line.rstrip()}\n" for line in (heading, rule, *lines))


def _few_digits(value: object) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
