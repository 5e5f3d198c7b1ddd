"""``python -m bench.tracking.live``: shows one run in W&B while it goes on, from its records.

Apart, as a process of its own, because the run must not wait for a network: it reads the records as
they come and is asked nothing while something is timed. Started once more, it goes on with what W&B
has of the run. Not here: runs that are built whole (``writer.py``).
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import wandb

from bench import store
from bench.schema import BatchRecord, batch_from
from bench.tracking import files, wandb_run
from bench.tracking.content import content, history_row
from bench.tracking.files import Mark
from bench.tracking.jobs import Job, job_from
from bench.tracking.process import channel

# Seconds between two looks at the records.
_LOOK_S = 1.0
_NICE = 19
# Seconds that it may take to say so once its run is gone.
_ALONE_S = 60


class Follower:
    """What was shown so far of one attempt.

    Args:
        job: which, and as what.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._run: wandb.Run | None = None
        self._path, self._read = Path(job.folder) / store.BATCHES, 0
        self._shown: set[int] = set()

    def look(self) -> None:
        """Shows what has come since."""
        if self._run is None:
            self._run = self._begun()
        if self._run is not None:
            for batch in self._new():
                self._show(self._run, batch)

    def end(self, status: str) -> None:
        """Shows the rest and ends the run."""
        self.look()
        shown = content(self.job.attempt, self.job.sample, self.job.references)
        if self._run is not None and shown is not None:
            if status != "stopped":
                wandb_run.fill(self._run, self.job, shown)
            wandb_run.end(self._run, status)

    def _begun(self) -> wandb.Run | None:
        attempt = self.job.attempt
        shown = content(attempt, 0)
        if shown is None:
            return None
        files.note_seen(attempt)
        return wandb_run.begin(self.job, shown, "online")

    def _new(self) -> Iterator[BatchRecord]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        yield from (batch_from(json.loads(line)) for line in whole.splitlines())

    def _show(self, run: wandb.Run, batch: BatchRecord) -> None:
        # W&B takes nothing back: neither what it has from before the run was stopped, nor a record
        # that was overtaken. The headline numbers are of the records that count.
        if batch.index not in self._shown and batch.index >= run.starting_step:
            run.log(history_row(batch), step=batch.index)
        self._shown.add(batch.index)


def main() -> None:
    """Follows until it is told the end; if that never comes, the run is one that stopped."""
    asked, say = channel()
    # What is timed beside it goes first.
    os.nice(_NICE)
    say({"ready": True})
    line = asked.next()
    if not line:
        return
    follower = Follower(job_from(json.loads(line)))
    while (line := asked.next(_LOOK_S)) is None:
        follower.look()
    if not line:
        # Whatever W&B waits for, nobody is left to end this process.
        signal.alarm(_ALONE_S)
        follower.end("stopped")
        return
    told = json.loads(line)
    follower.job = job = job_from(told["job"])
    state = files.state(job.attempt)
    follower.end(told["status"])
    if told["status"] != "stopped":
        files.clear_offline(job.attempt)
        made = Mark(**state, project=job.project, entity=job.entity, folder=None)
        files.write_mark(job.attempt, made)
    say({"ended": told["status"]})


if __name__ == "__main__":
    main()
