"""What a job asks a SLURM cluster for, as devices, models and the user say it.

Apart, because three groups of settings say parts of it in one form. Free of torch. Not here: how
jobs are formed and handed in (``slurm/``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

# Enough for the device and for the model: where both say how much, the larger is taken.
_AMOUNTS = ("cpus", "memory_gb", "minutes")


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """What of a cluster is asked for; None leaves it to the others, then to the site.

    Attributes:
        partition: name or names, as ``sbatch --partition``.
        account: that is charged.
        qos: quality of service.
        constraint: features of a node, as ``sbatch --constraint``.
        gres: generic resources of a node, such as ``gpu:h100:1``.
        nodelist: nodes to take.
        exclude: nodes to leave out.
        exclusive: whether nobody else gets a share of the node.
        cpus: of the job.
        memory_gb: of the node, not of the device.
        minutes: time limit of one run.
        extra: further options of sbatch, by their long names.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    exclusive: bool | None = None
    cpus: int | None = None
    memory_gb: float | None = None
    minutes: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def merged(device: SlurmConfig, model: SlurmConfig, chosen: SlurmConfig) -> SlurmConfig:
    """What is asked for in all.

    Args:
        device: what the device profile says.
        model: what the model says.
        chosen: what the user says for all jobs; wins over both.
    """
    values: dict[str, Any] = {"extra": {**model.extra, **device.extra, **chosen.extra}}
    for each in fields(SlurmConfig):
        if each.name != "extra":
            said = (getattr(given, each.name) for given in (device, model))
            known = [value for value in said if value is not None]
            own = getattr(chosen, each.name)
            if own is None and known:
                own = max(known) if each.name in _AMOUNTS else known[0]
            values[each.name] = own
    return SlurmConfig(**values)
