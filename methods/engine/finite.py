"""FiniteRows: which rows of a batch showed a NaN or infinite logit, noted without reading back.

Apart, because every chooser notes it by one rule, and a row keeps its number where others leave the
batch. Not here: how a token is chosen (``sampling.py``).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class FiniteRows:
    """What every chooser remembers of the rows whose logits it saw.

    Attributes:
        held: those of the batch's rows that it still sees, ascending; None for all.
    """

    def __init__(self) -> None:
        self.held: list[int] | None = None
        # A sum per row of each note, with the rows that were held then.
        self._sums: list[tuple[list[int] | None, list[Tensor]]] = [(None, [])]

    def note(self, logits: Tensor) -> None:
        """Remembers whether the logits, (B, T, V), were finite."""
        # A NaN or an infinity anywhere in a row makes its sum non-finite.
        self._sums[-1][1].append(logits.sum(dim=(1, 2), dtype=torch.float32))

    def keep(self, rows: Sequence[int]) -> None:
        """What comes is of these of the held rows alone, ascending."""
        held = self.held
        self.held = list(rows) if held is None else [held[row] for row in rows]
        self._sums.append((self.held, []))

    def non_finite_rows(self) -> list[int]:
        """Rows of the batch that showed one so far; reads back from the device."""
        found: set[int] = set()
        for held, sums in self._sums:
            if not sums:
                continue
            finite = torch.stack(sums).isfinite().all(dim=0).tolist()
            bad = [row for row, fine in enumerate(finite) if not fine]
            found.update(bad if held is None else [held[row] for row in bad])
        return sorted(found)
