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
    """Start, first Round, end of a decode; the device is waited for at start and end only.

    Args:
        device: whose work is timed.
        every_round: also wait for the device at each Round, and keep the seconds of each. That
            perturbs, so such a pass is one of its own, whose other times nobody uses.
    """

    def __init__(self, device: Device, *, every_round: bool = False) -> None:
        self._device, self._every_round = device, every_round
        self._start = self._first = self._end = 0.0
        self._queued: Callable[[], float] | None = None
        self._round_ends: list[float] = []

    def start(self) -> None:
        """Waits for the device, then starts."""
        self._device.synchronise()
        self._device.stamp()
        self._start = time.perf_counter()

    def first_round(self) -> None:
        """Marks the first Round without waiting for the device."""
        self._queued = self._device.stamp()
        self._first = time.perf_counter()
        self.round()

    def round(self) -> None:
        """Notes the end of a Round, if each is wanted."""
        if self._every_round:
            self._device.synchronise()
            self._round_ends.append(time.perf_counter())

    def stop(self) -> None:
        """Waits for the device, then stops."""
        self._device.synchronise()
        self._end = time.perf_counter()

    def timing(self) -> Timing:
        """The two intervals, after ``stop``."""
        ttft = self._first - self._start if self._queued is None else self._queued()
        return Timing(ttft, self._end - self._start - ttft)

    def round_s(self) -> list[float]:
        """Seconds of each Round, the prompt's first; empty unless each was wanted."""
        starts = [self._start, *self._round_ends]
        return [end - start for start, end in zip(starts, self._round_ends, strict=False)]


def elapsed(device: Device, work: Callable[[], object]) -> float:
    """Seconds that work takes, with all it hands to the device; its result is let go."""
    device.synchronise()
    start = time.perf_counter()
    work()
    device.synchronise()
    return time.perf_counter() - start


def seconds() -> float:
    """Seconds since some moment, for limits and pauses: never set back, of this machine alone."""
    return time.monotonic()


def now_utc() -> str:
    """The date and time in UTC, for records."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
