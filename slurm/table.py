"""Sweeps on a cluster, for the eye and for programs.

Apart, because the same rows are shown once, again and again, and as JSON. Not here: how things
stand (``states.py``).
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from bench import jobs
from slurm.arrays import Array
from slurm.states import RunState

_WIDTH = 100


def drawn(states: Sequence[RunState], title: str) -> Table:
    """One row a run."""
    table = Table(title=title, title_justify="left")
    for name in ("run", "method"):
        table.add_column(name, no_wrap=True)
    table.add_column("settings", overflow="fold", max_width=_WIDTH)
    for name in ("status", "batches", "job"):
        table.add_column(name, no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for state in states:
        entry = state.entry
        took = "" if state.time_s is None else f"{state.time_s} s"
        note = "; ".join(filter(None, [_interruptions(state), state.note]))
        named = (entry.run_id, entry.method, entry.overrides, state.status)
        # As Text: a list in brackets would be read as markup.
        table.add_row(*map(Text, (*named, _batches(state), state.slurm_id or "", took, note)))
    return table


def counts(states: Sequence[RunState]) -> str:
    """How many runs stand how."""
    found: dict[str, int] = {}
    for state in states:
        found[state.status] = found.get(state.status, 0) + 1
    return ", ".join(f"{number} {status}" for status, number in found.items())


def progress(state: RunState) -> str:
    """How far a run is, and why it stands so."""
    if state.status == jobs.DONE:
        return _interruptions(state)
    batches = f"batch {_batches(state)}" if state.status == jobs.RUNNING else ""
    where = f"job {state.slurm_id}" if state.status in jobs.OPEN else ""
    return "; ".join(filter(None, [where, batches, _interruptions(state), state.note]))


def rows(states: Sequence[RunState]) -> list[dict[str, Any]]:
    """The same as plain data; what is not known is None."""
    found = []
    for state in states:
        row = asdict(state)
        entry = row.pop("entry")
        found.append(entry | row | {"note": state.note or None})
    return found


def heading(at: int, array: Array) -> str:
    """An array of a submission, and what its jobs ask for."""
    wanted = {name: value for name, value in asdict(array.asked).items() if value}
    asks = ", ".join(f"{name} {value}" for name, value in wanted.items())
    number = len(array.jobs)
    text = f"array {at + 1}: {number} job{'s' if number > 1 else ''}, each with {asks}"
    text += "" if array.throttle is None else f"; {min(array.throttle, number)} at once"
    return text + ("" if array.behind is None else f"; behind array {array.behind + 1}")


def _batches(state: RunState) -> str:
    if state.status == jobs.DONE and state.batches is None:
        return str(state.batches_done)
    if state.batches is None:
        return str(state.batches_done or "")
    return f"{min(state.batches_done, state.batches)}/{state.batches}"


def _interruptions(state: RunState) -> str:
    parts = []
    if state.preempted:
        parts.append(f"preempted {_times(state.preempted)}")
    if state.timeouts:
        parts.append(f"reached its time limit {_times(state.timeouts)}")
    return ", ".join(parts)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
