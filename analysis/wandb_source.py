"""The table of runs from W&B instead of from records: the same columns, as W&B was given them.

Apart, because whoever has only the account can still tabulate and draw. Asks through a process of
its own, so that other commands do not load wandb. Free of torch. Not here: the question itself
(``wandb_reader.py``), the table (``runs.py``).
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import runs
from analysis.runs import SETTINGS, Row
from bench import columns
from bench.errors import InputError
from bench.identity import digest
from bench.tracking.process import last_words, passing

ABOUT = "wandb:ENTITY/PROJECT"
_PREFIX, _READER = "wandb:", "analysis.wandb_reader"
# W&B's state of a run that is not done -> our status.
_STATUS = {"running": "running", "failed": "failed"}
# W&B gives 1.0 back as 1: columns of these units hold fractions.
_OF_FRACTIONS = frozenset(
    {"ratio", "fraction", "s", "tokens/s", "FLOPs", "FLOPs/byte", "joules", "of the score"}
)


def rows(source: str, *, every: bool = False, settings: bool = False) -> list[Row]:
    """One row a run of a W&B project; as ``runs.rows``, which has the arguments' meanings.

    Raises:
        InputError: for a source that cannot be read, and one without runs of this suite.
    """
    entity, _, project = source.removeprefix(_PREFIX).partition("/")
    if not source.startswith(_PREFIX) or not entity or not project:
        raise InputError("There is no such source", got=source, allowed=ABOUT, where="--source")
    found = [_row(each, settings=settings) for each in _asked(f"{entity}/{project}")]
    if not found:
        raise InputError(
            "There are no runs of this suite in the project",
            got=source,
            allowed="a project that runs were tracked in",
            where="--source",
        )
    return runs.whole(found if every else _newest(found), settings=settings)


def _asked(path: str) -> list[dict[str, Any]]:
    """What W&B has of each run of ours."""
    asked = [sys.executable, "-m", _READER, path]
    with passing() as environment:
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(
            "W&B cannot be read",
            got=last_words(done.stderr) or f"its process ended with {done.returncode}",
            allowed="a network, and an account that may see it: wandb login, or WANDB_API_KEY",
            where="--source",
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _row(found: Mapping[str, Any], *, settings: bool) -> dict[str, Any]:
    config, summary = found["config"], found["summary"]
    row = {name: _value(name, value) for name, value in summary.items()}
    row |= {"run_id": config["run_id"], "attempt": config["attempt"]}
    if row.get("status") != "done":
        row["status"] = _STATUS.get(found["state"], "stopped")
    if settings:
        row[SETTINGS] = digest({**config.get("identity", {}), "seed": None})
    return row


def _value(name: str, value: Any) -> Any:  # noqa: ANN401  # any plain value
    unit = {column.name: column.unit for column in columns.COLUMNS}.get(name, "of the score")
    fractions = unit in _OF_FRACTIONS or "_per_" in name
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if fractions and whole else value


def _newest(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest complete attempt of every run, or the newest if none is complete; by run id."""
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(found, key=lambda row: (row["status"] == "done", row["attempt"])):
        best[row["run_id"]] = row
    return [best[run_id] for run_id in sorted(best)]
