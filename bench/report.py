"""The table at the end of a run, from its records alone.

Apart, because it shows what the store holds and knows nothing of how it came there. Not here:
tables over many runs (``analysis/``).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import columns
from bench.config import RunConfig
from bench.planning import Planned
from bench.quality import verdict_columns
from bench.schema import Start
from bench.store import Attempt, next_attempt
from bench.summary import BASELINE
from methods.registry import find_params

_VERDICTS = {
    "non_inferior": "no worse than dense by more than {} (95 % interval)",
    "inferior": "worse than dense by more than {} (95 % interval)",
    "undecided": "whether it is worse than dense by more than {} is not decided by these examples",
}


def say(text: str, verbosity: str) -> None:
    """One line to the user."""
    if verbosity != "quiet":
        Console(stderr=True, soft_wrap=True).print(text, markup=False, highlight=False)


def show_if_done(planned: Planned) -> Attempt | None:
    """Shows a run that is complete, with a line that says so; None if it has yet to run."""
    config = planned.config
    attempt = next_attempt(Path(config.results_dir), planned.run_id, rerun=config.rerun)
    if not attempt.is_done():
        return None
    say(f"already done: {attempt.folder} (rerun=true runs it again)", config.verbosity)
    show(attempt, config)
    return attempt


def show(attempt: Attempt, config: RunConfig) -> None:
    """Prints the table of a complete attempt, judged at the margin that is asked for now."""
    header, start = attempt.header(), attempt.start()
    if config.verbosity == "quiet" or header is None or start is None:
        return
    console, row = Console(), dict(header.columns)
    for name in _score_names(row):
        ends = (row.get(f"diff.{name}.low"), row.get(f"diff.{name}.high"))
        row |= verdict_columns(name, ends, row["examples"], config.meter.margin)
    console.print(_table(row, start))
    for line in _remarks(row):
        console.print(line, markup=False, highlight=False)
    console.print(f"records: {attempt.folder}", soft_wrap=True, markup=False, highlight=False)


def _table(row: dict[str, Any], start: Start) -> Table:
    paired = BASELINE in start.shapes
    title = f"{row['method']} on {row['model']}, {row['task']}, batch {row['batch_size']}"
    table = Table(title=f"{title}, {row['gpu']} {row['dtype']}", title_justify="left")
    table.add_column("")
    table.add_column(row["method"], justify="right")
    if paired:
        table.add_column("dense", justify="right")
        table.add_column("difference or ratio", justify="right")
    for name in _score_names(row):
        own = _with_interval(row, f"score.{name}")
        dense = _number(row[f"dense.{name}"])
        _add(table, name, own, dense, _with_interval(row, f"diff.{name}", sign=True), paired=paired)
    speedup = _with_interval(row, "speedup", "_low", "_high", unit="x faster")
    tokens_per_s = row["decode_tokens_per_s"]
    _add(table, "decode tokens/s", _number(tokens_per_s), "", speedup, paired=paired)
    total = _number(row["speedup_total"], "x faster")
    _add(table, "with the prompt pass", "", "", total, paired=paired)
    _add(table, "TTFT, ms", _number(_thousand(row["ttft_s"])), "", "", paired=paired)
    _add(table, "TPOT, ms", _number(_thousand(row["tpot_s"])), "", "", paired=paired)
    for kind in ("executed", "required"):
        mega = row[f"flops_{kind}_per_token"]
        ratio = _number(row[f"flops_{kind}_ratio"], " of dense")
        label = f"FLOPs {kind}/token, M"
        _add(table, label, _number(mega and mega / 1e6), "", ratio, paired=paired)
    for label, own, dense, both in _known(row):
        _add(table, label, own, dense, both, paired=paired)
    layers = start.shapes["method"]["num_layers"]
    _add(table, "layers/token", _number(row["layers_per_token"]), f"{layers}", "", paired=paired)
    _add(table, "examples", str(row["examples"]), "", "", paired=paired)
    return table


def _known(row: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Lines for what not every method or machine has."""
    for by in ("flops", "bytes", "roofline", "model"):
        promised = _number(row.get(f"speedup_promised_by_{by}"), "x")
        if promised:
            yield f"promised by {by}", "", "", promised
    if row.get("roofline_fraction") is not None:
        own, dense = row["roofline_fraction"], row.get("dense.roofline_fraction")
        yield "share of the roofline", _number(own), _number(dense), ""
    if row.get("acceptance_rate") is not None:
        yield "drafts accepted", _number(row["acceptance_rate"]), "", ""
        yield "tokens/verification", _number(row["tokens_per_verification"]), "1", ""
    if row.get("identical_to_dense") is not None:
        yield "ids as dense, own weights", _number(row["identical_to_dense"]), "", ""


def _add(table: Table, label: str, own: str, dense: str, both: str, *, paired: bool) -> None:
    table.add_row(*((label, own, dense, both) if paired else (label, own)))


def _remarks(row: dict[str, Any]) -> list[str]:
    """What a reader must know beside the numbers."""
    remarks = []
    if "trained_for=" in (row["setting"] or ""):
        trained = row["setting"].split("trained_for=", 1)[1]
        remarks.append(f"The weights were trained for other settings ({trained}).")
    if row["speedup"] is not None and row["speedup_low"] is None:
        remarks.append("No interval of the speed-up: fewer than 5 timed batches.")
    for name in _score_names(row):
        verdict, margin = row[f"diff.{name}.verdict"], row[f"diff.{name}.margin"]
        if verdict is not None:
            remarks.append(f"{name}: {_VERDICTS[verdict].format(_number(margin))}.")
    abilities = find_params(row["method"]).ABILITIES
    if abilities.engine != "own":
        remarks.append(
            "Run by transformers, as its users run it: of engine.*, dtype alone applies to it."
        )
    if not abilities.realisable:
        remarks.append("Not realisable: costs are counted as if it knew, and no time is given.")
    return remarks


def _score_names(row: dict[str, Any]) -> list[str]:
    known = {column.name for column in columns.COLUMNS}
    scores = [name.removeprefix("score.") for name in row if name.startswith("score.")]
    return [name for name in scores if name not in known and "." not in name]


def _with_interval(
    row: dict[str, Any],
    key: str,
    low: str = ".low",
    high: str = ".high",
    *,
    unit: str = "",
    sign: bool = False,
) -> str:
    value = row.get(key)
    if value is None:
        return ""
    shown = _number(value, unit, sign=sign)
    ends = (row.get(key + low), row.get(key + high))
    if None in ends:
        return shown
    return f"{shown} [{_number(ends[0])}, {_number(ends[1])}]"


def _thousand(value: float | None) -> float | None:
    return None if value is None else value * 1000


def _number(value: float | None, unit: str = "", *, sign: bool = False) -> str:
    if value is None:
        return ""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 3 if abs(value) < 1 else 2
    return f"{value:{'+' if sign else ''},.{digits}f}{unit}"
