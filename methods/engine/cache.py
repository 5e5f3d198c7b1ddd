"""KVCache: keys and values by slot, and where the next tokens of each row stand.

``slot = offset[row] + position``. Rows that advance together share one slot number, so that keys
and values are written and read as slices and only the left edge of shorter prompts is masked, by
one mask that never changes. Rows that advance unequally write by index and are masked row by row;
a stale slot lies beyond its row's length and is overwritten before it becomes visible. So nothing
is ever cropped. Apart, because this rule is all there is to batching. Not here: attention itself
(``layer.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.engine.ledger import Extent
from methods.engine.shape import Shape


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of unequal length, right-padded.

    Attributes:
        ids: (B, T), the pads behind each prompt are any valid id.
        lengths: tokens of each row, BOS included, at least 1.
    """

    ids: Tensor
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> "Prompts":
        """Pads lists of ids; raises ValueError for an empty prompt."""
        if not rows or not all(rows):
            raise ValueError("a prompt needs at least one token")
        longest = max(map(len, rows))
        padded = [[*row, *[row[-1]] * (longest - len(row))] for row in rows]
        return cls(torch.tensor(padded, device=device), tuple(map(len, rows)))


@dataclass(frozen=True, slots=True)
class Positions:
    """Where T new tokens of each row stand; made once a step and read by every layer.

    Attributes:
        ids: (B, T), position of each new token in its row.
        slots: the shared slice of slots, or (B, T) slot numbers where rows advance unequally.
        visible: slots 0..visible-1 are read.
        mask: added to the scores, broadcastable to (B, 1, T, visible); None to see all.
        rope: cos and sin, (B, 1, T, head_dim), for rotary families.
        extent: the ledger's entry for these positions.
    """

    ids: Tensor
    slots: slice | Tensor
    visible: int
    mask: Tensor | None
    rope: tuple[Tensor, Tensor] | None
    extent: Extent


