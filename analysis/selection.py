"""Which rows and columns of the table of runs are wanted, and rows that differ by their seed alone.

Apart, because a table, a figure and a page of the same runs choose among them in the same words.
Free of torch. Not here: where rows come from, and how they are shown (``runs.py``).
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any, NamedTuple

from analysis.runs import LABELS, SETTINGS, Row
from bench.errors import InputError

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*([\w.]+)\s*(==|!=|<=|>=|<|>)(?!=)(.*)", re.DOTALL)
# What a mean has none of; the number of rows of a batch is a setting, though it has a unit.
_OF_ONE_RUN = ("run_id", "attempt", "seed")
_KEPT = (LABELS - {*_OF_ONE_RUN}) | {"batch_size"}
SEEDS = "seeds"


class _Condition(NamedTuple):
    text: str
    name: str
    symbol: str
    value: str


def where(found: Sequence[Row], conditions: Sequence[str]) -> list[Row]:
    """The rows that meet all conditions.

    Args:
        found: of ``runs.rows``, at least one.
        conditions: ``NAME OPERATOR VALUE`` each. What is not known meets no condition, but that of
            an empty value: ``NAME==`` is what is empty, ``NAME!=`` what is not.

    Raises:
        InputError: for a condition that cannot be read, a column that is not there, and a value
            that is no number where the column holds numbers.
    """
    chosen = list(found)
    for text in conditions:
        condition = _condition(text)
        known_column(condition.name, [name for name in found[0] if name != SETTINGS], "--where")
        met = _test(condition, [row[condition.name] for row in found])
        chosen = [row for row in chosen if met(row[condition.name])]
    return chosen


def picked(names: Sequence[str], wanted: str) -> list[str]:
    """The columns of a list such as ``a,b``, in its order.

    Raises:
        InputError: for a column that is not there.
    """
    parts = dict.fromkeys(part.strip() for part in wanted.split(","))
    for part in parts:
        known_column(part, names, "--columns")
    return list(parts)


def grouped(found: Sequence[Row]) -> list[Row]:
    """One row for all that are equal but for their seed: means, their spread, how many seeds.

    Args:
        found: of ``runs.rows`` with settings.

    Returns:
        Rows with the columns of ``grouped_names``. NAME is the mean and NAME.sd the standard
        deviation over seeds (n - 1); None where one of the runs has no value, NAME.sd also for one
        seed alone.

    Raises:
        InputError: if a run is there twice: it would count twice.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    seen = set()
    for row in found:
        if row["run_id"] in seen:
            raise InputError(
                "A run that is there twice would count twice in a mean",
                got=row["run_id"],
                allowed="each run once: one folder of those that hold it, and its newest attempt",
                where="--results, --attempts",
            )
        seen.add(row["run_id"])
        key = (row[SETTINGS], *(row[name] for name in sorted(_KEPT)))
        groups.setdefault(key, []).append(row)
    return [_mean(rows) for rows in groups.values()]


def grouped_names(names: Sequence[str]) -> list[str]:
    """The columns of ``grouped`` rows: ``seeds`` instead of ``seed``, NAME.sd behind each NAME."""
    return list(chain.from_iterable(_names_of(name) for name in names))


def known_column(name: str, names: Sequence[str], option: str) -> None:
    """Refuses a column that is not there, with near names."""
    if name in names:
        return
    near = difflib.get_close_matches(name, names)
    raise InputError(
        "There is no column of this name",
        got=f"{name} (near: {', '.join(near)})" if near else name,
        allowed=", ".join(names),
        where=f"{option}; docs/results.md says what each column means",
    )


def _condition(text: str) -> _Condition:
    matched = _CONDITION.fullmatch(text)
    if matched is None:
        raise InputError(
            "The condition cannot be read",
            got=text,
            allowed=f"'NAME==VALUE' in quotes, with one of {' '.join(_OPERATORS)}",
            where="--where",
        )
    return _Condition(text, matched[1], matched[2], matched[3].strip())


def _test(condition: _Condition, values: Sequence[Any]) -> Callable[[Any], bool]:
    """Whether a value meets a condition."""
    compare, wanted = _OPERATORS[condition.symbol], condition.value
    if not wanted and condition.symbol in ("==", "!="):
        return lambda value: (value in (None, "")) is (condition.symbol == "==")
    if any(isinstance(value, str) for value in values) or (
        condition.name in LABELS and all(value is None for value in values)
    ):
        return lambda value: isinstance(value, str) and compare(value, wanted)
    number = _number(condition)
    return lambda value: value is not None and compare(value, number)


def _number(condition: _Condition) -> float:
    for kind in (int, float):
        try:
            number = kind(condition.value)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    raise InputError(
        f"The column {condition.name} holds numbers",
        got=condition.text,
        allowed="a number to compare with, such as 2 or 1.5e-3",
        where="--where",
    )


def _names_of(name: str) -> Sequence[str]:
    if name == "seed":
        return (SEEDS,)
    if name in (*_OF_ONE_RUN, SETTINGS):
        return ()
    return (name,) if name in _KEPT else (name, f"{name}.sd")


def _mean(rows: Sequence[Row]) -> Row:
    mean: dict[str, Any] = {}
    for name, first in rows[0].items():
        names = _names_of(name)
        if names == (SEEDS,):
            mean[SEEDS] = len(rows)
        elif len(names) == 1:
            mean[name] = first
        elif names:
            values = [row[name] for row in rows]
            mean[name], mean[f"{name}.sd"] = (None, None) if None in values else _spread(values)
    return mean


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation; ``statistics.stdev`` is exact, and slow for 10,000 runs."""
    mean = fmean(values)
    if len(values) == 1:
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1))
