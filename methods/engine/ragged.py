"""Ragged: the positions of rows that advance by different numbers of tokens a round.

Apart, because every method that drafts and verifies steps so. The host knows where each row is: it
reads once a round how many tokens each row was given, and otherwise never waits for the device. Not
here: drafts, and what is accepted (``sampling.py``); which rows are held (``dropping.py``).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from methods.engine.cache import KVCache, Positions, upload
from methods.engine.dropping import HeldRows, Kept
from methods.engine.inference import InferenceModel


class Ragged(HeldRows):
    """Where each row stands behind its prompt.

    Args:
        model: whose positions these are.
        cache: filled with the prompts.
        limit: new tokens of each row, at most.

    Attributes:
        starts: per row, the position of its newest token, which no layer has seen.
        made: per row, its new tokens so far.
    """

    def __init__(self, model: InferenceModel, cache: KVCache, limit: int) -> None:
        super().__init__(cache)
        self.model, self.limit = model, limit
        # The prompt's last token, until ``advance`` is told of the first new one.
        self.starts = [length - 1 for length in cache.lengths]
        self.made = [0] * len(cache.lengths)
        self._live = [True] * len(cache.lengths)
        self._start_ids = upload(self.starts, model.device)

    def room(self, wanted: int) -> list[int]:
        """How many tokens each row may draft: at most ``wanted``, one place kept for the target's.

        A finished row drafts none; it stays where it is, and nobody reads what it computes.
        """
        left = [self.limit - made - 1 for made in self.made]
        return [
            max(0, min(wanted, each)) if live else 0
            for each, live in zip(left, self._live, strict=True)
        ]

    def index(self) -> int | Tensor:
        """Number of each row's next new token: one for all, or (B,)."""
        if len(set(self.made)) == 1:
            return self.made[0]
        return upload(self.made, self.model.device)

    def at(self, first: int, new: int, drafted: Sequence[int]) -> Positions:
        """Positions of tokens ``first`` to ``first + new - 1`` of a round.

        Args:
            first: 0 is each row's newest token, then come its drafts.
            new: how many.
            drafted: per row, its drafts in this round; further places are padding.
        """
        slots = {o + s for o, s in zip(self.cache.offsets, self.starts, strict=True)}
        step = torch.arange(first, first + new, device=self.model.device)
        ids = self._start_ids[:, None] + step
        whole = min(drafted) >= first + new - 1
        if len(slots) == 1 and whole:
            return self.model.at(self.cache, ids, slots.pop() + first)
        last = [start + count for start, count in zip(self.starts, drafted, strict=True)]
        ends = [
            min(start + first + new, end + 1) for start, end in zip(self.starts, last, strict=True)
        ]
        if whole:
            return self.model.at_unequal(self.cache, ids, ends)
        own = [max(0, min(new, count + 1 - first)) for count in drafted]
        # A padding place repeats the row's last position: its own table of positions may end there.
        ids = ids.minimum(upload(last, self.model.device)[:, None])
        return self.model.at_unequal(self.cache, ids, ends, own)

    def advance(
        self, given: Tensor, live: Tensor | Kept | None, ids: Tensor | None = None
    ) -> list[list[int]]:
        """Moves each live row on by the tokens that it was given; the host's one read a round.

        Args:
            given: how many, (B,): 1 behind the prompt pass, then accepted drafts and one.
            live: (B,) bool, or None if every row is; or the rows that are kept: the others leave,
                and what else the method carries by row goes through ``kept``.
            ids: the tokens, (B, n), of each row the first ``given``; None if nobody asks.

        Returns:
            The tokens of each held row that it was moved on by: none for a finished row, nor
            without ``ids``.
        """
        self.hear(live)
        self.starts, self.made = self.kept(self.starts), self.kept(self.made)
        self._live = self.kept(self._live)
        known = self.kept(given)[:, None]
        known = known if self.live is None else known * self.live[:, None]
        columns = known if ids is None else torch.cat((known, self.kept(ids)), dim=1)
        tokens = []
        for row, (count, *new) in enumerate(columns.tolist()):
            # Every live row was given one at least. At its limit it is finished, told so or not.
            goes_on = count > 0 and self._live[row]
            moved = count if goes_on else 0
            self.starts[row] += moved
            self.made[row] += moved
            self._live[row] = goes_on and self.made[row] < self.limit
            tokens.append(new[:moved])
        self._start_ids = upload(self.starts, self.model.device)
        return tokens


def drafting(positions: Positions, place: int, drafted: Sequence[int]) -> Positions:
    """The same positions for the draft's head: charged to rows that draft a token more, no others.

    A row's last draft runs the draft's layers too, for its keys and values, but no head.

    Args:
        positions: of one token, ``place`` of the round.
        place: 0 is each row's newest token.
        drafted: per row, its drafts in this round.
    """
    if min(drafted) > place:
        return positions
    own = tuple(int(count > place) for count in drafted)
    return replace(positions, extent=positions.extent._replace(own_new=own))


def layers_run(ids: Tensor, accepted: Tensor, drafted: Tensor, num_layers: int) -> Tensor:
    """Layers run for each new token of a round in which every drafted token ran all of them.

    Rejected drafts are charged to the token behind the accepted ones.

    Args:
        ids: of the round, (B, n).
        accepted: drafts that each row keeps, (B,).
        drafted: those that it had, (B,).
        num_layers: of the model.

    Returns:
        (B, n).
    """
    rejected = (drafted - accepted)[:, None] * num_layers
    return torch.full_like(ids, num_layers).scatter_add(1, accepted[:, None], rejected)
