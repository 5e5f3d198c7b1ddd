"""``python -m bench.tracking.writer``: builds W&B runs offline, one a line asked.

Apart, as a process of its own: it is loaded before a run measures, sleeps while it does, and is
asked when it has ended. Reads jobs from its input and answers each with a line of JSON. Not here:
runs that are shown while they go on (``live.py``).
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wandb

from bench import lock as locks
from bench.tracking import files, readback, wandb_run
from bench.tracking.content import BATCH, Content, content
from bench.tracking.files import Mark
from bench.tracking.jobs import Job, job_from
from bench.tracking.process import channel

# How long wandb may take to write what it was given.
_LOOKS, _PAUSE_S = 400, 0.05


def main() -> None:
    """Answers ``{"ready": true}``, then each job."""
    asked, say = channel()
    # What the first table would load.
    wandb.Table(columns=["warm"], data=[["up"]])
    say({"ready": True})
    while line := asked.next():
        answer(line, say)


def answer(line: bytes, say: Callable[[dict[str, Any]], None]) -> None:
    """Builds one run; whatever is wrong is the answer."""
    try:
        say({"built": build(job_from(json.loads(line)))})
    except Exception as error:  # noqa: BLE001  # whatever wandb raises, the next job can be built
        text = str(error).strip().splitlines()
        say({"error": f"{type(error).__name__}: {text[0] if text else ''}"})


def build(job: Job) -> str | None:
    """The W&B run of an attempt, in place of what was there; None if another process builds it.

    Returns:
        The folder of the run.
    """
    attempt = job.attempt
    folder = files.folder_of(attempt)
    folder.mkdir(parents=True, exist_ok=True)
    lock = locks.take(folder / files.LOCK)
    if lock is None:
        return None
    with lock:
        state = files.state(attempt)
        shown = content(attempt, job.sample, job.references)
        if shown is None:
            raise ValueError(f"{attempt.folder} has not said what it is")
        files.clear(attempt)
        run = wandb_run.begin(job, shown, "offline")
        try:
            for at, row in enumerate(shown.history):
                run.log(row, step=at)
            wandb_run.fill(run, job, shown)
        except BaseException:
            run.finish(exit_code=1)
            raise
        wandb_run.end(run, state["status"])
        made = _checked(folder, shown, state["status"])
        files.write_mark(
            attempt, Mark(**state, project=job.project, entity=job.entity, folder=made)
        )
    return str(folder / made)


def _checked(folder: Path, shown: Content, status: str) -> str:
    """Name of the folder that wandb has made, once all is in it.

    Raises:
        OSError: if that does not come. wandb writes in a process of its own, which answers before
            it has written, and does not say that a disk was full.
    """
    for _ in range(_LOOKS):
        found = list(folder.glob(f"offline-run-*-{shown.run_id}/*.wandb"))
        if len(found) == 1 and _is_whole(readback.read(found[0]), shown, status):
            return found[0].parent.name
        time.sleep(_PAUSE_S)
    raise OSError(f"wandb has not written all of the run to {folder}: is the disk full?")


def _is_whole(logged: readback.Logged, shown: Content, status: str) -> bool:
    rows = sum(BATCH in row for row in logged.history)
    return rows == len(shown.history) and logged.exit_code == (0 if status == "done" else 1)


if __name__ == "__main__":
    main()
