"""Acceptance of drafted tokens, for a whole batch at once: greedy prefix and rejection sampling.

Apart, because exactness is decided here and can be tested without any model. Rows may have drafted
unequally: they are told apart by masks, so nothing loops over rows and nothing is read back from
the device. Not here: where probabilities and random numbers come from (``sampling.py``).

After Leviathan et al., arXiv 2211.17192, algorithm 1, and Chen et al., arXiv 2302.01318.
"""

import torch
from torch import Tensor


def greedy_prefix(ids: Tensor, best: Tensor, counts: Tensor | None = None) -> Tensor:
    """How many drafts of each row agree with the target before the first that does not, (B,).

    Args:
        ids: drafted tokens, (B, K).
        best: the target's own tokens at the K drafted positions and the one behind, (B, K + 1).
        counts: how many of the K each row drafted, (B,); None if all.
    """
    return _prefix(ids == best[:, :-1], counts)


def rejection(
    ids: Tensor, draft: Tensor, target: Tensor, numbers: Tensor, counts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Exact rejection sampling: what is emitted follows the target's law, whatever the draft's.

    A draft x is accepted with probability min(1, p(x) / q(x)). Behind the first that is not, the
    next token has the law of max(0, p - q); behind a draft that is accepted whole, p.

    Args:
        ids: drafted tokens, (B, K), each drawn from ``draft``.
        draft: q, the law that each draft was really drawn from, (B, K, V).
        target: p, warped as q was, (B, K + 1, V).
        numbers: uniform in [0, 1), float64, fresh for each position, (B, K).
        counts: how many of the K each row drafted, (B,); None if all.

    Returns:
        Accepted drafts, (B,), and the law of the token behind them, (B, V), not normalised.
    """
    num_drafts = ids.shape[1]
    p = target[:, :-1].gather(2, ids[..., None])[..., 0]  # (B, K)
    q = draft.gather(2, ids[..., None])[..., 0]
    # Without the division: p = 0 is never accepted, even by a number that is 0.
    accepted = _prefix(numbers * q < p, counts)
    law = _at(target, accepted)
    if not num_drafts:
        return accepted, law
    residual = (law - _at(draft, accepted.clamp(max=num_drafts - 1))).clamp(min=0)
    # A residual that rounding left empty means p = q.
    rejected = (accepted < (num_drafts if counts is None else counts)) & (residual.sum(dim=1) > 0)
    return accepted, torch.where(rejected[:, None], residual, law)


def emitted(ids: Tensor, accepted: Tensor, last: Tensor) -> Tensor:
    """Accepted drafts, then the token behind them, then padding that is a valid id, (B, K + 1).

    Args:
        ids: drafted tokens, (B, K).
        accepted: how many of them each row keeps, (B,).
        last: each row's correction or bonus token, (B,).
    """
    return torch.cat([ids, last[:, None]], dim=1).scatter(1, accepted[:, None], last[:, None])


def _prefix(fits: Tensor, counts: Tensor | None) -> Tensor:
    """Length of each row's run of True from the left, at most ``counts``, (B,)."""
    if counts is not None:
        fits = fits & (torch.arange(fits.shape[1], device=fits.device) < counts[:, None])
    return fits.long().cumprod(dim=1).sum(dim=1)


def _at(laws: Tensor, places: Tensor) -> Tensor:
    """The law at each row's own place, (B, V), of ``laws`` (B, T, V)."""
    index = places[:, None, None].expand(-1, 1, laws.shape[2])
    return laws.gather(1, index)[:, 0]
