"""What ``action=calibrate`` would do: prompts, thresholds and id, and whether it is done.

Apart from ``calibrating.py``, and free of torch, because too few prompts are refused before
anything is loaded: with fewer than a least number no threshold could pass, whatever its texts. Not
here: decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import calibrated
from bench.calibration import smallest_n
from bench.calibration_store import NEVER, Folder, folder_of
from bench.config import RunConfig
from bench.errors import InputError
from bench.identity import IDENTITY_VERSION, digest
from bench.jobs import check_writable
from bench.planning import Planned, plan
from methods.registry import find_params, method_names


@dataclass(frozen=True, slots=True)
class Wanted:
    """A calibration that could start.

    Attributes:
        planned: the run that never exits, on the calibration prompts, beside dense on its weights.
        setting: whose value is sought.
        promise: what a run must share with it.
        score: by which texts are judged.
        thresholds: to be tested, in this order.
        calibration_id: hash of all that bears on what is found.
    """

    planned: Planned
    setting: str
    promise: dict[str, object]
    score: str
    thresholds: Sequence[float]
    calibration_id: str

    @property
    def folder(self) -> Folder:
        """Where its records are."""
        return folder_of(Path(self.planned.config.results_dir), self.calibration_id)


def plan_calibration(config: RunConfig) -> Wanted:
    """Finds everything that a calibration decodes and judges with.

    Raises:
        InputError: for a method or a task that cannot be calibrated, too few prompts, and whatever
            would refuse a run.
    """
    check_writable(Path(config.results_dir))
    setting, asked = _setting(config), config.calibrate
    planned = plan(_full_model(config, setting))
    names, score = planned.identity, planned.task.calibration_score
    if score is None:
        raise InputError(
            "The task has no score that means anything for one text alone",
            got=config.task.name,
            allowed="a task with a calibration_score",
            where="task",
        )
    _check_enough(config, len(planned.examples))
    promise = calibrated.promise(config, names, setting)
    thresholds = asked.ladder()
    made_of = {
        "identity_version": IDENTITY_VERSION,
        "promise": promise,
        "thresholds": thresholds,
        "score": score,
        "task": names["task"],
        "engine": names["engine"],
        "gpu": names["gpu"],
        "seed": names["seed"],
    }
    return Wanted(planned, setting, promise, score, thresholds, digest(made_of))


def _setting(config: RunConfig) -> str:
    """The setting that is sought."""
    setting = find_params(config.method.name).ABILITIES.calibrates
    if setting is None:
        able = [n for n in method_names() if find_params(n).ABILITIES.calibrates is not None]
        raise InputError(
            f"Method {config.method.name} has nothing to calibrate",
            got=config.method.name,
            allowed=", ".join(able),
            where="+method=NAME",
        )
    return setting


def _full_model(config: RunConfig, setting: str) -> RunConfig:
    """The pipeline with no exits, beside dense on the same weights, on the calibration prompts."""
    asked = config.calibrate
    never = replace(config.method.params, **{setting: NEVER})
    return replace(
        config,
        method=replace(config.method, params=never),
        task=replace(config.task, split=asked.split, limit=asked.limit),
        meter=replace(config.meter, baseline="own", own_dense="never", profile=False, energy=False),
    )


def _check_enough(config: RunConfig, n: int) -> None:
    asked = config.calibrate
    least = smallest_n(asked.delta, asked.epsilon)
    if n < least:
        raise InputError(
            "Too few prompts to calibrate: no threshold could pass, even with a loss of 0 on each",
            got=f"{n} prompts of task.split={asked.split}, "
            f"delta={asked.delta:g}, epsilon={asked.epsilon:g}",
            allowed=f"at least {least} prompts at these levels; or higher levels",
            where="calibrate.limit, calibrate.split, calibrate.delta, calibrate.epsilon",
        )
