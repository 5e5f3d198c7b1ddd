"""Costs: FLOPs, bytes and roofline times from counts and a shape; no tensors, so sums test them.

FLOPs: 2 per multiply-add; matrix products only (q, k, v and output projections, the MLP's matrices,
attention scores, weighted values, LM head, the embedding's projections, an exit check's product);
attention over the full rectangle of queries x keys without a discount for the causal mask. Norms,
biases, softmax, activations and look-ups are not counted.

Bytes: what cannot stay in a cache between steps: the matrices of every call, read once for all its
rows, keys and values read and written. Activations, norms, biases, masks and look-ups are not
counted. Not here: what was run (``methods/engine/ledger.py``), how fast a device is
(``gpus.py``).
"""

from dataclasses import dataclass
from typing import NamedTuple

from methods.engine.ledger import Sums, Traffic
from methods.engine.shape import Shape

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates of a device; None where they are not known."""

    flops_per_s: float | None = None
    bytes_per_s: float | None = None


def flops(sums: Sums, shape: Shape) -> int:
    """FLOPs of counted work."""
    weights = _weights(shape)
    multiply_adds = (
        sums.attention_positions * weights.attention
        # Scores and weighted values: one multiply-add per query dimension each.
        + sums.attended_pairs * 2 * shape.query_width
        + sums.mlp_positions * weights.mlp
        + sums.kv_positions * weights.kv
        + sums.head_positions * weights.head
        + sums.embed_positions * weights.embed
        + sums.check_positions * shape.width
    )
    return 2 * multiply_adds


def bytes_moved(traffic: Traffic, shape: Shape, dtype: str) -> int:
    """Bytes of counted traffic, weights and cache held in ``dtype``."""
    weights = _weights(shape)
    elements = (
        traffic.attention_calls * weights.attention
        + traffic.mlp_calls * weights.mlp
        + traffic.kv_calls * weights.kv
        + traffic.head_calls * weights.head
        + traffic.embed_calls * weights.embed
        # A key and a value each.
        + (traffic.keys_read + traffic.keys_written) * 2 * shape.kv_width
    )
    return elements * DTYPE_BYTES[dtype]


def roofline_s(flops: float | None, num_bytes: float | None, rates: Rates) -> float | None:
    """The least time that work takes: its products at full rate or its bytes, whichever is longer.

    Williams, Waterman and Patterson, "Roofline", CACM 2009. Many calls are taken as one, so this is
    a lower bound also where they differ in intensity. None unless all is known.
    """
    if flops is None or num_bytes is None:
        return None
    if rates.flops_per_s is None or rates.bytes_per_s is None:
        return None
    return max(flops / rates.flops_per_s, num_bytes / rates.bytes_per_s)


class _Weights(NamedTuple):
    """Elements of the matrices of each part; each is one multiply-add of a position."""

    attention: int
    mlp: int
    kv: int
    head: int
    embed: int


def _weights(shape: Shape) -> _Weights:
    width, queries, keys = shape.width, shape.query_width, shape.kv_width
    projection = shape.embed_width * width if shape.projects_embedding else 0
    return _Weights(
        # q, k, v: width -> queries + 2 keys; out: queries -> width.
        attention=width * (queries + 2 * keys) + queries * width,
        mlp=(3 if shape.gated_mlp else 2) * width * shape.ffn_width,
        kv=width * 2 * keys,
        head=shape.vocab_size * shape.embed_width + projection,
        embed=projection,
    )
