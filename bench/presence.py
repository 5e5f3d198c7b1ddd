"""The device of a profile, as torch sees it: is it there, and is it that one?

Apart from ``gpus.py``, which is free of torch, and from ``meters/device.py``, which needs no
profiles. Not here: waiting for a device and reading from it.
"""

import torch

from bench import gpus
from bench.errors import InputError
from bench.gpus import GpuConfig


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
