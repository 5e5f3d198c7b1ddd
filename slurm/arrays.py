"""Which runs share a job, which jobs an array, and how many of them run at once.

Apart and pure, so that the shape of a submission can be shown and tested without a cluster. Not
here: what a job asks for (``bench/resources.py``), handing in (``submitting.py``).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from bench.config import RunConfig
from bench.resources import SlurmConfig, merged

# Of a run for which neither its model nor its device says how long it takes.
_MINUTES = 60


@dataclass(frozen=True, slots=True)
class Array:
    """Jobs that ask for the same.

    Attributes:
        asked: of each job.
        jobs: runs of each job, as indices.
        throttle: of its jobs that run at once, at most; None for all.
        behind: index of the array that must have ended first; None if none must.
    """

    asked: SlurmConfig
    jobs: tuple[tuple[int, ...], ...]
    throttle: int | None = None
    behind: int | None = None


def arranged(configs: Sequence[RunConfig], max_array_size: int) -> list[Array]:
    """The arrays of a sweep, largest possible.

    Args:
        configs: of all runs to hand in.
        max_array_size: jobs of one array, at most.
    """
    groups: dict[str, list[int]] = {}
    for index, config in enumerate(configs):
        alike = asdict(config.launch) | {"slurm": asdict(asked(config))}
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(index)
    arrays = []
    for members in groups.values():
        launch = configs[members[0]].launch
        jobs = _shared(configs, members, launch.runs_per_job)
        need = asked(configs[members[0]])
        most = max(map(len, jobs))
        need = replace(need, minutes=(need.minutes or _MINUTES) * most)
        arrays += [Array(need, tuple(part)) for part in _parts(jobs, max_array_size)]
    return _throttled(arrays, configs[0].launch.array_parallelism) if arrays else []


def asked(config: RunConfig) -> SlurmConfig:
    """What one run asks for."""
    return merged(config.gpu.slurm, config.model.slurm, config.launch.slurm)


def _shared(
    configs: Sequence[RunConfig], members: Sequence[int], most: int
) -> list[tuple[int, ...]]:
    """Runs of one model and engine together, in their order, at most so many."""
    if most == 1:
        return [(index,) for index in members]
    alike: dict[str, list[int]] = {}
    for index in members:
        config = configs[index]
        key = json.dumps([asdict(config.model), asdict(config.engine)])
        alike.setdefault(key, []).append(index)
    return [tuple(part) for indices in alike.values() for part in _pieces(indices, most)]


def _pieces(items: Sequence[int], most: int) -> list[Sequence[int]]:
    return [items[at : at + most] for at in range(0, len(items), most)]


def _parts(jobs: Sequence[tuple[int, ...]], most: int) -> list[Sequence[tuple[int, ...]]]:
    """As few parts as the limit allows, of about equal size."""
    number = -(-len(jobs) // most)
    ends = [len(jobs) * (at + 1) // number for at in range(number)]
    return [jobs[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _throttled(arrays: Sequence[Array], parallelism: int | None) -> list[Array]:
    """Shares the jobs that may run at once among arrays, so that all together keep to it.

    Where there are more arrays than may run at once, some wait for another to end.
    """
    if parallelism is None:
        return list(arrays)
    if len(arrays) > parallelism:
        return _in_lanes(arrays, parallelism)
    shares = [1] * len(arrays)
    for _ in range(parallelism - len(arrays)):
        # The one that has the most jobs for its share gets more.
        open_ones = [at for at, array in enumerate(arrays) if shares[at] < len(array.jobs)]
        if not open_ones:
            break
        neediest = max(open_ones, key=lambda at: len(arrays[at].jobs) / shares[at])
        shares[neediest] += 1
    return [replace(array, throttle=n) for array, n in zip(arrays, shares, strict=True)]


def _in_lanes(arrays: Sequence[Array], lanes: int) -> list[Array]:
    """One job at a time in each lane, one array after another."""
    last: list[int | None] = [None] * lanes
    loads = [0] * lanes
    found = []
    for index, array in enumerate(arrays):
        lane = loads.index(min(loads))
        found.append(replace(array, throttle=1, behind=last[lane]))
        loads[lane] += len(array.jobs)
        last[lane] = index
    return found
