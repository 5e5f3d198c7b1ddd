"""ROUGE-2 F1: pairs of neighbours that text and best reference share; see ``bench/rouge.py``.

Apart, because it is one score; the one that self-speculative papers quote. Not here: longer runs.
"""

from typing import Literal

from bench import rouge
from bench.scores.contract import mean

unit: Literal["points", "fraction"] = "points"
better: Literal["higher", "lower"] = "higher"

statistics = rouge.statistics_of("rouge2")
value = mean
