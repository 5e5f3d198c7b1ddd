"""The journal of a job: what happened in it, one JSON object a line, written as it happens.

Apart, because it is the job's own word of how it stands: SLURM knows of processes only, submitit of
pickles. Not here: what follows from it (``states.py``).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import disk
from bench.meters.clock import now_utc

# Of the job: it started (again); was asked to end; was queued again, or not, or by SLURM itself;
# found other code than was submitted.
STARTED, STOPPED = "started", "stopped"
REQUEUED, NOT_REQUEUED, LEFT_TO_SLURM = "requeued", "not requeued", "left to slurm"
CODE_CHANGED = "code changed"
# Of one of its runs.
RUN_BEGAN, RUN_DONE, RUN_FAILED = "run began", "run done", "run failed"
TIME_LIMIT, PREEMPTED = "time limit", "preempted"


@dataclass(frozen=True, slots=True)
class Journal:
    """One job's."""

    path: Path

    def note(self, what: str, **facts: Any) -> None:  # noqa: ANN401  # any plain value
        """Adds a line, flushed to disk."""
        line = json.dumps({"at": now_utc(), "what": what, **facts}, ensure_ascii=False)
        disk.append(self.path, f"{line}\n".encode())

    def read(self) -> list[dict[str, Any]]:
        """All whole lines, oldest first; none if the job has not started."""
        lines = (disk.content(self.path) or b"").split(b"\n")
        return [json.loads(line) for line in lines[:-1] if line.startswith(b"{")]
