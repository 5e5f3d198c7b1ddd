"""Costs: FLOPs from counts and a shape. Pure functions, no tensors, so hand sums can test them.

Convention: 2 FLOPs per multiply-add; matrix products only (q, k, v and output projections, the
MLP's matrices, attention scores, weighted values, LM head and the embedding's projections);
attention over the full rectangle of queries x keys without a discount for the causal mask. Norms,
biases, softmax, activations and look-ups are not counted. Not here: what was run
(``methods/engine/ledger.py``).
"""

from methods.engine.ledger import Sums
from methods.engine.shape import Shape


def flops(sums: Sums, shape: Shape) -> int:
    """FLOPs of counted work: each sum times the multiply-adds of one of its units, times 2."""
    width, queries, keys = shape.width, shape.query_width, shape.kv_width
    matrices = 3 if shape.gated_mlp else 2
    projection = shape.embed_width * width if shape.projects_embedding else 0
    multiply_adds = (
        # q, k, v: width -> queries + 2 keys; out: queries -> width.
        sums.attention_positions * (width * (queries + 2 * keys) + queries * width)
        # Scores and weighted values: one multiply-add per query dimension each.
        + sums.attended_pairs * 2 * queries
        + sums.mlp_positions * matrices * width * shape.ffn_width
        + sums.kv_positions * width * 2 * keys
        + sums.head_positions * (shape.vocab_size * shape.embed_width + projection)
        + sums.embed_positions * projection
    )
    return 2 * multiply_adds
