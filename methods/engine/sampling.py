"""Choosers: logits to ids, the same for every method and the baseline.

Apart, so that no method has a way of its own to pick a token. A chooser also notes, without reading
back, whether each row's logits were finite. Not here: acceptance of drafted tokens.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Chooser(Protocol):
    """Chooses one token for each new position."""

    def choose(self, logits: Tensor, index: int) -> Tensor:
        """Ids (B, T) for logits (B, T, V); ``index`` counts the row's new tokens, 0-based."""
        ...

    def non_finite_rows(self) -> list[int]:
        """Rows that showed a NaN or infinite logit so far; reads back from the device."""
        ...


class Greedy:
    """The most likely token; the lowest id of equals."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []

    def choose(self, logits: Tensor, index: int) -> Tensor:
        """Argmax; the position does not matter."""
        # A NaN or an infinity anywhere in a row makes its sum non-finite.
        self._sums.append(logits.sum(dim=(1, 2), dtype=torch.float32))
        return logits.argmax(dim=-1)

    def non_finite_rows(self) -> list[int]:
        """See ``Chooser``."""
        if not self._sums:
            return []
        finite = torch.stack(self._sums).isfinite().all(dim=0)
        return [row for row, fine in enumerate(finite.tolist()) if not fine]


class Forced:
    """A given continuation: scores it through the very path that decoding takes.

    Attributes:
        log_probs: per choice, the given tokens' log-probabilities, (B, T).
        was_argmax: per choice, whether greedy decoding would have taken them, (B, T).
    """

    def __init__(self, continuation: Sequence[Sequence[int]]) -> None:
        self.continuation = torch.tensor(continuation)  # (B, N)
        self.log_probs: list[Tensor] = []
        self.was_argmax: list[Tensor] = []
        self._greedy = Greedy()

    def choose(self, logits: Tensor, index: int) -> Tensor:
        """The given ids; beyond their end, the last one again."""
        best = self._greedy.choose(logits, index)
        last = self.continuation.shape[1] - 1
        columns = [min(index + step, last) for step in range(logits.shape[1])]
        ids = self.continuation[:, columns].to(logits.device)
        scores = logits.float().log_softmax(dim=-1)
        self.log_probs.append(scores.gather(-1, ids[..., None])[..., 0])
        self.was_argmax.append(best == ids)
        return ids

    def non_finite_rows(self) -> list[int]:
        """See ``Chooser``."""
        return self._greedy.non_finite_rows()
