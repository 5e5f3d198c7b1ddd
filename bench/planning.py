"""What a configuration would run: its weights, examples and run id, without torch.

Apart from ``preparation.py``, so that a sweep can be listed, checked and left out where done on a
login node in seconds. Not here: tokenizers and lengths in tokens.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench import calibrated, companion, drawn, gpus, lookup, sampled
from bench.calibration_store import Calibration
from bench.config import DENSE, RunConfig, TaskConfig
from bench.errors import InputError
from bench.fingerprint import fingerprint
from bench.gpus import GpuConfig
from bench.identity import digest, identity
from bench.summary import BASELINE, METHOD, OWN_DENSE
from bench.tasks.contract import Example, Split, Task
from bench.weights import Weights, baseline_weights, method_weights
from methods.engine.shape import Shape
from methods.registry import find_params


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that could start.

    Attributes:
        config: as given.
        profile: resolved device profile; its name alone bears on the identity.
        weights: leg -> weights.
        own_reference: the leg that is dense on the method's own weights; None if none is.
        task: for the names of its scores and its training split.
        examples: those that are decoded.
        identity: all that bears on a number.
        run_id: its hash.
        calibration: that gave the value of the method's calibrated setting; None if none did.
    """

    config: RunConfig
    profile: GpuConfig
    weights: Mapping[str, Weights]
    own_reference: str | None
    task: Task
    examples: Sequence[Example]
    identity: Mapping[str, Any]
    run_id: str
    calibration: Calibration | None = None

    @property
    def gpu(self) -> str:
        """The device profile's name."""
        return self.profile.name

    @property
    def drawn(self) -> bool:
        """Whether prompts are drawn: then there is no text, and nothing needs a tokenizer."""
        return self.examples[0].drawn is not None

    @property
    def known(self) -> Mapping[str, Any]:
        """What the weights and a calibration say, from which settings are completed."""
        return _known(self.config, self.weights[METHOD], self.calibration)


def plan(config: RunConfig) -> Planned:
    """Finds everything that makes a run what it is.

    Raises:
        InputError: for weights, settings or examples that do not go together.
    """
    _check_able(config)
    # Only what decodes is worth a download; a plan says what is missing.
    fetch = config.action in ("run", "calibrate")
    own = method_weights(config.model, config.method.name, config.seed, fetch=fetch)
    _check_runs(config, own.shape)
    weights = {METHOD: own}
    if _wants_baseline(config):
        weights[BASELINE] = baseline_weights(
            config.model, config.method.name, config.meter, own, config.seed, fetch=fetch
        )
    task, examples, examples_hash = _decoded(
        config.task.name, config.task.params, config.task.split, drawn.limit(config)
    )
    drawn.check_length(config, examples)
    sampled.check(config, task)
    own_reference = _own_reference(config, weights, scored=bool(task.scores))
    if own_reference == OWN_DENSE:
        weights[OWN_DENSE] = own
    profile = gpus.resolve(config.gpu)
    names = identity(
        config,
        device=profile.name,
        weights=_fingerprints(config, weights),
        resolved=_params_of_identity(config, own, own.trained),
        examples=examples_hash,
    )
    calibration = calibrated.of_run(config, names)
    if calibration is not None:
        resolved = _params_of_identity(config, own, _known(config, own, calibration))
        names = {**names, "method": {**names["method"], **resolved}}
    return Planned(
        config=config,
        profile=profile,
        weights=weights,
        own_reference=own_reference,
        task=task,
        examples=examples,
        identity=names,
        run_id=digest(names),
        calibration=calibration,
    )


def _fingerprints(config: RunConfig, weights: Mapping[str, Weights]) -> dict[str, str]:
    """Of each leg's weights, and of what is read beside them.

    Raises:
        InputError: if what the method needs beside its weights is not there.
    """
    found = {leg: each.fingerprint for leg, each in weights.items()}
    if config.model.tokenizer is not None:
        # Another one than the checkpoint's, whose fingerprint holds its own.
        found["tokenizer"] = fingerprint(Path(config.model.tokenizer).expanduser(), [])
    beside = companion.find(config.method.name, config.method.params, weights[METHOD])
    if beside is not None:
        found["companion"] = beside.fingerprint
    return found


def _known(config: RunConfig, own: Weights, calibration: Calibration | None) -> dict[str, Any]:
    """What the weights, their paper and a calibration say."""
    rows = config.model.published or {}
    found = {**own.trained, "published": rows.get(config.task.name, rows.get("default", {}))}
    return found if calibration is None else {**found, **calibration.known}


