"""What the runs of one process share: loaded weights, and whoever may ask the process to end.

Apart, so that a run knows nothing of signals or clusters, and these know nothing of batches. Free
of torch. Not here: who asks, and how (``slurm/notice.py``).
"""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Interrupted(BaseException):
    """The process was asked to end. No failure: the same run goes on later from its records."""


class Session:
    """A process that nobody asks to end before its runs are made.

    Args:
        facts: what stands in the provenance of each run beside what the machine tells.

    Attributes:
        models: weights in inference form by what they are and how they are held; those that the
            next run needs are not loaded again.
    """

    def __init__(self, facts: Mapping[str, Any] | None = None) -> None:
        self.facts = dict(facts or {})
        self.models: dict[Hashable, Any] = {}

    def begins(self, batches: int) -> None:
        """Takes note of how many batches a run has."""

    def check(self) -> None:
        """Between two batches.

        Raises:
            Interrupted: if the process is to end.
        """

    @contextmanager
    def held(self) -> Iterator[None]:
        """While something is written: it is not interrupted within."""
        yield
