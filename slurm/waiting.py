"""Waits until all runs of a sweep have ended.

Apart, because the launcher and ``python -m slurm status --watch`` wait alike. Not here: how runs
stand (``states.py``), what is shown meanwhile.
"""

import time
from collections.abc import Callable, Sequence

from bench.jobs import LOST, OPEN
from bench.meters.clock import seconds
from slurm import states
from slurm.states import RunState
from slurm.sweeps import Sweep

# Between two looks: at first, and after a long time.
_SOON_S, _SELDOM_S = 2.0, 30.0
_SHARE_OF_AGE = 0.05
# A shared file system may show a file of another machine so late.
_LATE_S = 90.0


def until_ended(sweep: Sweep, show: Callable[[Sequence[RunState]], bool]) -> list[RunState]:
    """How the runs stand at the end.

    Args:
        sweep: whose runs.
        show: gets how they stand, again and again; False ends the waiting.

    Raises:
        InputError: if the cluster does not answer.
    """
    began = seconds()
    # When each was first seen as lost.
    lost: dict[int, float] = {}
    while True:
        found, now = states.of_sweep(sweep), seconds()
        lost = {
            index: lost.get(index, now) for index, state in enumerate(found) if state.status == LOST
        }
        late = any(now - since < _LATE_S for since in lost.values())
        if not show(found) or not (late or any(state.status in OPEN for state in found)):
            return found
        time.sleep(min(_SELDOM_S, max(_SOON_S, (now - began) * _SHARE_OF_AGE)))
