"""Whether and as what runs are handed to W&B: the frozen form of ``conf/tracking/``.

Apart from ``config.py``, which says how every group is bound. Free of torch. Not here: when runs
are handed over (``handover.py``).
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TrackingConfig:
    """As in ``conf/tracking/*.yaml`` and ``conf/config.yaml``, which explain each of them."""

    name: Literal["offline", "online", "off"]
    project: str | None
    entity: str | None
    group: str | None
    tags: tuple[str, ...]
    notes: str | None
    sample: int
    artifacts: bool
    wait_s: int
    runs: tuple[str, ...]
    wandb_mode: str | None
    agent_sweep_id: str | None
    agent_run_id: str | None

    @property
    def mode(self) -> Literal["offline", "online", "off"]:
        """The choice, unless W&B's own switch allows less."""
        if self.wandb_mode == "disabled":
            return "off"
        return "offline" if self.wandb_mode == "offline" and self.name == "online" else self.name
