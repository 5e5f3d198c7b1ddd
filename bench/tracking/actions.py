"""The actions on stored runs: build their W&B runs, upload them.

Apart, because they look at a results folder and not at one run. Free of wandb and torch. Not here:
how a run is built or uploaded (``handover.py``, ``online.py``).
"""

import sys
from pathlib import Path

from bench import store
from bench.config import RunConfig
from bench.errors import InputError
from bench.store import Attempt
from bench.tracking import handover, online
from bench.tracking.process import Writer


def export(config: RunConfig) -> None:
    """Builds the W&B runs of all stored attempts, or of those asked for; ``rerun`` also anew.

    Raises:
        InputError: if one could not be built.
    """
    attempts = _chosen(config)
    with Writer(config.tracking.wait_s) as writer:
        made, faults = handover.built(attempts, config, writer, again=config.rerun)
    kept = len(attempts) - len(made) - len(faults)
    sys.stdout.write(
        f"W&B runs: {len(made)} built, {kept} left as they are, {len(faults)} failed\n"
    )
    if faults:
        raise InputError(
            "Not every W&B run could be built",
            got="; ".join(dict.fromkeys(faults)),
            allowed="an installed wandb, and a results folder that can be written",
            where="results_dir; the same command goes on with the rest",
        )


def upload(config: RunConfig) -> None:
    """Builds what is missing, and uploads what is not yet uploaded.

    Raises:
        InputError: if one has not arrived.
    """
    export(config)
    done = online.upload(_chosen(config), config.tracking)
    sys.stdout.write(
        f"W&B runs: {done.now} uploaded, {done.before} uploaded before, {done.missing} failed\n"
    )
    if done.missing:
        raise InputError(
            "Not every W&B run has arrived",
            got="; ".join(dict.fromkeys(done.faults)),
            allowed="a network, and an account: wandb login, or WANDB_API_KEY",
            where="the same command goes on with the rest",
        )


def _chosen(config: RunConfig) -> list[Attempt]:
    """All attempts below the results folder, or those of the runs that are named."""
    found = list(store.listed(Path(config.results_dir), every=True))
    wanted = config.tracking.runs
    if not wanted:
        return found
    chosen = [each for each in found if each.folder.parent.name.startswith(tuple(wanted))]
    if not chosen:
        raise InputError(
            "There is no run of this id",
            got=", ".join(wanted),
            allowed="beginnings of ids of: python -m analysis runs",
            where="tracking.runs, results_dir",
        )
    return chosen