def _check_able(config: RunConfig) -> None:
    """Refuses what a method cannot do, before its weights are looked for.

    Raises:
        InputError: naming the pair.
    """
    name, decode = config.method.name, config.decode
    abilities = find_params(name).ABILITIES
    most, rows = abilities.max_batch, config.meter.batch_size
    if most is not None and rows > most:
        raise InputError(
            f"Method {name} cannot decode so many rows at once: its library does not",
            got=f"meter.batch_size={rows}",
            allowed=f"meter.batch_size={most}, for the baseline too",
            where="meter.batch_size",
        )
    if abilities.engine != "own" and decode.choose != "greedy":
        raise InputError(
            f"Method {name} is run by another library, which would draw by numbers of its own",
            got=f"decode.choose={decode.choose}",
            allowed="decode.choose=greedy",
            where="decode.choose",
        )
    if config.model.name != "scratch":
        # Its weights may be a download away; their folder is checked once it is there.
        _check_runs(config, config.model.configured_shape())


def _check_runs(config: RunConfig, shape: Shape) -> None:
    """Refuses a model that the method cannot run.

    Raises:
        InputError: naming the pair.
    """
    name = config.method.name
    why = find_params(name).ABILITIES.unsupported(shape)
    if why is not None:
        raise InputError(
            f"Method {name} cannot run model {config.model.name}: {why}",
            got=f"a model of family {shape.family}",
            allowed="a model of another family, or another method",
            where="model, method",
        )


def _wants_baseline(config: RunConfig) -> bool:
    wanted = config.meter.baseline
    return wanted in ("dense", "own") or (wanted == "auto" and config.method.name != DENSE)


def _own_reference(
    config: RunConfig, weights: Mapping[str, Weights], *, scored: bool
) -> str | None:
    """The leg whose ids the method's are compared with: dense on its own weights; None if none."""
    # Two runs that sample draw other tokens of one law: equal ids would mean nothing.
    if config.decode.choose != "greedy":
        return None
    if BASELINE in weights and weights[BASELINE].fingerprint == weights[METHOD].fingerprint:
        # Where quality is not looked at, only a claim of equal ids is.
        return BASELINE if scored or _claims_ids(config) else None
    asked = config.meter.own_dense == "always" or config.method.name != DENSE
    return OWN_DENSE if asked and _claims_ids(config) else None


def _claims_ids(config: RunConfig) -> bool:
    """Whether ids are to be those of dense: the method says so, or the user asks."""
    lossless = find_params(config.method.name).ABILITIES.lossless
    wanted = config.meter.own_dense
    return wanted == "always" or (wanted == "auto" and lossless)


@cache
def _decoded(
    name: str, params: object, split: Split, limit: int | None
) -> tuple[Task, Sequence[Example], str]:
    """A task with the examples to decode and their hash; once for all runs of a sweep.

    Raises:
        InputError: for a split without examples.
    """
    task: Task = lookup.find("bench.tasks", name, "task").Task(params)
    examples = list(task.examples(split))[:limit] * sampled.times(task)
    if not examples:
        raise InputError(
            "The task has no examples", got=split, allowed="a split with some", where="task.split"
        )
    total = hashlib.sha256()
    for example in examples:
        given = (example.id, example.prompt, example.references)
        # Left out where there is none, so that the hash of other examples stays.
        made_of = (example.drawn, example.parts, example.after, example.check)
        more = [each if isinstance(each, str) else astuple(each) for each in made_of if each]
        total.update(repr((*given, *more)).encode())
    return task, examples, total.hexdigest()[:16]


def resolve_params(config: RunConfig, own: Weights, known: Mapping[str, Any]) -> Any:  # noqa: ANN401  # each method has its own type
    """A method's complete settings.

    Args:
        config: the run's.
        own: the method's weights.
        known: what the checkpoint or the task says, such as ``schedule_length``.

    Raises:
        InputError: for settings that do not fit the model.
    """
    try:
        return find_params(config.method.name).resolve(config.method.params, own.shape, known)
    except ValueError as error:
        setting = str(error).split("=", 1)[0]
        raise InputError(
            f"Method {config.method.name} does not fit the model",
            got=error,
            allowed="see the range above",
            where=f"method.{setting}",
        ) from error


def needs_schedule_length(config: RunConfig, own: Weights) -> bool:
    """Whether S is neither given nor known of the weights: then it comes from the task."""
    abilities = find_params(config.method.name).ABILITIES
    given = getattr(config.method.params, "schedule_length", None)
    return abilities.schedule_length and given is None and "schedule_length" not in own.trained


def _params_of_identity(
    config: RunConfig, own: Weights, known: Mapping[str, Any]
) -> dict[str, Any]:
    """The complete settings; an S that follows from task and tokenizer, both hashed, is null."""
    if not needs_schedule_length(config, own):
        return asdict(resolve_params(config, own, known))
    resolved = asdict(resolve_params(config, own, {"schedule_length": 1}))
    return {**resolved, "schedule_length": None}


def examples_by_id(choice: TaskConfig) -> tuple[dict[str, Example], str]:
    """What a task decodes, by example id, with the hash that stands in the identity.

    Raises:
        InputError: for data that are not to be had.
    """
    _, examples, found = _decoded(choice.name, choice.params, choice.split, choice.limit)
    return {example.id: example for example in examples}, found
