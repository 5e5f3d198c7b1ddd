"""Examples that are decoded more than once each, for scores that need several texts of one.

Apart from ``planning.py``, because it is a rule of its own. Free of torch. Not
here: the numbers that are drawn (``methods/engine/drawing.py``), what several texts make of a score
(``quality.py``).
"""

from bench.config import RunConfig
from bench.errors import InputError
from bench.tasks.contract import Sampled, Task


def times(task: Task) -> int:
    """How often each example is decoded."""
    return task.samples if isinstance(task, Sampled) else 1


def check(config: RunConfig, task: Task) -> None:
    """Refuses several samples that would all be the same.

    Raises:
        InputError: for greedy decoding of each example more than once.
    """
    if times(task) > 1 and config.decode.choose == "greedy":
        raise InputError(
            "Greedy decoding gives the same text every time",
            got=f"{times(task)} samples of each example with decode.choose=greedy",
            allowed="decode.choose=sample, or one sample",
            where="decode.choose, task.samples_per_problem",
        )
