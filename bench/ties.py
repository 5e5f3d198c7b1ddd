"""Where a lossless method differs from the dense model, and whether that is more than a tie.

Apart, because "equal ids" is not to be had of floating point: other kernels round otherwise, and a
tie of two tokens may fall the other way. What is more than a tie is an error. Not here: what
follows from it (``measure.py``).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bench.decoding import StopRule, decode
from bench.meters.device import AnyDevice
from bench.schema import Difference
from bench.tasks.contract import Example
from methods.contract import Method
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Forced


class _Gaps(Forced):
    """Takes given ids and notes how far the first choice is ahead of the second at each."""

    def __init__(self, continuation: Sequence[Sequence[int]]) -> None:
        super().__init__(continuation)
        self.gaps: list[Tensor] = []

    def choose(self, logits: Tensor, index: int | Tensor) -> Tensor:
        """The given ids; see ``Forced``."""
        first, second = logits[:, -1].float().topk(2, dim=-1).values.unbind(dim=-1)
        self.gaps.append(first - second)
        return super().choose(logits, index)


def differences(
    dense: tuple[Method, InferenceModel],
    examples: Sequence[Example],
    rows: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    device: AnyDevice,
) -> list[Difference]:
    """The first difference of each row that differs, with the dense model's logit gap there.

    Args:
        dense: the dense method and the weights that both ran on.
        examples: of the rows.
        rows: prompt ids.
        found: the method's kept ids.
        expected: the dense model's.
        device: where.
    """
    at = {
        row: _first_difference(mine, theirs)
        for row, (mine, theirs) in enumerate(zip(found, expected, strict=True))
        if list(mine) != list(theirs)
    }
    if not at:
        return []
    method, model = dense
    limit = max(at.values()) + 1
    chooser = _Gaps([[*expected[row], *[0] * limit][:limit] for row in at])
    prompts = Prompts.of([rows[row] for row in at], model.options.device)
    decode(method, model, prompts, StopRule(limit, ()), chooser, device)
    gaps = torch.stack(chooser.gaps, dim=1).tolist()
    return [
        Difference(examples[row].id, index, gap[index])
        for (row, index), gap in zip(at.items(), gaps, strict=True)
    ]


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Index of the first token that differs, or at which the shorter one ends."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((index for index, (a, b) in pairs if a != b), shorter)
