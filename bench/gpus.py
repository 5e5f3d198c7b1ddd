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


@cache
def _present() -> str:
    """The first CUDA device's name in lower case with dashes, or cpu."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    names = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return names[0].strip().lower().replace(" ", "-") if names else "cpu"
