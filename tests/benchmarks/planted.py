"""Planted acceptance: a greedy chooser whose drafts are accepted at a given rate.

Apart, because it is for benchmarks alone: what is computed is what greedy verification computes,
only its outcome is planted, so a method's speed can be seen at any acceptance with any weights. The
text that comes out means nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.engine.dropping import select
from methods.engine.sampling import Draft, Greedy, Verified
from methods.engine.verify import emitted


class Planted(Greedy):
    """Accepts ``floor(u + rate * n)`` of each row's first n drafts, u drawn once for each row.

    So the share comes out right in few rounds already, which independent draws would not give.

    Args:
        rate: accepted drafts / drafts, 0..1.
        seed: of u.
    """

    def __init__(self, rate: float, seed: int = 0) -> None:
        super().__init__()
        self.rate, self.seed = rate, seed
        # Per row: u + rate * n so far.
        self._due: Tensor | None = None

    def verify(
        self, drafted: Sequence[Draft], logits: Tensor, counts: Tensor | None, index: int | Tensor
    ) -> Verified:
        """Greedy verification, whose count of accepted drafts is then replaced."""
        found = super().verify(drafted, logits, counts, index)
        if not drafted:
            return found
        ids = torch.cat([draft.ids for draft in drafted], dim=1)
        if self._due is None:
            self._due = self._start(len(ids)).to(ids.device, non_blocking=True)
        before = self._due.floor()
        self._due = self._due + self.rate * (ids.shape[1] if counts is None else counts)
        accepted = (self._due.floor() - before).long()
        last = found.ids.gather(1, accepted[:, None])[:, 0]
        return Verified(accepted, emitted(ids, accepted, last))

    def keep(self, rows: Sequence[int]) -> None:
        """Each row that stays goes on with its own count."""
        if self._due is not None:
            self._due = select(self._due, rows)
        super().keep(rows)

    def _start(self, rows: int) -> Tensor:
        """In float64: a sum of thirds must not drift below the whole numbers that it meets."""
        draw = torch.Generator().manual_seed(self.seed)
        return torch.rand(rows, generator=draw, dtype=torch.float64).clamp(0.001, 0.999)
