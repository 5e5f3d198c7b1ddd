"""Schedule: the layer budget of each position, and which layers it pays for.

Apart, so that host-side integer arithmetic stands in one torch-free place, for decoding, training,
tests and figures alike. Not here: what runs the layers (``method.py``, ``objective.py``).
"""

from dataclasses import dataclass
from math import floor
from typing import Literal


def _nearest(value: float) -> int:
    """Rounds to nearest, halves up (Python's ``round`` takes halves to the even number)."""
    return floor(value + 0.5)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A budget that never rises with position, so that no later token misses a key or value.

    Attributes:
        num_layers: L.
        max_layers: budget at t = 0.
        min_layers: budget from t = ``length`` on.
        warmup_layers: bottom layers that always run, counted inside the budget.
        length: S, in positions.
        decay: shape of the fall from max to min.
        power: exponent of the power decay; 1 is linear, above 1 falls faster at the start.
        mode: which layers a budget pays for: the top of the stack above the warm-up (skip), or the
            bottom of it (terminate).
    """

    num_layers: int
    max_layers: int
    min_layers: int
    warmup_layers: int
    length: int
    decay: Literal["linear", "power"] = "linear"
    power: float = 1.0
    mode: Literal["skip", "terminate"] = "skip"

    def budget(self, t: int) -> int:
        """b(t) (arXiv 2307.02628: linear interpolation), rounded to nearest; held after S."""
        left = 1.0 - min(t / self.length, 1.0)
        if self.decay == "power":
            left **= self.power
        return _nearest(self.min_layers + (self.max_layers - self.min_layers) * left)

    def layers(self, t: int) -> tuple[int, ...]:
        """A(t), ascending: the warm-up layers, then the top of the stack; the last always runs.

        Or, to terminate, as many from the bottom. Either way A(t) holds A(t + 1).
        """
        budget = self.budget(t)
        if self.mode == "terminate":
            return tuple(range(budget))
        first = max(self.warmup_layers, self.num_layers - (budget - self.warmup_layers))
        return (*range(self.warmup_layers), *range(first, self.num_layers))

    def first_inactive(self, layer: int) -> int:
        """The number of leading positions t = 0, 1, ... at which ``layer`` is active.

        Returns:
            0 if it never is, ``length + 1`` at most for a layer that falls away; a layer that is
            active at the minimum budget never falls away and gives a number beyond any position.
        """
        if layer in self.layers(self.length):
            return _FOREVER
        low, high = 0, self.length
        while low < high:
            middle = (low + high) // 2
            if layer in self.layers(middle):
                low = middle + 1
            else:
                high = middle
        return low


_FOREVER = 1 << 40


def preset_budgets(speedup: float, num_layers: int, warmup_layers: int) -> tuple[int, int]:
    """(b_max, b_min) of a target speed-up, counted in layers: mean budget nearest L / s.

    b_max starts at 4/3 L/s and b_min at 2/3 L/s (at least one layer above the warm-up); then b_max
    moves until the mean is nearest.
    """
    mean = num_layers / speedup
    low = max(warmup_layers + 1, _nearest(2 / 3 * mean))
    start = _nearest(4 / 3 * mean)
    choices = range(low, num_layers + 1)
    high = min(choices, key=lambda b: (abs((b + low) / 2 - mean), abs(b - start)))
    return high, low
