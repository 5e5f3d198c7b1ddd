"""ROUGE-Lsum F1: ROUGE-L sentence by sentence, one a line; conventions in ``bench/rouge.py``.

Apart, because it is one score: several points above ROUGE-L where references have several lines,
and equal to it on one line. Sentences are what line breaks divide, in text and references; none is
sought within a line. Not here: sentence splitting by nltk, which some papers do first.
"""

from typing import Literal

from bench import rouge
from bench.scores.contract import mean

unit: Literal["points", "fraction"] = "points"
better: Literal["higher", "lower"] = "higher"

statistics = rouge.statistics_of("rougeLsum")
value = mean
