"""How often the host waits for the GPU in one decode step, and in which lines.

Apart, because torch counts them in a mode of its own. What may wait is decided (docs/decisions,
0008): a read where the rule of a method needs one, and nothing else.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from methods.contract import Limits, Method
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy

_SAYS = "synchronizing CUDA operation"


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one step.

    Attributes:
        count: how many there were; None where nothing is queued, as on a CPU.
        lines: ``file:line`` of each.
    """

    count: int | None
    lines: tuple[str, ...] = ()


def of_step(method: Method, model: InferenceModel, batch: Prompts, steps: int = 3) -> Waits:
    """Of the last of so many decode steps: in the first ones tables are made and kernels loaded."""
    limits = Limits(8 * (steps + 1), Greedy())
    rounds = method.decode(model, batch, limits)
    try:
        with torch.inference_mode():
            next(rounds)
            for _ in range(steps - 1):
                rounds.send(None)
            if model.device.type != "cuda":
                rounds.send(None)
                return Waits(None)
            return _counted(lambda: rounds.send(None), model.device)
    finally:
        rounds.close()


def _counted(step, device: torch.device) -> Waits:
    """In ``warn`` mode: ``error`` would end the step at the first wait, though some are allowed."""
    torch.cuda.synchronize(device)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    found = [each for each in told if _SAYS in str(each.message)]
    return Waits(len(found), tuple(f"{Path(each.filename).name}:{each.lineno}" for each in found))
