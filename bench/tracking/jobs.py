"""What a process of W&B's own is asked to hand over: an attempt, and as what.

Apart, because both ends of the pipe know it, and that process is to load no more. Free of wandb and
torch. Not here: what makes one (``asking.py``), what becomes of it (``wandb_run.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.store import Attempt
from bench.tracking.content import Reference


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt to hand over.

    Attributes:
        folder: of the attempt.
        project: of W&B.
        entity: None for the account's own.
        group: None for the sweep that it was started in.
        tags: of the run.
        notes: of the run.
        sweep_id: of W&B, for a run that its agent has started.
        sample: generations that are shown.
        artifacts: whether the record files go with it.
        references: example id -> prompt and references.
    """

    folder: str
    project: str
    entity: str | None
    group: str | None
    tags: list[str]
    notes: str | None
    sweep_id: str | None
    sample: int
    artifacts: bool
    references: Mapping[str, Reference]

    @property
    def attempt(self) -> Attempt:
        """Whose records are handed over."""
        return Attempt(Path(self.folder))


def job_from(raw: Mapping[str, Any]) -> Job:
    """A Job of its JSON form, which is ``asdict``'s."""
    known = raw["references"].items()
    references = {name: Reference(each["prompt"], tuple(each["texts"])) for name, each in known}
    return Job(**{**raw, "references": references})
