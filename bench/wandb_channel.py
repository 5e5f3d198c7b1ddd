"""How a process of W&B's own answers: one JSON line each, kept apart from all that wandb prints.

Apart, because both such processes need it. Free of wandb. Not here: the asking side
(``wandb_process.py``).
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

# A cluster signals every process of a job; what to do is for the run to say.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def channel() -> Callable[[dict[str, Any]], None]:
    """Makes standard output ours alone, and lets signals to the whole job pass by."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # What wandb prints goes with its warnings.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    return say
