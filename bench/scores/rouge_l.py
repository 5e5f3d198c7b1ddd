"""ROUGE-L F1 over the whole text as one sequence; conventions in ``bench/rouge.py``.

Apart, because it is one score. Not the ROUGE_L of the E2E challenge's script (that one has
beta = 1.2, takes the best precision and the best recall of different references, and does not
stem): the two never stand in one column. Not here: ROUGE-Lsum, which divides at line breaks.
"""

from typing import Literal

from bench import rouge
from bench.scores.contract import mean

unit: Literal["points", "fraction"] = "points"
better: Literal["higher", "lower"] = "higher"

statistics = rouge.statistics_of("rougeL")
value = mean
