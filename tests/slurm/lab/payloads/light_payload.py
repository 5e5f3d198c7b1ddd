"""A payload that is quick and loads no torch: its runs are done as soon as they start."""

import sys
from dataclasses import dataclass
from pathlib import Path

from bench import frozen
from bench.meters.clock import now_utc
from bench.schema import SCHEMA_VERSION, Header
from bench.store import Attempt
from slurm import environment, journal
from slurm.journal import Journal


@dataclass(frozen=True)
class Light:
    runs: tuple
    journal: str
    code: str

    def __call__(self):
        job = environment.this_job()
        own = Journal(Path(self.journal))
        own.note(journal.STARTED, slurm_id=job.slurm_id, restarts=job.restarts)
        for index, path in self.runs:
            run = frozen.read(Path(path))
            attempt = Attempt(Path(run.values["results_dir"]) / run.run_id / str(run.attempt))
            with attempt.claim():
                columns = {"torch": "torch" in sys.modules, "slurm_id": job.slurm_id}
                attempt.write_header(Header(SCHEMA_VERSION, columns, 0, now_utc()))
            own.note(journal.RUN_DONE, run=index)
        return {}