class KVCache:
    """Keys and values of every layer, (B, 2 kv heads, S, head_dim) each, zeroed when made."""

    def __init__(
        self,
        shape: Shape,
        prompts: Prompts,
        new_tokens: int,
        dtype: torch.dtype,
    ) -> None:
        device = prompts.ids.device
        longest = max(prompts.lengths)
        self.lengths = prompts.lengths
        self.offsets = tuple(longest - length for length in prompts.lengths)
        self.num_slots = longest + new_tokens
        size = (len(self.lengths), 2 * shape.num_kv_heads, self.num_slots, shape.head_dim)
        # Zeroed: a masked slot still enters as 0 x value, and 0 x NaN is NaN.
        self.layers = [
            torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)
        ]
        self.offset_ids = torch.tensor(self.offsets, device=device)[:, None]
        self.slot_ids = torch.arange(self.num_slots, device=device)
        self.ragged = any(self.offsets)
        # (B, 1, 1, S): hides the slots left of each prompt.
        hidden = self.slot_ids < self.offset_ids
        self.left_edge = _additive(hidden, dtype)[:, None, None] if self.ragged else None
        self.prompt_extent = Extent(
            rows=len(self.lengths),
            new=longest,
            keys=longest,
            own_new=self.lengths if self.ragged else None,
            own_keys=self.lengths,
        )

    def write_prompt(self, layer: int, kv: Tensor) -> None:
        """Writes right-padded prompt keys and values, (B, 2 kv, T, head_dim), right-aligned."""
        stored = self.layers[layer]
        if not self.ragged:
            stored[:, :, : kv.shape[2]] = kv
            return
        for row, (offset, length) in enumerate(zip(self.offsets, self.lengths, strict=True)):
            stored[row, :, offset : offset + length] = kv[row, :, :length]

    def write(self, layer: int, kv: Tensor, positions: Positions) -> None:
        """Writes keys and values of new positions, (B, 2 kv, T, head_dim)."""
        stored, slots = self.layers[layer], positions.slots
        if isinstance(slots, slice):
            stored[:, :, slots] = kv
        else:
            index = slots[:, None, :, None].expand(-1, kv.shape[1], -1, kv.shape[3])
            stored.scatter_(2, index, kv)

    def read(self, layer: int, positions: Positions) -> Tensor:
        """The visible slots, (B, 2 kv, visible, head_dim), as a view."""
        return self.layers[layer][:, :, : positions.visible]

    def together(self, ids: Tensor, slot: int) -> tuple[slice, int, Tensor | None, Extent]:
        """Slots, visible, mask and extent for rows that advance together.

        Args:
            ids: (B, T) positions.
            slot: shared slot of the first new token.
        """
        new = ids.shape[1]
        visible = slot + new
        if visible > self.num_slots:
            raise ValueError(f"slot {visible - 1} is beyond the cache's {self.num_slots} slots")
        mask = None if self.left_edge is None else self.left_edge[..., :visible]
        if new > 1:
            later = (
                self.slot_ids[:visible] > torch.arange(slot, visible, device=ids.device)[:, None]
            )
            causal = _additive(later, self.layers[0].dtype)
            mask = causal if mask is None else mask + causal
        own = tuple(visible - offset for offset in self.offsets)
        extent = Extent(len(own), new, visible, None, own)
        return slice(slot, visible), visible, mask, extent

    def unequally(
        self, ids: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, int, Tensor | None, Extent]:
        """Slots, visible, mask and extent for rows that advance unequally.

        Args:
            ids: (B, T) positions.
            lengths: per row, a host-side bound on its positions after this call (the exact number
                where it is known): slots beyond are not read, and keys up to it are charged.
        """
        ends = [offset + length for offset, length in zip(self.offsets, lengths, strict=True)]
        visible = min(max(ends), self.num_slots)
        slots = ids + self.offset_ids
        seen = self.slot_ids[:visible]
        hidden = (seen > slots[:, :, None]) | (seen < self.offset_ids[:, :, None])
        mask = _additive(hidden, self.layers[0].dtype)[:, None]
        extent = Extent(len(ends), ids.shape[1], visible, None, tuple(lengths))
        return slots, visible, mask, extent


class CheckedKVCache(KVCache):
    """A cache that refuses to read a slot which was never written; for tests."""

    def __init__(self, shape: Shape, prompts: Prompts, new_tokens: int, dtype: torch.dtype) -> None:
        super().__init__(shape, prompts, new_tokens, dtype)
        size = (shape.num_layers, len(self.lengths), self.num_slots)
        self.written = torch.zeros(size, dtype=torch.bool)

    def write_prompt(self, layer: int, kv: Tensor) -> None:
        """Notes the slots, then writes."""
        for row, (offset, length) in enumerate(zip(self.offsets, self.lengths, strict=True)):
            self.written[layer, row, offset : offset + length] = True
        super().write_prompt(layer, kv)

    def write(self, layer: int, kv: Tensor, positions: Positions) -> None:
        """Notes the slots, then writes."""
        if isinstance(positions.slots, slice):
            self.written[layer, :, positions.slots] = True
        else:
            self.written[layer].scatter_(1, positions.slots, torch.ones_like(positions.slots) > 0)
        super().write(layer, kv, positions)

    def read(self, layer: int, positions: Positions) -> Tensor:
        """Raises AssertionError for a slot that a query sees but nobody wrote."""
        written = self.written[layer, :, None, None, : positions.visible]
        seen = torch.ones_like(written)
        if positions.mask is not None:
            seen = positions.mask == 0
        holes = (seen & ~written).nonzero()
        assert not len(holes), f"layer {layer}: (row, 0, query, slot) {holes[0].tolist()} unwritten"
        return super().read(layer, positions)


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to scores: 0 where visible, -inf where hidden."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(
        hidden, float("-inf")
    )
