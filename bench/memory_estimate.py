"""What a run holds in memory, from shapes alone: pure functions, without torch.

Apart, so that a run that cannot fit is told before its weights are read. Activations, the tokenizer
and the libraries themselves are not counted: the estimate is a lower bound. Not here: how much
there is (``checking.py``).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.costs import DTYPE_BYTES
from methods.engine.shape import Shape


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes of a run by what they hold."""

    weights_bytes: int
    packed_copies_bytes: int
    cache_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it at once."""
        return self.weights_bytes + self.packed_copies_bytes + self.cache_bytes


def estimate(
    shapes: Iterable[Shape], *, dtype: str, packed: bool, rows: int, positions: int
) -> Estimate:
    """The memory of a run.

    Args:
        shapes: one for each model that is held; equal weights are held once.
        dtype: of weights and cache.
        packed: whether matrices are laid out anew for the CPU.
        rows: rows of a batch.
        positions: of the longest row, new tokens included.
    """
    held, size = list(shapes), DTYPE_BYTES[dtype]
    weights = sum(shape.num_parameters for shape in held)
    copies = sum(map(_copied_weights, held)) if packed else 0
    # Legs run one after another: one cache at a time.
    cache = max((_cache_values(shape) for shape in held), default=0) * rows * positions
    return Estimate(weights * size, copies * size, cache * size)


def _copied_weights(shape: Shape) -> int:
    """Weights that are held once more: packed for K/V alone, and plain as a tied embedding."""
    kv = shape.width * 2 * shape.kv_width
    head = shape.vocab_size * shape.embed_width if shape.tied_embeddings else 0
    return shape.num_layers * kv + head


def _cache_values(shape: Shape) -> int:
    """Keys and values of one position of one row."""
    return shape.num_layers * 2 * shape.kv_width
