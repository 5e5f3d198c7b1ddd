"""InferenceModel: the primitives that decoding methods are written with.

Every call is charged to the ledger. The options apply to the baseline and to methods alike. Apart
from ``transformer.py``, which training sees. Not here: how weights are held (``bound.py``), which
layers run for which token (``methods/<name>/method.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as functional
from torch import Tensor

from methods.engine.bound import Options, bind
from methods.engine.cache import KVCache, Positions, Prompts
from methods.engine.checked_cache import CheckedKVCache
from methods.engine.compiled import Steps, Store
from methods.engine.layer import (
    Operation,
    attention,
    attention_by_products,
    attention_sublayer,
    merge_heads,
    mlp_sublayer,
    query_key_value,
    rope_angles,
    rope_frequencies,
)
from methods.engine.ledger import Extent, Ledger
from methods.engine.transformer import Transformer


class InferenceModel:
    """A transformer in inference form, with its ledger.

    Args:
        transformer: its weights are bound, see ``bound.bind``.
        options: how weights are held.
        consume: let go of the transformer's own as they are bound.
    """

    def __init__(
        self, transformer: Transformer, options: Options, *, consume: bool = False
    ) -> None:
        self.shape = shape = transformer.shape
        self.options = options
        self.device = torch.device(options.device)
        self.ledger = Ledger()
        self._bound = bind(transformer, options, consume=consume)
        self.blocks = self._bound.blocks
        self._attention = (
            attention_by_products if options.attention == "products" else partial(attention, shape)
        )
        self._store = Store(shape, options)
        self._steps: Steps | None = None
        if options.compiled or options.cuda_graphs:
            self._steps = Steps(
                self.blocks,
                shape,
                self._attention,
                compiled=options.compiled,
                graphs=options.cuda_graphs,
            )
        if shape.positions == "rotary":
            self._frequencies = rope_frequencies(shape).to(self.device)

    @property
    def forms_made(self) -> int:
        """How often something was compiled or recorded; a pass in which it was tells no time."""
        return 0 if self._steps is None else self._steps.made

    def new_cache(self, prompts: Prompts, new_tokens: int) -> KVCache:
        """An empty cache for the prompts and ``new_tokens`` more positions of each row.

        Raises:
            ValueError: if a row could run past the model's positions.
        """
        longest, limit = max(prompts.lengths), self.shape.max_positions
        if longest + new_tokens > limit:
            raise ValueError(
                f"prompt of {longest} + {new_tokens} new tokens exceeds the {limit} positions"
            )
        options = self.options
        kind = CheckedKVCache if options.checked_cache else KVCache
        layers = None
        if options.cuda_graphs:
            layers = self._store.layers(len(prompts.lengths), longest + new_tokens + 1)
        return kind(self.shape, prompts, new_tokens, options.dtype, options.key_bucket, layers)

    def at(self, cache: KVCache, ids: Tensor, slot: int) -> Positions:
        """Positions of rows that advance together; ``ids`` (B, T), the first at ``slot``."""
        slots, visible, mask, extent = cache.together(ids, slot)
        return Positions(ids, slots, visible, mask, self._rope(ids), extent)

    def at_unequal(
        self,
        cache: KVCache,
        ids: Tensor,
        lengths: Sequence[int],
        own: Sequence[int] | None = None,
    ) -> Positions:
        """Positions of rows that advance unequally; see ``KVCache.unequally``."""
        slots, visible, mask, extent = cache.unequally(ids, lengths, own)
        return Positions(ids, slots, visible, mask, self._rope(ids), extent)

    def _rope(self, ids: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cos and sin at ``ids`` (B, T), each (B, 1, T, head_dim); once a step, for all layers."""
        if self.shape.positions == "learned":
            return None
        cos, sin = rope_angles(self._frequencies, ids)
        return cos[:, None].to(self.options.dtype), sin[:, None].to(self.options.dtype)

    def prefill(self, prompts: Prompts, cache: KVCache, layers: int | None = None) -> Tensor:
        """Computes the prompts, causal and unmasked, and fills the cache.

        Args:
            prompts: right-padded rows.
            cache: written at ``offset[row] + position``, so that all rows end at one slot.
            layers: run the first ``layers`` only; None for all.

        Returns:
            The residual stream at each row's last prompt token, (B, 1, D).
        """
        extent = cache.prompt_extent
        ids = torch.arange(prompts.ids.shape[1], device=self.device)[None]
        rope = self._rope(ids)
        self.ledger.charge("embed", -1, extent)
        x = self._embed(prompts.ids, ids)
        for layer in range(self.shape.num_layers if layers is None else layers):

            def attend(qkv: Tensor, layer: int = layer) -> Tensor:
                q, kv = query_key_value(self.shape, qkv, rope)
                cache.write_prompt(layer, kv)
                return merge_heads(attention(self.shape, q, kv, None, causal=True))

            self.ledger.charge("block", layer, extent)
            weights = self.blocks[layer]
            x = mlp_sublayer(
                weights, self.shape, attention_sublayer(weights, self.shape, x, attend)
            )
        if not cache.ragged:
            return x[:, -1:]
        last = torch.tensor(prompts.lengths, device=self.device) - 1
        return x[torch.arange(len(prompts.lengths), device=self.device), last][:, None]

    def embed(self, ids: Tensor, positions: Positions) -> Tensor:
        """Token and position embedding of new tokens; (B, T) to (B, T, D)."""
        self.ledger.charge("embed", -1, positions.extent)
        return self._embed(ids, positions.ids)

    def _embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        bound = self._bound
        x = functional.embedding(ids, bound.embedding)
        if bound.project_in is not None:
            x = bound.project_in(x)
        if bound.position_embedding is not None:
            x = x + functional.embedding(positions, bound.position_embedding)
        return x

    def block(
        self,
        layer: int,
        x: Tensor,
        positions: Positions,
        cache: KVCache,
        attention: bool = True,
        mlp: bool = True,
    ) -> Tensor:
        """One layer for new tokens, (B, T, D) to (B, T, D); writes their keys and values.

        Args:
            layer: 0-based index.
            x: residual stream.
            positions: where the tokens stand.
            cache: a query sees its row's slots up to its own.
            attention: run the attention branch.
            mlp: run the MLP branch.
        """
        weights = self.blocks[layer]
        part = "block" if attention and mlp else "attention" if attention else "mlp"
        self.ledger.charge(part, layer, positions.extent)  # type: ignore[arg-type]  # a literal
        if self._steps is not None and part == "block" and positions.rows is None:
            return self._steps(layer, x, positions, cache)
        if attention:
            x = attention_sublayer(weights, self.shape, x, self._attend(layer, positions, cache))
        return mlp_sublayer(weights, self.shape, x) if mlp else x

    def _attend(self, layer: int, positions: Positions, cache: KVCache) -> Operation:
        def attend(qkv: Tensor) -> Tensor:
            q, kv = query_key_value(self.shape, qkv, positions.rope)
            cache.write(layer, kv, positions)
            seen = cache.read(layer, positions)
            return merge_heads(self._attention(q, seen, positions.mask))

        return attend

    def write_kv(self, layer: int, x: Tensor, positions: Positions, cache: KVCache) -> None:
        """Writes a layer's keys and values from the residual stream, and nothing else.

        The layer's own norm and projections are used (state copying of early-exit methods).
        """
        self.ledger.charge("kv", layer, positions.extent)
        weights = self.blocks[layer]
        if self.shape.norm_placement == "pre":
            x = weights.attention_norm(x)
        _, kv = query_key_value(self.shape, weights.kv(x), positions.rope)
        cache.write(layer, kv, positions)

    def check(self, confidence: Callable[[], Tensor], positions: Positions) -> Tensor:
        """An exit check that needs no head, charged as one; what ``confidence`` gives."""
        self.ledger.charge("check", -1, positions.extent)
        return confidence()

    @contextmanager
    def uncharged(self) -> Iterator[None]:
        """Calls within are not charged: for methods that say they cannot be real."""
        charged, self.ledger = self.ledger, Ledger()
        try:
            yield
        finally:
            self.ledger = charged

    def head(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        """The one exit head of every layer; (B, T, D) to logits (B, T, V).

        Args:
            x: residual stream after any layer.
            positions: of the tokens; None for the prompts' last ones.
        """
        rows, new, _ = x.shape
        extent = positions.extent if positions else Extent(rows, new, 0, None, (0,) * rows)
        self.ledger.charge("head", -1, extent)
        bound = self._bound
        if bound.final_norm is not None:
            x = bound.final_norm(x)
        if bound.project_out is not None:
            x = bound.project_out(x)
        return bound.lm_head(x)
