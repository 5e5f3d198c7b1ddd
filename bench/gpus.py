"""Device profiles by name, without torch.

Apart, because a plan must know the device's name before anything heavy is imported. Not here: using
the device (``meters/device.py``); peak rates.
"""

import shutil
import subprocess
from functools import cache


def resolve(name: str) -> str:
    """The profile that stands in identity and records: ``auto`` is what is there."""
    return _present() if name == "auto" else name


def driver_version() -> str | None:
    """The CUDA driver's version; None without one."""
    found = _asked("driver_version")
    return found[0] if found else None


@cache
def _present() -> str:
    """The first CUDA device's name in lower case with dashes, or cpu."""
    names = _asked("name")
    return names[0].lower().replace(" ", "-") if names else "cpu"


def _asked(field: str) -> list[str]:
    """What the driver's own tool says of each device; nothing without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [line.strip() for line in lines if line.strip()]
