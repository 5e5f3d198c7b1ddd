"""Choosers: logits to ids, drafts and their acceptance, the same for every method and the baseline.

Apart, so that no method has a way of its own to pick, draft or accept a token: it never knows
whether the chooser is greedy or samples. A chooser also notes whether each row's logits were finite
(``finite.py``). Not here: the acceptance rules (``verify.py``); warp and random numbers
(``drawing.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from methods.engine.cache import index_of
from methods.engine.drawing import ACCEPT, BONUS, DRAFT, RESIDUAL, Warp, draw, uniforms
from methods.engine.dropping import select
from methods.engine.finite import FiniteRows
from methods.engine.verify import emitted, greedy_prefix, rejection


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens of one step, or of several at once.

    Attributes:
        ids: (B, K).
        probabilities: the warped law that each was drawn from, (B, K, V); None if nothing was
            drawn (greedy, or ids from a look-up): then all of the law is on the drafted id.
    """

    ids: Tensor
    probabilities: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """What verification keeps.

    Attributes:
        accepted: drafts accepted per row, (B,), at most what the row drafted.
        ids: (B, K + 1); the first ``accepted + 1`` of a row are its accepted drafts and the
            correction or bonus token; the rest is padding with valid ids.
    """

    accepted: Tensor
    ids: Tensor


class Chooser(Protocol):
    """Chooses one token for each new position; drafts, and accepts what was drafted.

    ``index`` is the number of a row's first new token among those asked for, counted from 0 at the
    prompt's token: one for all rows, or (B,).
    """

    def choose(self, logits: Tensor, index: int | Tensor) -> Tensor:
        """Ids (B, T) for logits (B, T, V)."""
        ...

    def draft(self, logits: Tensor, index: int | Tensor) -> Draft:
        """Proposes a token for each new position from the draft's logits, (B, T, V)."""
        ...

    def verify(
        self, drafted: Sequence[Draft], logits: Tensor, counts: Tensor | None, index: int | Tensor
    ) -> Verified:
        """Accepts a prefix of the drafts and adds one token.

        Args:
            drafted: the drafts in their order, K tokens in all; none is a plain step.
            logits: the target's, at the K drafted tokens and at the one behind, (B, K + 1, V).
            counts: how many of the K each row drafted, (B,), 0 allowed; None if all. Further drafts
                of the row are not looked at.
            index: number of the first drafted token.

        Raises:
            ValueError: if there is not one more position of logits than drafted tokens.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """What comes is of these of the rows alone, ascending; the others have left the batch."""
        ...

    def non_finite_rows(self) -> list[int]:
        """Rows that showed a NaN or infinite logit so far; reads back from the device."""
        ...


class Greedy(FiniteRows):
    """The most likely token; the lowest id of equals. A draft is accepted where it is that token.

    So a drafting method gives the ids of plain greedy decoding.
    """

    def choose(self, logits: Tensor, index: int | Tensor) -> Tensor:
        """Argmax; the position does not matter."""
        self.note(logits)
        return logits.argmax(dim=-1)

    def draft(self, logits: Tensor, index: int | Tensor) -> Draft:
        """Argmax of the draft's logits."""
        return Draft(self.choose(logits, index))

    def verify(
        self, drafted: Sequence[Draft], logits: Tensor, counts: Tensor | None, index: int | Tensor
    ) -> Verified:
        """The longest prefix that is the target's argmax, and the argmax behind it."""
        ids = _drafted_ids(drafted, logits)
        # Accepted drafts are the target's own ids, so these hold them and the token behind.
        best = self.choose(logits, index)
        return Verified(greedy_prefix(ids, best, counts), best)


