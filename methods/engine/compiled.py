"""Blocks as compiled functions, as recorded CUDA graphs, or both.

One form serves a number of rows, of new positions and of keys read; where tokens stand is data. So
a form is pure in tensors, and what is charged, checked or chosen stays outside. A compiled form
serves all layers, a graph one. Apart from ``inference.py``, whose blocks take any rows and any
part. Not here: calls for some rows of a batch or for half a layer; these run as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from methods.engine.bound import BoundBlock, Options
from methods.engine.cache import KVCache, Positions, rounded
from methods.engine.layer import (
    attention_sublayer,
    merge_heads,
    mlp_sublayer,
    query_key_value,
)
from methods.engine.shape import Shape

# Attention of queries over keys and values under a mask.
Attention = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Rope = tuple[Tensor, Tensor]
# Forms of one function that the compiler keeps; beyond, it would fall back silently.
MOST_FORMS = 512


@dataclass(frozen=True, slots=True)
class Stand:
    """Where new tokens stand, as tensors.

    Attributes:
        slots: (T,) if all rows share them, else (B, T).
        mask: see ``Positions``; over all keys that are read.
        rope: see ``Positions``.
    """

    slots: Tensor
    mask: Tensor | None
    rope: Rope | None

    def tensors(self) -> list[Tensor]:
        """Those that there are, in a fixed order."""
        return [each for each in (self.slots, self.mask, *(self.rope or ())) if each is not None]


def block_step(
    shape: Shape, attend_to: Attention, weights: BoundBlock, x: Tensor, kv: Tensor, stand: Stand
) -> Tensor:
    """One layer for new tokens of all rows; (B, T, D) to (B, T, D).

    Args:
        shape: the model's shape.
        attend_to: the attention's kernel.
        weights: the layer's.
        x: residual stream.
        kv: keys and values that are read, (2, B, kv, S, head_dim); those of ``x`` are written.
        stand: where the tokens stand.
    """

    def attend(qkv: Tensor) -> Tensor:
        q, new = query_key_value(shape, qkv, stand.rope)
        if stand.slots.dim() == 1:
            kv.index_copy_(3, stand.slots, new)
        else:
            kv.scatter_(3, stand.slots[None, :, None, :, None].expand_as(new), new)
        return merge_heads(attend_to(q, kv, stand.mask))

    return mlp_sublayer(weights, shape, attention_sublayer(weights, shape, x, attend))


class Recorded:
    """A step of one layer as a CUDA graph, which reads and writes where it did when recorded.

    Args:
        step: ``block_step`` of one layer.
        x: residual stream, read and written in place.
        kv: the layer's keys and values.
        stand: where tokens stand; its tensors are read anew at each replay.
        pool: memory that all graphs share: none needs what another left there.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Tensor, Stand], Tensor],
        x: Tensor,
        kv: Tensor,
        stand: Stand,
        pool: Any,  # noqa: ANN401  # torch's handle has no public type
    ) -> None:
        # Once beforehand, off the graph: libraries allocate and compilers compile. It writes what
        # the replay will write.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(x, kv, stand)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            x.copy_(step(x, kv, stand))
        self.kv = kv

    def replay(self) -> None:
        """Runs the step on what its tensors hold now."""
        self.graph.replay()


