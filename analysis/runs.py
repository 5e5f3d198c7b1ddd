"""The table of runs: one row a run, from their records alone.

Apart, because whatever is tabulated or drawn starts from this one table. Free of torch. Not here:
what a column means (``bench/columns.py``), how it is computed (``bench/summary.py``), where records
lie (``bench/store.py``).
"""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench import columns, store
from bench.errors import InputError

FORMATS = ("table", "csv", "json")
# What names a row where a table too wide for the screen goes on below.
_KEYS = ("run_id", "method")
# Between two columns, of the box that is used.
_GAP = 3

# Names, and numbers that say which and not how much.
_LABELS = {column.name for column in columns.COLUMNS if not column.unit}

Row = Mapping[str, Any]


def rows(results: Iterable[Path]) -> list[Row]:
    """One row a run: its newest complete attempt, or its newest if none is complete.

    Args:
        results: folders that runs were written to; a folder given twice is read once.

    Returns:
        Rows with every column of ``bench/columns.py`` in order, scores as they first appear; None
        where a value is not known. A run that is not done has the columns known at its start.

    Raises:
        InputError: for a folder that is not there or holds no run, and for records of a newer
            schema.
    """
    found: list[Row] = []
    for folder in dict.fromkeys(folder.resolve() for folder in results):
        of_folder = [_row(attempt) for attempt in store.listed(folder)]
        if not of_folder:
            raise InputError(
                "There are no runs in this folder",
                got=folder,
                allowed="a folder that runs were written to: <folder>/<run id>/<attempt>",
                where="--results",
            )
        found += of_folder
    names = columns.names(_scores(found))
    return [{name: row.get(name) for name in names} for row in found]


def table(results: Iterable[Path]) -> pd.DataFrame:
    """``rows`` as a frame, which figures start from.

    Returns:
        Columns of whole numbers as Int64, of other numbers as float64, text as objects; missing
        where a value is not known.
    """
    return _frame(rows(results))


def rendered(found: Sequence[Row], form: str, width: int | None = None) -> str:
    """Rows as text.

    Args:
        found: of ``rows``.
        form: one of ``FORMATS``.
        width: characters of a line of the screen; None for as many as are needed. A wider table
            goes on below. Only for ``table``.

    Raises:
        InputError: for another form.
    """
    if form == "csv":
        return _frame(found).to_csv(index=False, lineterminator="\n")
    if form == "json":
        return json.dumps(list(found), indent=1, ensure_ascii=False) + "\n"
    if form == "table":
        return _for_the_eye(found, width)
    raise InputError(
        "There is no output format of this name",
        got=form,
        allowed=", ".join(FORMATS),
        where="--format",
    )


def _row(attempt: store.Attempt) -> Row:
    status = attempt.status()
    record = attempt.header() if status == "done" else attempt.start()
    known = {} if record is None else record.columns
    return {**known, "run_id": attempt.folder.parent.name, "status": status}


def _scores(found: Iterable[Row]) -> list[str]:
    parts = [name.split(".") for row in found for name in row]
    return list(dict.fromkeys(part[1] for part in parts if part[0] == "score"))


def _frame(found: Sequence[Row]) -> pd.DataFrame:
    series = {name: [row[name] for row in found] for name in found[0]}
    return pd.DataFrame({n: pd.Series(each, dtype=_dtype(n, each)) for n, each in series.items()})


def _dtype(name: str, values: Iterable[object]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "object" if name in _LABELS else "float64"
    if all(isinstance(value, int) for value in known):
        return "Int64"
    return "float64" if all(isinstance(value, int | float) for value in known) else "object"


def _for_the_eye(found: Sequence[Row], width: int | None) -> str:
    """Without what is empty in all rows; what is the same in all stands once, above."""
    names = [name for name in found[0] if any(row[name] not in (None, "") for row in found)]
    same = [name for name in names if len(found) > 1 and _is_same_label(found, name)]
    cells = {
        name: [name, *(_few_digits(row[name]) for row in found)]
        for name in names
        if name not in same
    }
    buffer = StringIO()
    console = Console(file=buffer, width=sum(_width(each) for each in cells.values()) + _GAP)
    if same:
        text = ", ".join(f"{name}={found[0][name]}" for name in same)
        buffer.write(f"all runs: {text}\n\n")
    text_columns = {name for name in names if any(isinstance(row[name], str) for row in found)}
    for index, block in enumerate(_blocks(cells, width)):
        buffer.write("\n" if index else "")
        console.print(_table({name: cells[name] for name in block}, text_columns))
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def _is_same_label(found: Sequence[Row], name: str) -> bool:
    """Whether a column that is no measurement says the same of all runs."""
    same = all(row[name] == found[0][name] for row in found)
    return same and name in _LABELS and name not in _KEYS


def _blocks(cells: Mapping[str, Sequence[str]], width: int | None) -> list[list[str]]:
    """Names of the columns that stand side by side; the keys begin each block."""
    widths = {name: _width(column) for name, column in cells.items()}
    keys = [name for name in _KEYS if name in cells]
    blocks: list[list[str]] = []
    room = 0
    for name in cells:
        if name in keys:
            continue
        if not blocks or widths[name] > room:
            blocks.append(list(keys))
            room = (width or sum(widths.values())) - sum(widths[key] for key in keys)
        blocks[-1].append(name)
        room -= widths[name]
    return blocks


def _width(cells: Iterable[str]) -> int:
    return max(map(cell_len, cells)) + _GAP


def _table(cells: Mapping[str, Sequence[str]], text_columns: Container[str]) -> Table:
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in cells:
        justify: Literal["left", "right"] = "left" if name in text_columns else "right"
        shown.add_column(name, justify=justify, no_wrap=True)
    for row in list(zip(*cells.values(), strict=True))[1:]:
        # As Text: a setting may hold brackets, which rich would read as markup.
        shown.add_row(*map(Text, row))
    return shown


def _few_digits(value: object) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
