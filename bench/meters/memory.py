"""Memory of the host's own process, leg by leg.

Apart from ``device.py``, because this needs no torch: the kernel keeps a high-water mark of a
process, and lets it be reset. Without that reset the mark is the peak of the whole life of the
process, loading included, and is no leg's: then nothing is known. Not here: a GPU's allocator
(``device.py``); what weights take, of which the kernels' own layouts do not tell their size
(``bench/memory_estimate.py`` computes it from shapes).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

_RESET_PEAK = "5"
_KILOBYTE = 1024


class PeakRss:
    """Peak of the resident set of this process since the last reset.

    The resident set is what lies in memory, the weights of all legs and libraries included, so that
    legs differ by what each of them needs beside. What an earlier leg freed counts too as long as
    the allocator keeps it: small differences between legs mean nothing.

    Args:
        status: the kernel's account of the process, which holds the mark.
        clear_refs: where the mark is reset.
    """

    def __init__(
        self,
        status: Path = Path("/proc/self/status"),
        clear_refs: Path = Path("/proc/self/clear_refs"),
    ) -> None:
        self._status, self._clear_refs = status, clear_refs
        self._is_reset = False

    def reset(self) -> bool:
        """Starts a new peak at what is resident now; False where the system does not let us."""
        self._is_reset = False
        # Opening it for writing would make a file where the system has none.
        if self._clear_refs.exists():
            try:
                self._clear_refs.write_text(_RESET_PEAK, encoding="ascii")
                self._is_reset = True
            except OSError:
                pass
        return self._is_reset

    def read(self) -> int | None:
        """Bytes; None without a reset that worked, or where the system does not tell."""
        if not self._is_reset:
            return None
        try:
            lines = self._status.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return None
        # Name, number, "kB".
        values = [line.split()[1:2] for line in lines if line.startswith("VmHWM:")]
        number = values[0][0] if values and values[0] else ""
        return int(number) * _KILOBYTE if number.isdecimal() else None


class Stored(Protocol):
    """What is asked of a tensor."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        ...


def cache_bytes(layers: Iterable[Stored]) -> int:
    """Bytes of a cache that is held.

    Args:
        layers: keys and values of each layer (``KVCache.layers``); its mask and slot numbers,
            small beside them, are not counted.
    """
    return sum(layer.nbytes for layer in layers)