class Sampled(FiniteRows):
    """Draws from the warped law; drafts are accepted by exact rejection sampling.

    So a drafting method emits tokens of the law of plain sampling; it does not draw the very tokens
    of a plain run, since its numbers are of other kinds.

    Args:
        seed: 0 <= seed < 2**64.
        examples: number of each row's example in its task, 0 <= number < 2**64.
        warp: the one warp for draft and target.
        positions: how many new tokens of a row get numbers; the token limit is enough. Numbers are
            made here, on the host and in one copy. Further ones are made when an ``index`` that is
            an int asks for them (which makes the device wait); a row that an ``index`` tensor puts
            beyond draws its last position's numbers again, so it must be past its limit by then.
        device: of the logits.

    Raises:
        ValueError: for a value out of its range.
    """

    def __init__(
        self,
        seed: int,
        examples: Sequence[int],
        warp: Warp,
        positions: int,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if positions < 1:
            raise ValueError(f"positions must be at least 1, got {positions}")
        self.seed, self.examples, self.warp, self.device = seed, tuple(examples), warp, device
        self._numbers = uniforms(seed, self.examples, positions).to(device)  # (B, N, kinds)

    def choose(self, logits: Tensor, index: int | Tensor) -> Tensor:
        """Draws one token for each position."""
        self.note(logits)
        return draw(self.warp(logits), self._at(BONUS, index, logits.shape[1]))

    def draft(self, logits: Tensor, index: int | Tensor) -> Draft:
        """Draws from the draft's law and keeps that law for the acceptance test."""
        self.note(logits)
        law = self.warp(logits)
        return Draft(draw(law, self._at(DRAFT, index, logits.shape[1])), law)

    def verify(
        self, drafted: Sequence[Draft], logits: Tensor, counts: Tensor | None, index: int | Tensor
    ) -> Verified:
        """See ``Chooser`` and ``rejection``."""
        self.note(logits)
        ids = _drafted_ids(drafted, logits)
        target = self.warp(logits)  # (B, K + 1, V)
        laws = torch.cat([target[:, :0], *[_law(draft, target) for draft in drafted]], dim=1)
        num_drafts = ids.shape[1]
        numbers = self._at(ACCEPT, index, num_drafts)
        accepted, law = rejection(ids, laws, target, numbers, counts)
        whole = accepted == (num_drafts if counts is None else counts)
        behind = index + accepted
        number = torch.where(
            whole[:, None], self._at(BONUS, behind, 1), self._at(RESIDUAL, behind, 1)
        )
        last = draw(law[:, None], number)[:, 0]
        return Verified(accepted, emitted(ids, accepted, last))

    def keep(self, rows: Sequence[int]) -> None:
        """Each row that stays goes on with its own numbers."""
        self.examples = tuple(select(self.examples, rows))
        self._numbers = select(self._numbers, rows)
        super().keep(rows)

    def _at(self, kind: int, index: int | Tensor, new: int) -> Tensor:
        """Numbers of one kind for ``new`` tokens of each row, (B, T)."""
        made = self._numbers.shape[1]
        if not isinstance(index, Tensor) and index + new > made:
            made = max(2 * made, index + new)
            self._numbers = uniforms(self.seed, self.examples, made).to(self.device)
        columns = _columns(index, new, made, self._numbers.device)
        return self._numbers[..., kind].gather(1, columns.expand(len(self.examples), -1))


class Forced(FiniteRows):
    """A given continuation: scores it through the very path that decoding takes.

    It drafts the continuation itself, so that all of it is accepted. Where verification keeps less
    (another's drafts, unequal counts), and for rows that have left, the padding is NaN and False.

    Attributes:
        log_probs: per choice, the given tokens' log-probabilities, (B, T).
        was_argmax: per choice, whether greedy decoding would have taken them, (B, T).
    """

    def __init__(self, continuation: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.continuation = torch.tensor(continuation)  # (B, N)
        self.log_probs: list[Tensor] = []
        self.was_argmax: list[Tensor] = []
        self._rows = len(continuation)

    def choose(self, logits: Tensor, index: int | Tensor) -> Tensor:
        """The given ids; beyond their end, the last one again."""
        ids = self._given(logits, index)
        self._score(logits, ids, torch.ones_like(ids, dtype=torch.bool))
        return ids

    def draft(self, logits: Tensor, index: int | Tensor) -> Draft:
        """The given ids; drafts are not scored."""
        self.note(logits)
        return Draft(self._given(logits, index))

    def verify(
        self, drafted: Sequence[Draft], logits: Tensor, counts: Tensor | None, index: int | Tensor
    ) -> Verified:
        """The given ids, as many as the drafts foresaw and one more."""
        ids = self._given(logits, index)
        accepted = greedy_prefix(_drafted_ids(drafted, logits), ids, counts)
        kept = torch.arange(ids.shape[1], device=ids.device) <= accepted[:, None]
        self._score(logits, ids, kept)
        return Verified(accepted, ids)

    def keep(self, rows: Sequence[int]) -> None:
        """Each row that stays goes on with its own continuation."""
        self.continuation = select(self.continuation, rows)
        super().keep(rows)

    def _score(self, logits: Tensor, ids: Tensor, kept: Tensor) -> None:
        """Notes the scores of ``ids``, (B, T), where ``kept``."""
        self.note(logits)
        scores = logits.float().log_softmax(dim=-1).gather(-1, ids[..., None])[..., 0]
        best = logits.argmax(dim=-1) == ids
        self.log_probs.append(self._whole(scores.masked_fill(~kept, math.nan), math.nan))
        self.was_argmax.append(self._whole(best & kept, False))

    def _whole(self, values: Tensor, padding: float | bool) -> Tensor:
        """Values of the held rows among all rows of the batch."""
        if self.held is None:
            return values
        whole = values.new_full((self._rows, values.shape[1]), padding)
        whole[index_of(self.held, values.device)] = values
        return whole

    def _given(self, logits: Tensor, index: int | Tensor) -> Tensor:
        self.continuation = self.continuation.to(logits.device)
        columns = _columns(index, logits.shape[1], self.continuation.shape[1], logits.device)
        return self.continuation.gather(1, columns.expand(len(logits), -1))


def _columns(index: int | Tensor, new: int, size: int, device: torch.device) -> Tensor:
    """Columns of tokens index .. index + new - 1, (T,) or (B, T), the last one for any beyond."""
    first = index[:, None] if isinstance(index, Tensor) else index
    return (first + torch.arange(new, device=device)).clamp(max=size - 1)


def _drafted_ids(drafted: Sequence[Draft], logits: Tensor) -> Tensor:
    """All drafted ids in their order, (B, K)."""
    none = torch.empty((len(logits), 0), dtype=torch.long, device=logits.device)
    ids = torch.cat([none, *[draft.ids for draft in drafted]], dim=1)
    if logits.shape[1] != ids.shape[1] + 1:
        raise ValueError(f"{ids.shape[1]} drafted tokens, but {logits.shape[1]} target positions")
    return ids


def _law(draft: Draft, target: Tensor) -> Tensor:
    """The law that a draft was drawn from, (B, K, V)."""
    if draft.probabilities is not None:
        return draft.probabilities
    size = (*draft.ids.shape, target.shape[-1])
    point = torch.zeros(size, dtype=target.dtype, device=target.device)
    return point.scatter(-1, draft.ids[..., None], 1.0)
