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
import torch.nn.functional as functional
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
        rows: the rows of the batch that B stands for, ascending; None for all. A slice where they
            lie side by side, so that their keys and values are read in place.
    """

    ids: Tensor
    slots: slice | Tensor
    visible: int
    mask: Tensor | None
    rope: tuple[Tensor, Tensor] | None
    extent: Extent
    rows: slice | Tensor | None = None

    def of_rows(self, rows: Sequence[int]) -> "Positions":
        """The same positions of some rows of the whole batch, ascending, for calls on these alone.

        Args:
            rows: B' of the batch's rows; tensors that go with it are (B', T, ...).
        """
        index = index_of(rows, self.ids.device)
        return Positions(
            ids=self.ids[index],
            slots=self.slots if isinstance(self.slots, slice) else self.slots[index],
            visible=self.visible,
            # What is the same for all rows has one row.
            mask=self.mask if self.mask is None or len(self.mask) == 1 else self.mask[index],
            rope=None if self.rope is None else (self.rope[0][index], self.rope[1][index]),
            extent=self.extent._replace(rows=len(rows), members=tuple(rows)),
            rows=index,
        )


def index_of(numbers: Sequence[int], device: torch.device) -> slice | Tensor:
    """Rows as an index that makes nobody wait; a slice where they follow one another.

    A mask, a list or a plain upload would each make the host wait for the device.
    """
    first = numbers[0]
    if list(numbers) == list(range(first, first + len(numbers))):
        return slice(first, first + len(numbers))
    return upload(numbers, device)


def upload(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Host numbers as a tensor on the device, which nobody waits for: behind what is queued there.

    A plain upload would make the host wait until the device has reached it.
    """
    tensor = torch.tensor(numbers)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class KVCache:
    """Keys and values of every layer, (2, B, kv heads, S, head_dim) each, zeroed when made.

    Keys first: so all rows' keys are one stack of matrices, which products read in place.

    Args:
        shape: the model's shape.
        prompts: whose rows it holds.
        new_tokens: room behind the prompts.
        dtype: of keys and values.
        bucket: None: a step reads the slots that it sees, as a view. Else it reads a multiple of
            so many, hidden ones too, under a mask: kernels meet few lengths. Slots are added as
            they are needed and all are read, for whole tensors are what kernels like best.
        layers: memory to use, which stays where it is: room for all slots, and a multiple of the
            bucket is read of it.
    """

    def __init__(
        self,
        shape: Shape,
        prompts: Prompts,
        new_tokens: int,
        dtype: torch.dtype,
        bucket: int | None = None,
        layers: list[Tensor] | None = None,
    ) -> None:
        device = prompts.ids.device
        longest = max(prompts.lengths)
        self.lengths = prompts.lengths
        self.offsets = tuple(longest - length for length in prompts.lengths)
        self.num_slots = longest + new_tokens
        self.bucket, self._stays = bucket, layers is not None
        first = self.num_slots if bucket is None else longest
        size = (2, len(self.lengths), shape.num_kv_heads, self._room(first), shape.head_dim)
        if layers is None:
            layers = [
                torch.empty(size, dtype=dtype, device=device) for _ in range(shape.num_layers)
            ]
        # Zeroed: a masked slot still enters as 0 x value, and 0 x NaN is NaN.
        self.layers = [layer.zero_() for layer in layers]
        self.capacity = layers[0].shape[3]
        self.offset_ids = torch.tensor(self.offsets, device=device)[:, None]
        self.slot_ids = torch.arange(self._room(self.num_slots), device=device)
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

    def _room(self, slots: int) -> int:
        """Slots to hold: one more than are seen, for what is no token where rows are unequal."""
        return rounded(slots + 1, self.bucket or 1)

    def _reach(self, end: int) -> int:
        """Makes room for slots up to ``end``; how many a step that sees these reads.

        Raises:
            ValueError: if there are not so many.
        """
        if end > self.num_slots:
            raise ValueError(f"slot {end - 1} is beyond the cache's {self.num_slots} slots")
        if self.bucket is None:
            return end
        room = self._room(end)
        if room > self.capacity:
            more = (0, 0, 0, room - self.capacity)
            self.layers = [functional.pad(layer, more) for layer in self.layers]
            self.capacity = room
        return room if self._stays else self.capacity

    def keep(self, rows: Sequence[int]) -> None:
        """Lets go of all rows but these, ascending; their slots stay where they are."""
        index = index_of(rows, self.slot_ids.device)
        self.lengths = tuple(self.lengths[row] for row in rows)
        self.offsets = tuple(self.offsets[row] for row in rows)
        self.offset_ids = self.offset_ids[index]
        if self.left_edge is not None:
            self.left_edge = self.left_edge[index]
        # One by one, so that one layer at most is held twice.
        for layer, held in enumerate(self.layers):
            kept = held[:, index].clone(memory_format=torch.contiguous_format)
            self.layers[layer] = held[:, : len(rows)].copy_(kept) if self._stays else kept

    def write_prompt(self, layer: int, kv: Tensor) -> None:
        """Writes right-padded prompt keys and values, (2, B, kv, T, head_dim), right-aligned."""
        stored = self.layers[layer]
        if not self.ragged:
            stored[..., : kv.shape[3], :] = kv
            return
        for row, (offset, length) in enumerate(zip(self.offsets, self.lengths, strict=True)):
            stored[:, row, :, offset : offset + length] = kv[:, row, :, :length]

    def write(self, layer: int, kv: Tensor, positions: Positions) -> None:
        """Writes keys and values of new positions, (2, B, kv, T, head_dim)."""
        stored, slots, rows = self.layers[layer], positions.slots, positions.rows
        if isinstance(rows, Tensor):
            if isinstance(slots, slice):
                stored[:, rows, :, slots] = kv
            else:
                # Indexed dimensions come first: (B, T, 2, kv, head_dim).
                stored[:, rows[:, None], :, slots] = kv.permute(1, 3, 0, 2, 4)
            return
        if rows is not None:
            stored = stored[:, rows]
        if isinstance(slots, slice):
            stored[..., slots, :] = kv
        else:
            stored.scatter_(3, slots[None, :, None, :, None].expand_as(kv), kv)

    def read(self, layer: int, positions: Positions) -> Tensor:
        """The visible slots, (2, B, kv, visible, head_dim): a view, unless rows lie apart."""
        visible = self.layers[layer][..., : positions.visible, :]
        rows = positions.rows
        if rows is None:
            return visible
        return visible[:, rows] if isinstance(rows, slice) else visible.index_select(1, rows)

    def lend(self, layer: int, positions: Positions) -> Tensor:
        """What ``read`` gives, as memory: for a step that writes its own keys and values there."""
        return self.read(layer, positions)

    def together(self, ids: Tensor, slot: int) -> tuple[slice, int, Tensor | None, Extent]:
        """Slots, visible, mask and extent for rows that advance together.

        Args:
            ids: (B, T) positions.
            slot: shared slot of the first new token.
        """
        new = ids.shape[1]
        end = slot + new
        visible = self._reach(end)
        mask = None if self.left_edge is None else self.left_edge[..., :visible]
        if new > 1 or visible > end:
            later = self.slot_ids[:visible] > self.slot_ids[slot:end, None]
            causal = _additive(later, self.layers[0].dtype)[None, None]
            mask = causal if mask is None else mask + causal
        own = tuple(end - offset for offset in self.offsets)
        extent = Extent(len(own), new, visible, None, own)
        return slice(slot, end), visible, mask, extent

    def unequally(
        self, ids: Tensor, lengths: Sequence[int], own: Sequence[int] | None = None
    ) -> tuple[Tensor, int, Tensor | None, Extent]:
        """Slots, visible, mask and extent for rows that advance unequally.

        Args:
            ids: (B, T) positions.
            lengths: per row, its positions after this call: slots beyond are not read, and keys up
                to it are charged.
            own: per row, how many of the T are tokens of the row, the first ones; None if all are.
                The rest may stand anywhere; nobody sees what is written of it.
        """
        ends = [offset + length for offset, length in zip(self.offsets, lengths, strict=True)]
        visible = self._reach(max(ends))
        slots = ids + self.offset_ids
        seen = self.slot_ids[:visible]
        hidden = (seen > slots[:, :, None]) | (seen < self.offset_ids[:, :, None])
        mask = _additive(hidden, self.layers[0].dtype)[:, None]
        if own is not None:
            column = torch.arange(ids.shape[1], device=ids.device)
            beyond = column >= upload(own, ids.device)[:, None]
            # The last one that is held, or read: beyond all that any row sees.
            nowhere = (self.capacity if self.bucket is None else visible) - 1
            slots = slots.masked_fill(beyond, nowhere)
        own_new = None if own is None else tuple(own)
        extent = Extent(len(ends), ids.shape[1], visible, own_new, tuple(lengths))
        return slots, visible, mask, extent


def rounded(number: int, multiple: int) -> int:
    """``number``, or the next multiple above."""
    return -(-number // multiple) * multiple


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to scores: 0 where visible, -inf where hidden."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(
        hidden, float("-inf")
    )
