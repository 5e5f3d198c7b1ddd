"""ROUGE-1 F1: words that text and best reference share; conventions in ``bench/rouge.py``.

Apart, because it is one score. Not here: order of words.
"""

from typing import Literal

from bench import rouge
from bench.scores.contract import mean

unit: Literal["points", "fraction"] = "points"
better: Literal["higher", "lower"] = "higher"

statistics = rouge.statistics_of("rouge1")
value = mean
