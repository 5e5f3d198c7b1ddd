"""Drawing: logits to probabilities by one warp, counter-based numbers, and ids from the two.

Apart, because draft, target and plain sampling must share all three, or the law of what is emitted
is another. A row draws the same numbers in any batch, whatever happened before. Not here: who draws
what and when (``sampling.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# What a random number is for; each position of a row has one of each.
DRAFT, ACCEPT, RESIDUAL, BONUS = KINDS = range(4)


@dataclass(frozen=True, slots=True)
class Warp:
    """Logits to the probabilities that are sampled from: temperature, then top-k, then top-p.

    Top-k keeps the k most likely tokens. Top-p keeps the fewest most likely of these that hold at
    least ``top_p`` of their mass; the most likely one always stays. Of equals the lower id counts
    as the more likely.

    Attributes:
        temperature: above 0, finite; greedy decoding is another chooser.
        top_k: 0 or None for all.
        top_p: 0 < top_p <= 1; 1 for all.

    Raises:
        ValueError: for a value out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite, got {self.temperature}")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, or None, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def __call__(self, logits: Tensor) -> Tensor:
        """Probabilities, float32, of logits (..., V); exactly 0 for what is left out."""
        logits = logits.float()
        # From the largest down, so that a temperature near 0 overflows to -inf, never to NaN.
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature
        size = min(self.top_k or logits.shape[-1], logits.shape[-1])
        if size < logits.shape[-1]:
            logits = logits.masked_fill(~_top(logits, size), -math.inf)
        probabilities = logits.softmax(dim=-1)
        if self.top_p == 1:
            return probabilities
        ranks = _ranked(logits, size)
        ordered = probabilities.gather(-1, ranks)
        before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
        ordered = ordered.masked_fill(before >= self.top_p, 0)
        ordered = ordered / ordered.sum(dim=-1, keepdim=True)
        return torch.zeros_like(probabilities).scatter(-1, ranks, ordered)


def uniforms(seed: int, examples: Sequence[int], positions: int) -> Tensor:
    """Uniform numbers in [0, 1), float64, (B, positions, kinds), on the host.

    A row is the start of the Philox stream with key (seed, example), read position by position and
    kind by kind: so a number depends on its seed, example, position and kind alone.

    Raises:
        ValueError: for a seed or example that is no unsigned 64-bit number.
    """
    for name, value in (("seed", seed), *(("example", each) for each in examples)):
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} must be at least 0 and below 2**64, got {value}")
    # The raw stream is what numpy promises never to change.
    raw = np.empty((len(examples), positions * len(KINDS)), dtype=np.uint64)
    for row, example in enumerate(examples):
        key = np.array([seed, example], dtype=np.uint64)
        raw[row] = np.random.Philox(key=key).random_raw(positions * len(KINDS))
    numbers = (raw >> np.uint64(11)) * 2.0**-53
    return torch.from_numpy(numbers).view(len(examples), positions, len(KINDS))


def draw(law: Tensor, numbers: Tensor) -> Tensor:
    """Tokens by inverse CDF, (B, T); one of probability 0 is never drawn.

    Args:
        law: (B, T, V), at least 0, need not be normalised. For a law that is no law (NaN, or 0
            throughout) the last id is given: an id that can be embedded until the run is refused.
        numbers: in [0, 1), float64, (B, T).
    """
    weights = law.double()
    weights = weights * (2.0**52 / weights.sum(dim=-1, keepdim=True))
    # Whole numbers: their sums are exact in any order, so on a GPU too they never fall nor creep.
    cumulative = weights.nan_to_num(0).long().cumsum(dim=-1)  # (B, T, V)
    threshold = (numbers * cumulative[..., -1]).long()[..., None]
    ids = torch.searchsorted(cumulative, threshold, right=True)[..., 0]
    return ids.clamp(max=law.shape[-1] - 1)


def _top(logits: Tensor, size: int) -> Tensor:
    """Which ``size`` tokens are the most likely, (..., V) bool."""
    edge = logits.topk(size).values[..., -1:]
    above, equal = logits > edge, logits == edge
    room = size - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= room))


def _ranked(logits: Tensor, size: int) -> Tensor:
    """Tokens from the most likely down, (..., size); no more than these are finite."""
    if size == logits.shape[-1]:
        return logits.sort(dim=-1, descending=True, stable=True).indices
    # Sorting these few is far cheaper than all; by id first, since topk orders equals anyhow.
    ids = logits.topk(size).indices.sort(dim=-1).values
    ranks = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(-1, ranks)
