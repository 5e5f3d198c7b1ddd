"""Devices as the clock and the driver need them: waiting, stamps, and reading back without waiting.

Apart from the clock, which is free of torch. Needs nothing but torch, so that a decode can be timed
where no more is installed. Not here: peak rates of devices, and which one a run gets
(``bench/presence.py``).
"""

from collections.abc import Callable

import torch
from torch import Tensor


class CpuDevice:
    """Host work is done when its call returns."""

    # Rounds by which a value read back lags behind.
    lag = 0

    def synchronise(self) -> None:
        """Nothing to wait for."""

    def stamp(self) -> Callable[[], float] | None:
        """Host time is device time."""
        return None

    def read_back(self, values: Tensor) -> Callable[[], list[bool]]:
        """The values of a boolean tensor, (B,), when asked for."""
        return values.tolist

    def peak_memory_bytes(self) -> int | None:
        """Not known of one leg on a host."""
        return None

    def reset_peak_memory(self) -> None:
        """Nothing to reset."""


class CudaDevice:
    """One CUDA device, with its queue."""

    lag = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._last: torch.cuda.Event | None = None  # noqa: TID251  # the clock's own part for CUDA

    def synchronise(self) -> None:
        """Waits for all kernels of the device."""
        torch.cuda.synchronize(self.device)

    def stamp(self) -> Callable[[], float] | None:
        """Records an event; seconds since the last one are known after the next ``synchronise``."""
        event = _event(timing=True)
        before, self._last = self._last, event
        return lambda: 0.0 if before is None else before.elapsed_time(event) / 1000.0

    def read_back(self, values: Tensor) -> Callable[[], list[bool]]:
        """Copies asynchronously; the function waits for that copy alone, not for later kernels."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        event = _event(timing=False)

        def read() -> list[bool]:
            event.synchronize()
            found: list[bool] = host.tolist()
            return found

        return read

    def peak_memory_bytes(self) -> int | None:
        """Peak of allocated memory since the last reset."""
        return torch.cuda.max_memory_allocated(self.device)

    def reset_peak_memory(self) -> None:
        """Starts a new peak."""
        torch.cuda.reset_peak_memory_stats(self.device)


def _event(*, timing: bool) -> torch.cuda.Event:  # noqa: TID251  # the clock's own part for CUDA
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]  # noqa: TID251  # torch leaves it untyped
    event.record()
    return event


AnyDevice = CpuDevice | CudaDevice


def of(device: torch.device) -> AnyDevice:
    """The device as the clock sees it."""
    return CpuDevice() if device.type == "cpu" else CudaDevice(device)
