"""Ranges of the plain numbers of a configuration, by their full keys.

Apart, because they are a table, and all that are out of range are told at once. Not here: what a
method or a task allows (their own modules), types (``binding.py``).
"""

import sys
from operator import attrgetter

from bench.errors import InputError

_AT_LEAST_ONE = (
    "task.limit",
    "task.max_new_tokens",
    "decode.max_new_tokens",
    "decode.top_k",
    "meter.batch_size",
    "meter.repeats",
    "meter.timed_batches",
    "train.steps",
    "train.batch_size",
    "train.accumulate",
    "train.save_every_steps",
    "calibrate.limit",
    "tracking.wait_s",
    "launch.runs_per_job",
    "launch.array_parallelism",
    *(
        f"{group}.slurm.{name}"
        for group in ("gpu", "model", "launch")
        for name in ("cpus", "minutes")
    ),
)
_NOT_NEGATIVE = (
    "meter.warmups",
    "train.warmup_steps",
    "seed",
    "train.seed",
    "tracking.sample",
    "launch.notice_s",
    "launch.margin_s",
    "launch.grace_s",
    "launch.max_timeouts",
)
_ABOVE_ZERO = (
    "meter.margin",
    "decode.temperature",
    "decode.top_p",
    "calibrate.delta",
    "calibrate.epsilon",
    "calibrate.step",
    *(f"{group}.slurm.memory_gb" for group in ("gpu", "model", "launch")),
)
_SHARES = ("decode.top_p", "calibrate.step")
_BELOW_ONE = ("calibrate.delta", "calibrate.epsilon")


def faults_of(config: object) -> list[InputError]:
    """One fault for each number that is out of its range; null is in every range."""
    faults = []
    ranges = (
        (_AT_LEAST_ONE, 1, "1 and up"),
        (_NOT_NEGATIVE, 0, "0 and up"),
        (_ABOVE_ZERO, sys.float_info.min, "above 0"),
    )
    for keys, least, allowed in ranges:
        for key in keys:
            value = attrgetter(key)(config)
            if value is not None and value < least:
                what = f"Setting {key} is too small"
                faults.append(InputError(what, got=value, allowed=allowed, where=key))
    for key in (*_SHARES, *_BELOW_ONE):
        value, open_end = attrgetter(key)(config), key in _BELOW_ONE
        if value > 1 or (open_end and value == 1):
            what = f"Setting {key} is too large"
            allowed = "above 0, below 1" if open_end else "above 0, up to 1"
            faults.append(InputError(what, got=value, allowed=allowed, where=key))
    return faults
