"""What a calibration is asked for: the frozen form of ``conf/calibrate/*.yaml``, with its checks.

Apart from ``config.py``, because the order of thresholds is a part of the promise. Not here: the
promise (``calibration.py``).
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from bench.errors import InputError

# Multiples of a step are rounded to it: 1 - 3 * 0.05 would have 17 digits.
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class CalibrateConfig:
    """As in ``conf/calibrate/default.yaml``, where each is explained."""

    objective: Literal["textual", "risk"]
    delta: float
    epsilon: float
    step: float
    thresholds: tuple[float, ...] | None
    split: Literal["validation", "test"]
    limit: int | None
    same_split: bool

    def ladder(self) -> tuple[float, ...]:
        """The thresholds that are tested, from the most careful one on."""
        if self.thresholds is not None:
            return self.thresholds
        steps = math.floor(1 / self.step + 10.0**-_DIGITS)
        return tuple(round(1 - index * self.step, _DIGITS) for index in range(steps + 1))

    def faults(self) -> list[InputError]:
        """Thresholds that are none, or not in the order that the promise needs."""
        given = self.thresholds
        if given is None:
            return []
        inside = all(0 <= threshold <= 1 for threshold in given)
        if given and inside and all(high > low for high, low in pairwise(given)):
            return []
        return [
            InputError(
                "These thresholds cannot be tested in a fixed order",
                got=list(given),
                allowed="at least one, in 0..1, falling: the most careful one first",
                where="calibrate.thresholds",
            )
        ]
