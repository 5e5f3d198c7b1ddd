"""pass@k: the chance that one of k samples of a problem is right, by the unbiased estimator.

Apart, because its scores differ in k alone. Source: arXiv 2107.03374, section 2.1. Of n samples of
a problem with c right ones it is 1 - C(n-c, k) / C(n, k), and the score is its mean over problems.
"Is any of the first k right" has the same mean and more noise. Not here: running the samples
(``bench/sandbox/``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.scores.contract import mean
from bench.tasks.contract import Example


def estimate(samples: int, right: int, k: int) -> float:
    """1 - C(samples - right, k) / C(samples, k), as a product: no factorial of a large number.

    Raises:
        ValueError: if there are fewer than k samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples")
    if samples - right < k:
        return 1.0
    none_right = 1.0
    for i in range(samples - right + 1, samples + 1):
        none_right *= 1 - k / i
    return 1 - none_right


@dataclass(frozen=True, slots=True)
class PassAt:
    """The score of one k: a row of statistics is (right, run) of a sample."""

    k: int
    unit: Literal["points", "fraction"] = "fraction"
    better: Literal["higher", "lower"] = "higher"
    executes: bool = True

    def statistics(self, text: str, example: Example) -> tuple[float, ...]:
        """Whether the sample passed, and 1; zeros where it was not run."""
        return (float(example.outcome == "passed"), float(example.outcome is not None))

    def of_example(self, totals: Sequence[float]) -> tuple[float, ...]:
        """The problem's estimate, and 1; zeros where too few of its samples were run."""
        right, run = map(round, totals)
        return (estimate(run, right, self.k), 1.0) if run >= self.k else (0.0, 0.0)

    def value(self, totals: Sequence[float]) -> float | None:
        """Mean over what was run; None where nothing was."""
        return mean(totals)
