"""How the page of one run looks on a screen.

Apart, because what a page says (``show.py``) is asked for as data too. Free of torch. What is not
known is left empty; a section without content is left out.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench import columns

WIDTH = 100
# The page's facts about the run that stand in its title.
_IN_TITLE = ("run_id", "attempt", "status", "method", "setting", "model", "task")
_UNITS = {column.name: column.unit for column in columns.COLUMNS}


def rendered(page: Mapping[str, Any], width: int | None) -> str:
    """The page as text.

    Args:
        page: of ``show.page``.
        width: characters of a line; None for ``WIDTH``.
    """
    text = io.StringIO()
    console = Console(file=text, width=width or WIDTH, markup=False, highlight=False)
    run = page["run"]
    what = " ".join(str(run[name]) for name in ("method", "setting") if run[name])
    title = f"run {run['run_id']}, attempt {run['attempt']}: {what} on {run['model']}"
    console.print(f"{title}, {run['task']}", soft_wrap=True)
    facts = {name: value for name, value in run.items() if name not in _IN_TITLE}
    console.print(_facts(facts), soft_wrap=True)
    for table in (
        _speedups(page),
        _latency(page["latency"]),
        _promises(page["promises"]),
        _scores(page["scores"]),
        _costs(page["costs"]),
        _segments(page["segments"]),
    ):
        if table.row_count:
            console.print()
            console.print(table)
    console.print()
    for line in _remarks(page):
        console.print(line, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in facts.items() if value not in (None, ""))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Rows that say something; the first column is text, and its heading names the table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left", overflow="fold")
    for row in rows:
        if any(row[1:]):
            table.add_row(*row)
    return table


def _speedups(page: Mapping[str, Any]) -> Table:
    rows = [
        (_words(name), _number(found["value"]), _interval(found["low"], found["high"]))
        for name, found in page["speedups"].items()
    ]
    rows.append(("ratio of totals with the prompt pass", _number(page["speedup_total"]), ""))
    rows += [(_words(name), _number(each), "") for name, each in page["drift"].items()]
    return _table(("speed-up, decode time per token, baseline / method", "", "95 %"), rows)


def _latency(latency: Mapping[str, Any]) -> Table:
    """A row for each kind of time of each leg; percentiles are over passes, or over rounds."""
    rows = []
    for leg, found in latency.items():
        for kind in ("ttft", "tpot", "round"):
            names = (f"{kind}_s", f"{kind}_p95_s", f"{kind}_p99_s")
            times = [_number(_milli(found[name])) for name in names]
            passes = found["timed_passes"] if kind != "round" and times[0] else None
            rows.append((f"{leg} {kind}", *times, _number(passes)))
        rows.append((f"{leg} decode tokens/s", _number(found["decode_tokens_per_s"]), "", "", ""))
    return _table(("latency, ms", "median", "p95", "p99", "passes"), rows)


def _promises(promises: Mapping[str, Any]) -> Table:
    rows = [(_words(name), _number(value)) for name, value in promises.items()]
    known = [name for name, value in promises.items() if value is not None and name != "measured"]
    return _table(("speed-up promised by", ""), rows if known else [])


def _costs(costs: Mapping[str, Any]) -> Table:
    rows = [
        (name, _number(value), "" if value is None else _UNITS[name])
        for name, value in costs.items()
    ]
    return _table(("costs", "", "unit"), rows)


def _scores(scores: Mapping[str, Any]) -> Table:
    headings = ("score", "method [95 %]", "dense", "method - dense [95 %]", "margin", "verdict")
    return _table(headings, map(_score, scores.items()))


def _score(named: tuple[str, Mapping[str, Any]]) -> tuple[str, ...]:
    name, found = named
    return (
        name,
        _with_interval(found, "score"),
        _number(found["dense"]),
        _with_interval(found, "diff"),
        _number(found["diff.margin"]),
        _words(found["diff.verdict"] or ""),
    )


def _segments(segments: Sequence[Mapping[str, Any]]) -> Table:
    headings = ("measured on", "since", "device", "threads", "revision", "torch", "timed batches")
    return _table(headings, map(_segment, segments))


def _segment(found: Mapping[str, Any]) -> tuple[str, ...]:
    device = found["device_name"] or found["cpu_model"] or found["device"] or ""
    revision = (found["git_revision"] or "")[:12] + (" dirty" if found["git_dirty"] else "")
    return (
        found["hostname"] or "",
        found["started_at"].partition("+")[0],
        f"{device}, driver {found['driver']}" if found["driver"] else device,
        _number(found["threads"]),
        revision,
        (found["packages"] or {}).get("torch") or "",
        _number(found["timed_batches"]),
    )


def _remarks(page: Mapping[str, Any]) -> list[str]:
    """What a reader must know beside the numbers."""
    agreement = _facts(page["agreement"])
    unlike = [
        f"! The segments of this run differ in {each['field']}: {each['first']} / {each['later']}"
        for each in page["unlike_segments"]
    ]
    warnings = dict.fromkeys(text for each in page["segments"] for text in each["warnings"])
    return [*([agreement] if agreement else []), *unlike, *(f"! {text}" for text in warnings)]


def _with_interval(found: Mapping[str, Any], name: str) -> str:
    shown = _number(found[name])
    ends = _interval(found[f"{name}.low"], found[f"{name}.high"])
    return f"{shown} {ends}" if ends else shown


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{_number(low)}, {_number(high)}]"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _number(value: float | None) -> str:
    """Whole numbers whole, others with three digits or four."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if value and not 0.01 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 3 if abs(value) < 1 else 2
    return f"{value:,.{digits}f}"
