"""What a submitted job runs: one frozen configuration.

Apart, because who hands jobs in, or asks how they stand, must name it without loading what a run
needs: planning and torch are imported within. Not here: jobs, signals and requeues
(``slurm/payload.py``).
"""

import os
from pathlib import Path

from bench import frozen
from bench.errors import InputError
from bench.session import Session
from bench.store import Attempt
from bench.tracking import handover


def from_file(path: Path, session: Session) -> None:
    """Makes the run of a frozen configuration, from where it was stopped; nothing if it is done.

    Args:
        path: absolute.
        session: shared by the runs of a process.

    Raises:
        SkipbenchError: for what cannot be run.
        Interrupted: if the process was asked to end.
    """
    run = frozen.read(path)
    _enter(run.folder)
    config = run.config()
    attempt = Attempt(Path(config.results_dir) / run.run_id / str(run.attempt))
    if attempt.is_done():
        # It may have been killed before it was handed over.
        handover.catch_up([attempt], config)
        return
    from bench.planning import plan

    planned = plan(config)
    if planned.run_id != run.run_id:
        raise InputError(
            "This is not the run that was submitted: weights, data or code are others now",
            got=f"{planned.run_id}, submitted as {run.run_id}",
            allowed="the files as they were when the sweep was submitted",
            where="submit the sweep again",
        )
    session.begins(-(-len(planned.examples) // config.meter.batch_size))
    # W&B is loaded beside torch.
    with handover.beside(attempt, config) as settle:
        from bench.run import make

        make(planned, attempt, settle, session)


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise InputError(
            "The folder from which the sweep was submitted is not there on this machine",
            got=f"{folder}: {error.strerror}",
            allowed="a folder on a file system that both machines share",
            where="the folder in which python -m bench was called",
        ) from error
