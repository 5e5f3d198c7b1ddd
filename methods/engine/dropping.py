"""Dropping: finished rows leave the batch, and all that is held of them by row goes too.

Apart, because cache, positions, chooser and methods let go of rows by one rule, and the driver
decides when. Not here: which rows are finished (``bench/decoding.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

from torch import Tensor

from methods.engine.cache import KVCache, index_of

Item = TypeVar("Item")


def staying(finished: Sequence[bool]) -> list[int]:
    """Which of the held rows stay, ascending: the live ones, and others up to the next size.

    Sizes are 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on: so what is copied over a whole decode is less
    than three caches, and kernels meet few numbers of rows.

    Args:
        finished: of each held row, whether it is known to be.
    """
    live = sum(not ended for ended in finished)
    spare = size(live) - live
    rows = []
    for row, ended in enumerate(finished):
        spare -= ended
        if not ended or spare >= 0:
            rows.append(row)
    return rows


def size(rows: int) -> int:
    """The least power of two, or one and a half of it, that is not below ``rows``."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if rows <= power * 3 // 4 else power


@overload
def select(values: Tensor, rows: Sequence[int]) -> Tensor: ...
@overload
def select(values: Sequence[Item], rows: Sequence[int]) -> list[Item]: ...
def select(values: Tensor | Sequence[Item], rows: Sequence[int]) -> Tensor | list[Item]:
    """Those of one value a row that belong to ``rows``, ascending; nobody waits for the device."""
    if isinstance(values, Tensor):
        return values[index_of(rows, values.device)]
    return [values[row] for row in rows]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a method is sent in place of the live rows where finished ones leave the batch.

    Attributes:
        rows: those rows of the latest Round that the next one is of, ascending.
        live: which of these are live, (B',) bool.
    """

    rows: tuple[int, ...]
    live: Tensor


class HeldRows:
    """The rows that a batch still holds, as a method meets them from Round to Round.

    Attributes:
        cache: lets go of the rows that leave.
        live: which rows are live, (B,) bool; None if all may be.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.live: Tensor | None = None
        self._rows: tuple[int, ...] | None = None

    def hear(self, live: Tensor | Kept | None) -> None:
        """Takes what the method was sent."""
        if isinstance(live, Kept):
            self._rows, self.live = live.rows, live.live
            self.cache.keep(live.rows)
        else:
            self._rows, self.live = None, live

    @overload
    def kept(self, values: Tensor) -> Tensor: ...
    @overload
    def kept(self, values: list[Item]) -> list[Item]: ...
    def kept(self, values: Tensor | list[Item]) -> Tensor | list[Item]:
        """Values of the latest Round, one a row, of the rows that did not just leave."""
        return values if self._rows is None else select(values, self._rows)
