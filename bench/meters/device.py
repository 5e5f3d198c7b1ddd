"""Devices as the clock and the driver need them: waiting, stamps, and reading back without waiting.

Apart from the clock, which is free of torch. Not here: peak rates of devices.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bench import gpus
from bench.errors import InputError
from bench.gpus import GpuConfig


class CpuDevice:
    """Host work is done when its call returns."""

    # Rounds by which a value read back lags behind.
    lag = 0

    def synchronise(self) -> None:
        """Nothing to wait for."""

    def stamp(self) -> Callable[[], float] | None:
        """Host time is device time."""
        return None

    def read_back(self, value: Tensor) -> Callable[[], bool]:
        """A boolean tensor's value, when asked for."""
        return lambda: bool(value)

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

    def read_back(self, value: Tensor) -> Callable[[], bool]:
        """Copies asynchronously; the function waits for that copy alone, not for later kernels."""
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        host.copy_(value, non_blocking=True)
        event = _event(timing=False)

        def read() -> bool:
            event.synchronize()
            return bool(host)

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


def resolve(profile: GpuConfig) -> torch.device:
    """The device of a resolved profile, which must be the device that is there.

    Args:
        profile: nothing is compared where it holds no device names.

    Raises:
        InputError: for a GPU that torch does not see, and for another device than the profile's.
    """
    if profile.is_cpu:
        _check_called(profile, gpus.cpu_model())
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(
            "torch sees no CUDA device",
            got=profile.name,
            allowed="gpu=cpu",
            where="gpu, the torch build",
        )
    device = torch.device("cuda")
    _check_called(profile, torch.cuda.get_device_name(device))
    return device


def _check_called(profile: GpuConfig, device_name: str | None) -> None:
    """Refuses rates of one device beside times of another."""
    if device_name is None or not profile.device_names or gpus.is_called(profile, device_name):
        return
    right = "cpu" if profile.is_cpu else gpus.of_device(device_name).name
    raise InputError(
        "The device profile is that of another device",
        got=f"gpu={profile.name}, on {device_name}",
        allowed=f"gpu={right}; python -m bench action=profile-gpu adds a profile where none is",
        where="gpu, gpu.device_names",
    )


def of(device: torch.device) -> AnyDevice:
    """The device as the clock sees it."""
    return CpuDevice() if device.type == "cpu" else CudaDevice(device)
