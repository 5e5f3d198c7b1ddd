"""Lockstep: the positions of rows that advance together, one token a step.

Apart, because every method without a draft steps so. Not here: what a step computes; which rows are
held (``dropping.py``).
"""

import torch
from torch import Tensor

from methods.engine.cache import KVCache, Positions
from methods.engine.dropping import HeldRows, Kept
from methods.engine.inference import InferenceModel


class Lockstep(HeldRows):
    """Counts shared slots and each row's own position, from the end of the prompts."""

    def __init__(self, model: InferenceModel, cache: KVCache) -> None:
        super().__init__(cache)
        self.model = model
        self.slot = max(cache.lengths)
        self._ids = torch.tensor(cache.lengths, device=model.device)[:, None] - 1

    def advance(self, live: Tensor | Kept | None) -> Positions:
        """The next position of every row that is held.

        A finished row goes on in the shared slot with its position held at its last one, so that
        it never runs past its prompt and limit; nobody reads what it computes.

        Args:
            live: (B,) bool, or None if every row advances; or the rows that are kept: the others
                leave, and what the method carries by row goes through ``kept``.
        """
        self.hear(live)
        self._ids = self.kept(self._ids) + (1 if self.live is None else self.live[:, None])
        positions = self.model.at(self.cache, self._ids, self.slot)
        self.slot += 1
        return positions
