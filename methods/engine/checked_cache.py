"""CheckedKVCache: a cache that refuses to read a slot which was never written.

Apart from the cache itself, because only tests pay for the check.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from methods.engine.cache import KVCache, Positions


class CheckedKVCache(KVCache):
    """A cache that refuses to read a slot which was never written; for tests."""

    @cached_property
    def written(self) -> Tensor:
        """Whether each layer's slot of each row was written, (layers, B, S)."""
        size = (len(self.layers), len(self.lengths), len(self.slot_ids))
        return torch.zeros(size, dtype=torch.bool)

    def keep(self, rows: Sequence[int]) -> None:
        """Lets go of the others' notes too."""
        self.written = self.written[:, list(rows)]
        super().keep(rows)

    def write_prompt(self, layer: int, kv: Tensor) -> None:
        """Notes the slots, then writes."""
        for row, (offset, length) in enumerate(zip(self.offsets, self.lengths, strict=True)):
            self.written[layer, row, offset : offset + length] = True
        super().write_prompt(layer, kv)

    def write(self, layer: int, kv: Tensor, positions: Positions) -> None:
        """Notes the slots, then writes."""
        self._note(layer, positions)
        super().write(layer, kv, positions)

    def lend(self, layer: int, positions: Positions) -> Tensor:
        """Notes the slots as written: the caller will."""
        self._note(layer, positions)
        return super().lend(layer, positions)

    def _note(self, layer: int, positions: Positions) -> None:
        rows = torch.arange(len(self.lengths))
        rows = rows if positions.rows is None else rows[positions.rows]
        slots = positions.slots
        if isinstance(slots, slice):
            slots = torch.arange(len(self.slot_ids))[slots][None]
        self.written[layer, rows[:, None], slots] = True

    def read(self, layer: int, positions: Positions) -> Tensor:
        """Raises AssertionError for a slot that a query sees but nobody wrote."""
        written = self.written[layer, :, None, None, : positions.visible]
        if positions.rows is not None:
            written = written[positions.rows]
        seen = torch.ones_like(written)
        if positions.mask is not None:
            seen = positions.mask == 0
        holes = (seen & ~written).nonzero()
        assert not len(holes), f"layer {layer}: (row, 0, query, slot) {holes[0].tolist()} unwritten"
        return super().read(layer, positions)
