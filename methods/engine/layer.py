"""The mathematics of one layer, the same for training and inference.

Apart, so that the two ways to hold weights (modules with gradients; fused, packed, cast inference
weights) share one text. Not here: where keys and values come from; the caller passes ``attend``.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as functional
from torch import Tensor

from methods.engine.shape import Shape

Operation = Callable[[Tensor], Tensor]


class LayerWeights(Protocol):
    """The weights of one layer, as operations."""

    @property
    def attention_norm(self) -> Operation:
        """Norm of the attention branch: its input (pre) or the sum after it (post)."""
        ...

    @property
    def qkv(self) -> Operation:
        """Fused projection: all query heads, then all key heads, then all value heads."""
        ...

    @property
    def out(self) -> Operation:
        """Output projection of the attention."""
        ...

    @property
    def mlp_norm(self) -> Operation:
        """Norm of the MLP branch, placed as ``attention_norm``."""
        ...

    @property
    def up(self) -> Operation:
        """First matrix of the MLP; in a gated one the gate comes first, then the up half."""
        ...

    @property
    def down(self) -> Operation:
        """Last matrix of the MLP."""
        ...


def attention_sublayer(weights: LayerWeights, shape: Shape, x: Tensor, attend: Operation) -> Tensor:
    """The attention branch with its residual; ``attend`` maps (B, T, q+k+v) to (B, T, q)."""
    if shape.norm_placement == "pre":
        return x + weights.out(attend(weights.qkv(weights.attention_norm(x))))
    return weights.attention_norm(x + weights.out(attend(weights.qkv(x))))


def mlp_sublayer(weights: LayerWeights, shape: Shape, x: Tensor) -> Tensor:
    """The MLP branch with its residual; (B, T, D) to (B, T, D)."""
    if shape.norm_placement == "pre":
        return x + weights.down(activate(shape, weights.up(weights.mlp_norm(x))))
    return weights.mlp_norm(x + weights.down(activate(shape, weights.up(x))))


def activate(shape: Shape, hidden: Tensor) -> Tensor:
    """The non-linearity between the MLP's matrices; (B, T, F or 2F) to (B, T, F)."""
    if shape.gated_mlp:
        gate, up = hidden.chunk(2, dim=-1)
        return functional.silu(gate) * up
    return functional.relu(hidden)


def split_heads(shape: Shape, qkv: Tensor) -> Tensor:
    """(B, T, (H + 2 kv) * head_dim) to a view (B, H + 2 kv, T, head_dim)."""
    rows, new, _ = qkv.shape
    return qkv.view(rows, new, -1, shape.head_dim).transpose(1, 2)


def query_key_value(
    shape: Shape, qkv: Tensor, rope: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The fused projection as queries and as keys and values, rotated where positions are rotary.

    Args:
        shape: the model's shape.
        qkv: (B, T, (H + 2 kv) * head_dim); without the query heads where only K/V are wanted.
        rope: cos and sin, broadcastable to (B, 1, T, head_dim).

    Returns:
        Queries (B, H, T, head_dim), with no head where ``qkv`` has none; keys and values
        (2, B, kv, T, head_dim).
    """
    heads, num_kv = split_heads(shape, qkv), shape.num_kv_heads
    num_queries = heads.shape[1] - 2 * num_kv
    if rope is None:
        rows, _, new, head_dim = heads.shape
        kv = heads[:, num_queries:].view(rows, 2, num_kv, new, head_dim)
        return heads[:, :num_queries], kv.transpose(0, 1)
    rotated = rotate(heads[:, :-num_kv], *rope)
    return rotated[:, :num_queries], torch.stack((rotated[:, num_queries:], heads[:, -num_kv:]))


def merge_heads(heads: Tensor) -> Tensor:
    """(B, H, T, head_dim) to (B, T, H * head_dim)."""
    rows, _, new, _ = heads.shape
    return heads.transpose(1, 2).reshape(rows, new, -1)


def attention(
    shape: Shape,
    q: Tensor,
    kv: Tensor,
    mask: Tensor | None,
    *,
    causal: bool = False,
) -> Tensor:
    """Scaled dot-product attention.

    Args:
        shape: the model's shape.
        q: queries, (B, H, T, head_dim).
        kv: keys and values, (2, B, kv, S, head_dim).
        mask: added to the scores, broadcastable to (B, 1, T, S); None to see all.
        causal: query t sees keys 0..t only (T = S, no mask).

    Returns:
        (B, H, T, head_dim).
    """
    return functional.scaled_dot_product_attention(
        q, kv[0], kv[1], mask, is_causal=causal, enable_gqa=shape.num_kv_heads != shape.num_heads
    )


def attention_by_products(q: Tensor, kv: Tensor, mask: Tensor | None) -> Tensor:
    """``attention`` as two batched products over all rows and key heads, for few queries.

    Each product reads keys or values once, where they lie, for all queries of their group.

    Args:
        q: queries, (B, H, T, head_dim).
        kv: keys and values, (2, B, kv, S, head_dim).
        mask: as in ``attention``.
    """
    rows, heads, new, head_dim = q.shape
    keys, values = kv[0].flatten(0, 1), kv[1].flatten(0, 1)
    grouped = (q * head_dim**-0.5).reshape(len(keys), -1, head_dim)
    scores = torch.bmm(keys, grouped.transpose(1, 2)).transpose(1, 2)
    if mask is not None:
        scores = scores.reshape(rows, heads, new, -1) + mask
        scores = scores.view(len(keys), -1, keys.shape[1])
    return torch.bmm(scores.softmax(dim=-1), values).view(rows, heads, new, head_dim)


def rope_frequencies(shape: Shape) -> Tensor:
    """Rotary frequencies, (head_dim / 2,), with the ``llama3`` scaling where the shape has it."""
    if shape.rope_theta is None:
        raise ValueError(f"family {shape.family} has no rotary positions")
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    omega = 1.0 / (shape.rope_theta**exponents)
    scaling = shape.rope_scaling
    if scaling is None:
        return omega
    length = scaling.original_max_positions
    wavelength = 2 * math.pi / omega
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # Long wavelengths are stretched by the factor, short ones stay, those between are blended.
    blend = ((length / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * omega / scaling.factor + blend * omega


def rope_angles(frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and sin of positions (...), each (..., head_dim), in float32."""
    angles = positions[..., None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: dimension j is paired with j + head_dim / 2.

    Args:
        heads: (B, heads, T, head_dim).
        cos: broadcastable to ``heads``, in its dtype.
        sin: likewise.
    """
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