class Steps:
    """The whole blocks of a model in their prepared forms.

    Args:
        blocks: weights by layer.
        shape: the model's shape.
        attend_to: the attention's kernel.
        compiled: compile them.
        graphs: record them as CUDA graphs.

    Attributes:
        made: forms made so far; a pass during which it grew tells no time.
    """

    def __init__(
        self,
        blocks: list[BoundBlock],
        shape: Shape,
        attend_to: Attention,
        *,
        compiled: bool,
        graphs: bool,
    ) -> None:
        self.blocks, self.made = blocks, 0
        self._step: Callable[..., Tensor] = partial(block_step, shape, attend_to)
        if compiled:
            # A limit that is reached would be an error here, for ``fullgraph`` is demanded.
            limit = torch._dynamo.config.recompile_limit
            torch._dynamo.config.recompile_limit = max(limit, MOST_FORMS)
            self._step = torch.compile(self._step, dynamic=False, fullgraph=True)
        self._graphs: dict[tuple[int, ...], Recorded] | None = {} if graphs else None
        self._pool = torch.cuda.graph_pool_handle() if graphs else None
        self._forms: set[tuple[int, ...]] = set()
        # Of graphs: by form, the tensors that they read; and whose values these hold now.
        self._inputs: dict[tuple[int, ...], tuple[Tensor, Stand]] = {}
        self._latest: tuple[Positions, Stand] | None = None
        self._held: Positions | None = None

    def __call__(self, layer: int, x: Tensor, positions: Positions, cache: KVCache) -> Tensor:
        """A whole block for all rows; see ``InferenceModel.block``."""
        stand, kv = self._stand(positions, cache), cache.lend(layer, positions)
        form = tuple(size for each in (x, kv, *stand.tensors()) for size in each.shape)
        if form not in self._forms:
            self._forms.add(form)
            self.made += 1
        if self._graphs is None:
            return self._step(self.blocks[layer], x, kv, stand)
        return self._replayed(layer, form, x, kv, positions, stand)

    def _stand(self, positions: Positions, cache: KVCache) -> Stand:
        """Where the tokens stand as tensors; once a step, for all layers."""
        if self._latest is None or self._latest[0] is not positions:
            slots = positions.slots
            if isinstance(slots, slice):
                slots = cache.slot_ids[slots]
            self._latest = positions, Stand(slots, positions.mask, positions.rope)
        return self._latest[1]

    def _replayed(
        self,
        layer: int,
        form: tuple[int, ...],
        x: Tensor,
        kv: Tensor,
        positions: Positions,
        stand: Stand,
    ) -> Tensor:
        assert self._graphs is not None
        if form not in self._inputs:
            own = [each.clone() for each in stand.tensors()]
            self._inputs[form] = x.clone(), _stand_of(own, stand)
        held_x, held_stand = self._inputs[form]
        if self._held is not positions:
            for ours, theirs in zip(held_stand.tensors(), stand.tensors(), strict=True):
                ours.copy_(theirs)
            self._held = positions
        held_x.copy_(x)
        # A graph is bound to the very memory of its cache.
        key = (layer, *form, kv.data_ptr())
        if key not in self._graphs:
            self._graphs[key] = Recorded(
                partial(self._step, self.blocks[layer]), held_x, kv, held_stand, self._pool
            )
            self.made += 1
            held_x.copy_(x)
        self._graphs[key].replay()
        # A copy: methods keep states over calls.
        return held_x.clone()


class Store:
    """Memory for keys and values that stays where it is from one decode to the next.

    Graphs read and write where they did when recorded. One decode at a time uses it.
    """

    def __init__(self, shape: Shape, options: Options) -> None:
        self.shape, self.options = shape, options
        self._layers: list[Tensor] = []

    def layers(self, rows: int, slots: int) -> list[Tensor]:
        """Layers of that many rows and at least so many slots; the same ones if they serve."""
        held = self._layers[0].shape if self._layers else (2, 0, 0, 0, 0)
        if held[1] != rows or held[3] < slots:
            shape, options = self.shape, self.options
            room = rounded(slots, options.key_bucket or 1)
            size = (2, rows, shape.num_kv_heads, room, shape.head_dim)
            # The old ones live on as long as a graph reads them.
            self._layers = [
                torch.empty(size, dtype=options.dtype, device=options.device)
                for _ in range(shape.num_layers)
            ]
        return self._layers


def _stand_of(tensors: list[Tensor], like: Stand) -> Stand:
    """``Stand.tensors`` reversed."""
    rest = list(tensors)
    slots = rest.pop(0)
    mask = None if like.mask is None else rest.pop(0)
    return Stand(slots, mask, (rest[0], rest[1]) if rest else None)
