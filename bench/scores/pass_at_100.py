"""pass@100 of model-written code that is run (``_pass_at.py``).

Apart, because a score is found by its file's name.
"""

from bench.scores._pass_at import PassAt

_score = PassAt(k=100)
unit, better, executes = _score.unit, _score.better, _score.executes
statistics, of_example, value = _score.statistics, _score.of_example, _score.value
