"""Hands in again what of a sweep is not done, from its frozen configurations.

Apart, because nothing is composed or planned anew: the runs are those that were submitted, with the
code of now. Not here: the first submission (``cluster.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]  # omegaconf's; no stubs are installed

from bench import frozen, jobs
from bench.errors import InputError
from bench.frozen import FrozenRun
from slurm import arrays, commands, states, submitting
from slurm.arrays import Array
from slurm.sweeps import Submission, Sweep

_LAUNCH = "launch."


def retry(sweep: Sweep, settings: Sequence[str]) -> list[Submission]:
    """Hands in all runs that are neither done nor queued nor running.

    Args:
        sweep: whose runs.
        settings: ``launch.KEY=VALUE``, for these jobs and later ones of the same runs.

    Raises:
        InputError: for settings of something else, or if SLURM refuses a job.
        FaultsError: for settings that are wrong.
    """
    commands.check_available()
    kept = jobs.OPEN | {jobs.DONE}
    found = states.of_sweep(sweep)
    wanted = [index for index, state in enumerate(found) if state.status not in kept]
    runs = {index: _changed(frozen.read(sweep.run_file(index)), settings) for index in wanted}
    configs = {index: run.config() for index, run in runs.items()}
    for index, run in runs.items():
        frozen.write(sweep.run_file(index), run)
    shape = arrays.arranged(list(configs.values()), commands.site().max_array_size)
    return submitting.hand_in(sweep, configs, [_renumbered(array, wanted) for array in shape])


def _renumbered(array: Array, wanted: Sequence[int]) -> Array:
    """The same of indices in the sweep, not among those that are handed in."""
    return replace(array, jobs=tuple(tuple(wanted[run] for run in runs) for runs in array.jobs))


def _changed(run: FrozenRun, settings: Sequence[str]) -> FrozenRun:
    if not settings:
        return run
    wrong = [each for each in settings if not each.startswith(_LAUNCH) or "=" not in each]
    if wrong:
        raise InputError(
            "A retry runs what was submitted; only how it is launched may change",
            got=" ".join(wrong),
            allowed="launch.KEY=VALUE, such as launch.slurm.minutes=300",
            where="python -m slurm retry",
        )
    try:
        changes = OmegaConf.from_dotlist(list(settings))
        values: Any = OmegaConf.to_container(OmegaConf.merge(dict(run.values), changes))
    except (OmegaConfBaseException, YAMLError) as error:
        raise InputError(
            "The settings cannot be read",
            got=str(error).splitlines()[0],
            allowed="launch.KEY=VALUE",
            where="python -m slurm retry",
        ) from error
    return replace(run, values=_plain(values))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(values)
