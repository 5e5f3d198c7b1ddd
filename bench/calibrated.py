"""Which calibration a run with a calibrated setting takes, and whether there is one.

Apart, and free of torch, because it bears on the run's id. A calibration holds for the pipeline
that it decoded with and for no other: same weights, settings, task, decode, dtype and batch size.
Not here: making one (``calibration_plan.py``, ``calibrating.py``).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.calibration_store import Calibration, complete_ones
from bench.config import RunConfig
from bench.errors import InputError
from bench.summary import BASELINE, OWN_DENSE
from methods.registry import find_params

CALIBRATED = "calibrated"
# Of what a run differs in from a calibration, so many are told.
_TOLD = 3


def promise(config: RunConfig, names: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """What a calibration and a run must share, as plain data.

    Args:
        config: for what is promised.
        names: the run's identity.
        setting: the calibrated one, which is left out.
    """
    asked = config.calibrate
    others = (BASELINE, OWN_DENSE)
    shared = {
        "method": {name: value for name, value in names["method"].items() if name != setting},
        "weights": {leg: value for leg, value in names["weights"].items() if leg not in others},
        "task": names["task"]["name"],
        "decode": names["decode"],
        "meter": {"batch_size": names["meter"]["batch_size"]},
        "engine": {"dtype": names["engine"]["dtype"]},
        "calibrate": {name: getattr(asked, name) for name in ("objective", "delta", "epsilon")},
    }
    plain: dict[str, Any] = json.loads(json.dumps(shared, default=str))
    return plain


def of_run(config: RunConfig, names: Mapping[str, Any]) -> Calibration | None:
    """The newest calibration that holds for a run; None for a run that asks for none.

    Raises:
        InputError: if there is none, or only one on the very split that the run reports on.
    """
    setting = find_params(config.method.name).ABILITIES.calibrates
    if setting is None or getattr(config.method.params, setting) != CALIBRATED:
        return None
    wanted = promise(config, names, setting)
    known = complete_ones(Path(config.results_dir))
    fitting = [each for each in known if each.promise == wanted]
    other_split = [each for each in fitting if each.split != config.task.split]
    if other_split or (fitting and config.calibrate.same_split):
        return (other_split or fitting)[-1]
    if fitting:
        raise InputError(
            "The run reports on the prompts that its threshold was calibrated on",
            got=f"task.split={config.task.split}, calibration {fitting[-1].calibration_id}",
            allowed="another split than that of the calibration, such as task.split=test; or "
            "calibrate.same_split=true, and then the promise says nothing of this run",
            where="task.split, calibrate.same_split",
        )
    raise InputError(
        "There is no calibration of this run",
        got=_nearest(known, wanted, Path(config.results_dir)),
        allowed=f"one made by: {command(config)}",
        where=f"method.{setting}, results_dir",
    )


def command(config: RunConfig) -> str:
    """What calibrates for a run of this configuration, but for settings of other groups."""
    setting, asked = find_params(config.method.name).ABILITIES.calibrates, config.calibrate
    changed = [f"method.{k}={v}" for k, v in config.method.changed.items() if k != setting]
    model = [f"model={config.model.name}"]
    if config.model.checkpoint is not None:
        model.append(f"model.checkpoint={config.model.checkpoint}")
    words = [
        f"python -m bench +method={config.method.name} action=calibrate",
        *changed,
        *model,
        f"task={config.task.name}",
        f"meter.batch_size={config.meter.batch_size}",
        f"calibrate.objective={asked.objective}",
        f"calibrate.delta={asked.delta:g}",
        f"calibrate.epsilon={asked.epsilon:g}",
    ]
    return " ".join(words)


def _nearest(known: Sequence[Calibration], wanted: Mapping[str, Any], results_dir: Path) -> str:
    """The calibration that differs in the fewest fields, and in which."""
    if not known:
        return f"no calibration in {results_dir}"
    flat = _flat(wanted)
    differing = [(each, _differing(_flat(each.promise), flat)) for each in known]
    nearest, fields = min(differing, key=lambda pair: len(pair[1]))
    more = f" and {len(fields) - _TOLD} more" if len(fields) > _TOLD else ""
    return (
        f"{len(known)} in {results_dir}; the nearest, {nearest.calibration_id}, has "
        f"{', '.join(fields[:_TOLD])}{more}"
    )


def _differing(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    keys = sorted(theirs.keys() | ours.keys())
    return [
        f"{key}={theirs.get(key)} (here {ours.get(key)})"
        for key in keys
        if theirs.get(key) != ours.get(key)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, by full keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
