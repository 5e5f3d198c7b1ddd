"""Energy of a device, by the counter that its maker built in.

Apart, because a counter is there or is not, and a number without its counter's name says nothing.
Free of torch. Without a counter energy is not known: None, never 0. Not here: the only clock
(``clock.py``), prices or emissions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.meters import clock

try:
    import pynvml
except ImportError:
    pynvml = None

# A counter is brought up to date every 20 to 100 ms: at both ends of a window that is an error.
MIN_WINDOW_S = 2.0
_POWERCAP = Path("/sys/class/powercap")


class Counter(Protocol):
    """Energy used since some moment; only differences mean something."""

    @property
    def name(self) -> str:
        """Which counter, for records."""
        ...

    def read_joules(self) -> float | None:
        """Joules; None where reading fails."""
        ...


@dataclass(frozen=True, slots=True)
class Energy:
    """What passes of one work used, idle power of the device included.

    Attributes:
        joules: of all passes together.
        seconds: of all passes together.
        passes: how often the work was done.
        counter: name of the counter.
    """

    joules: float
    seconds: float
    passes: int
    counter: str

    @property
    def joules_per_pass(self) -> float:
        """Of one pass, on average."""
        return self.joules / self.passes

    @property
    def watts(self) -> float:
        """Mean power."""
        return self.joules / self.seconds


class Nvml:
    """One GPU's total since its driver was loaded, memory included; Volta and later.

    Args:
        library: the module ``pynvml``.
        handle: of the device.
    """

    name = "nvml"

    def __init__(self, library: Any, handle: object) -> None:  # noqa: ANN401  # untyped module
        self._library, self._handle = library, handle

    def read_joules(self) -> float | None:
        """Joules; None for a GPU without the counter."""
        try:
            millijoules = self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except self._library.NVMLError:
            return None
        return float(millijoules) / 1e3


@dataclass(slots=True)
class Rapl:
    """All CPU packages of the machine, everything that runs on them included; memory apart.

    A package's counter starts again at its range, after some minutes at full load: it must be read
    at least once in that time.

    Attributes:
        packages: their folders.
    """

    packages: tuple[Path, ...]
    name: str = field(default="rapl", init=False)
    _last: dict[Path, int] = field(default_factory=dict, init=False)
    _total: int = field(default=0, init=False)

    def read_joules(self) -> float | None:
        """Joules since the first reading; None unless every package can be read."""
        now = {package: _integer(package / "energy_uj") for package in self.packages}
        steps = [self._step(package, value) for package, value in now.items()]
        if not steps or None in steps:
            return None
        self._total += sum(step for step in steps if step is not None)
        self._last = {package: value for package, value in now.items() if value is not None}
        return self._total / 1e6

    def _step(self, package: Path, value: int | None) -> int | None:
        """Microjoules since the last reading."""
        if value is None:
            return None
        last = self._last.get(package, value)
        if value >= last:
            return value - last
        span = _integer(package / "max_energy_range_uj")
        return None if span is None else span - last + value


def find(
    device_type: str,
    *,
    uuid: str | None = None,
    powercap: Path = _POWERCAP,
    nvml: Any = pynvml,  # noqa: ANN401  # untyped module
) -> Counter | None:
    """The counter of a device; None where it has none that we may read.

    Args:
        device_type: ``cpu`` or ``cuda``.
        uuid: of the GPU, ``GPU-...``: the order of devices differs between NVML and CUDA.
        powercap: where the kernel shows the packages.
        nvml: the module ``pynvml`` (``pip install 'skipbench[energy]'``), or None.
    """
    counter = _nvml(uuid, nvml) if device_type == "cuda" else _rapl(powercap)
    return counter if counter is not None and counter.read_joules() is not None else None


def measure(
    work: Callable[[], object],
    counter: Counter | None,
    device: clock.Device,
    min_window_s: float = MIN_WINDOW_S,
) -> Energy | None:
    """Does work until the window is long enough for its counter.

    Args:
        work: one pass, warmed up before.
        counter: of the device that works, or None.
        device: is waited for before and after each pass.
        min_window_s: the passes last at least so long together.

    Returns:
        None without a counter, and where it failed or did not advance.
    """
    before = None if counter is None else counter.read_joules()
    if counter is None or before is None:
        return None
    seconds, passes = 0.0, 0
    while passes == 0 or seconds < min_window_s:
        seconds += clock.elapsed(device, work)
        passes += 1
    after = counter.read_joules()
    if after is None or after <= before:
        return None
    return Energy(after - before, seconds, passes, counter.name)


def _nvml(uuid: str | None, library: Any) -> Nvml | None:  # noqa: ANN401  # untyped module
    if library is None or uuid is None:
        return None
    try:
        library.nvmlInit()
        return Nvml(library, library.nvmlDeviceGetHandleByUUID(uuid))
    except library.NVMLError:
        return None


def _rapl(powercap: Path) -> Rapl | None:
    """Packages alone: not cores and memory below them, nor the whole platform, which holds them.

    ``intel-rapl-mmio:*`` are the same packages by another road. AMD's counters have these names
    too.
    """
    folders = sorted(powercap.glob("intel-rapl:*"))
    packages = tuple(each for each in folders if _text(each / "name").startswith("package"))
    return Rapl(packages) if packages else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _integer(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None
