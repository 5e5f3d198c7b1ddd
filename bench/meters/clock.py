"""The only clock of the suite.

Apart, so that a lint rule can hold that nobody else takes the time, and that a device's late work
is always inside the interval that caused it. Free of torch: the device is passed in. Not here:
what the device is (``device.py``), what the times mean (``bench/summary.py``).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol


class Device(Protocol):
    """What a clock needs of a device."""

    def synchronise(self) -> None:
        """Waits until all work handed to the device is done."""
        ...

    def stamp(self) -> Callable[[], float] | None:
        """Marks this point of the device's own queue, without waiting.

        Returns:
            A function that gives the seconds since the previous stamp, to be called after the next
            ``synchronise``; None for a device without a queue, where host time is device time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """One pass of one leg over one batch.

    Attributes:
        ttft_s: from the start to the first token of every row: the prompt pass.
        decode_s: from there to the end.
    """

    ttft_s: float
    decode_s: float


class Stopwatch:
    """Three points of a decode: start, first Round, end; synchronised at start and end only."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._start = self._first = self._end = 0.0
        self._queued: Callable[[], float] | None = None

    def start(self) -> None:
        """Waits for the device, then starts."""
        self._device.synchronise()
        self._device.stamp()
        self._start = time.perf_counter()

    def first_round(self) -> None:
        """Marks the first Round without waiting for the device."""
        self._queued = self._device.stamp()
        self._first = time.perf_counter()

    def stop(self) -> None:
        """Waits for the device, then stops."""
        self._device.synchronise()
        self._end = time.perf_counter()

    def timing(self) -> Timing:
        """The two intervals, after ``stop``."""
        ttft = self._first - self._start if self._queued is None else self._queued()
        return Timing(ttft, self._end - self._start - ttft)


def now_utc() -> str:
    """The date and time in UTC, for records."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
