"""What may be configured: the frozen form of every group of ``conf/``, with its checks.

Apart, because a DictConfig ends here: nothing behind this module sees omegaconf. Free of torch. Not
here: what a setting means to the engine or to a task (their own modules check that).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench import lookup
from bench.binding import bind
from bench.errors import FaultsError, InputError
from methods.contract import ParamsModule
from methods.engine.shape import Shape, complete_fields
from methods.registry import UnknownMethodError, find_params

ROOT = Path(__file__).resolve().parent.parent
# The reference that speed-ups and quality are measured against.
DENSE = "dense"


@dataclass(frozen=True, slots=True)
class MethodConfig:
    """A method and its settings.

    Attributes:
        name: package of ``methods/``.
        params: its settings, as its own dataclass.
        changed: those that differ from ``conf/method/<name>.yaml``, as ``key -> value``.
    """

    name: str
    params: Any
    changed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which weights, as in ``conf/model/*.yaml``."""

    name: str
    shape: Mapping[str, Any]
    hub_id: str | None = None
    revision: str | None = None
    checkpoint: str | None = None
    weights: Literal["checkpoint", "random"] = "checkpoint"
    baseline: str | None = None
    tokenizer: str | None = None
    variants: Mapping[str, str] | None = None

    def configured_shape(self) -> Shape:
        """The Shape that the architecture fields give.

        Raises:
            FaultsError: for unknown, missing or wrong fields.
        """
        faults: list[InputError] = []
        shape = bind(Shape, complete_fields(self.shape), "model.shape", faults)
        if shape is None:
            raise FaultsError(faults)
        return shape


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """A task, which of its examples, and its own settings."""

    name: str
    split: Literal["train", "validation", "test"]
    limit: int | None
    max_new_tokens: int
    params: Any


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """The device profile; ``auto`` takes what there is."""

    name: str


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Stop rule and choice of tokens."""

    length: Literal["until_eos", "fixed"]
    max_new_tokens: int | None
    choose: Literal["greedy"]


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """How is measured."""

    batch_size: int
    warmups: int
    repeats: int
    timed_batches: int
    baseline: Literal["auto", "dense", "own", "none"]
    own_dense: Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How weights are held."""

    dtype: Literal["float32", "bfloat16", "float16"]
    packed: Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class TrackingConfig:
    """Where runs are tracked, beside their own records."""

    name: Literal["off"]


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training recipe."""

    steps: int
    batch_size: int
    accumulate: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float
    save_every_steps: int
    seed: int
    dtype: Literal["float32", "bfloat16"]
    save_dtype: Literal["float32", "bfloat16", "float16"]
    output: str | None


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One run or training, whole."""

    method: MethodConfig
    model: ModelConfig
    task: TaskConfig
    gpu: GpuConfig
    decode: DecodeConfig
    meter: MeterConfig
    engine: EngineConfig
    tracking: TrackingConfig
    train: TrainConfig
    results_dir: str
    seed: int
    rerun: bool
    verbosity: Literal["quiet", "normal", "debug"]

    @property
    def max_new_tokens(self) -> int:
        """The limit in force: the decode group's, else the task's."""
        limit = self.decode.max_new_tokens
        return self.task.max_new_tokens if limit is None else limit


_PLAIN = {"model", "gpu", "decode", "meter", "engine", "tracking", "train"}
_COMMON_TASK_KEYS = ("name", "split", "limit", "max_new_tokens")


def from_mapping(raw: Mapping[str, Any], method_defaults: Mapping[str, Any]) -> RunConfig:
    """Binds a composed configuration.

    Args:
        raw: plain nested dicts.
        method_defaults: the settings of ``conf/method/<name>.yaml`` as they stand there.

    Raises:
        FaultsError: with every fault that was found.
    """
    faults: list[InputError] = []
    values = dict(raw)
    method = _method(values.pop("method", {}), method_defaults, faults)
    values["method"] = {}
    task_values = dict(values.get("task", {}))
    values["task"] = {key: task_values.pop(key) for key in _COMMON_TASK_KEYS if key in task_values}
    values["task"]["params"] = {}
    shell = bind(_Shell, values, "config", faults)
    task_params = _task_params(values["task"].get("name"), task_values, faults)
    if shell is None or method is None or faults:
        raise FaultsError(_without_shell_key(faults))
    task = TaskConfig(**{**values["task"], "params": task_params})
    config = RunConfig(
        method=method,
        task=task,
        **{name: getattr(shell, name) for name in RunConfig.__slots__ if name not in _BOUND_APART},
    )
    _check_numbers(config, faults)
    if faults:
        raise FaultsError(faults)
    return config


@dataclass(frozen=True, slots=True)
class _Task:
    """The common keys of a task; its own ones are bound by its module."""

    name: str
    split: Literal["train", "validation", "test"]
    limit: int | None
    max_new_tokens: int
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Shell:
    """A configuration before method and task are bound by their own modules."""

    method: Mapping[str, Any]
    model: ModelConfig
    task: _Task
    gpu: GpuConfig
    decode: DecodeConfig
    meter: MeterConfig
    engine: EngineConfig
    tracking: TrackingConfig
    train: TrainConfig
    results_dir: str
    seed: int
    rerun: bool
    verbosity: Literal["quiet", "normal", "debug"]


_BOUND_APART = ("method", "task")


def _without_shell_key(faults: list[InputError]) -> list[InputError]:
    """Full keys as a user types them: without the name of the whole."""
    return [
        InputError(
            fault.failed.replace("config.", ""),
            got=fault.got,
            allowed=fault.allowed,
            where=fault.where.removeprefix("config."),
        )
        for fault in faults
    ]


def _method(
    raw: Mapping[str, Any], defaults: Mapping[str, Any], faults: list[InputError]
) -> MethodConfig | None:
    settings = dict(raw)
    name = settings.pop("name", None)
    try:
        module: ParamsModule = find_params(str(name))
    except UnknownMethodError as error:
        near = f" (near: {', '.join(error.near)})" if error.near else ""
        faults.append(
            InputError(
                "There is no method of this name",
                got="nothing" if name is None else name,
                allowed=", ".join(error.names) + near,
                where="+method=NAME",
            )
        )
        return None
    params = bind(module.Params, settings, "method", faults)
    changed = {k: v for k, v in settings.items() if k in defaults and v != defaults[k]}
    return None if params is None else MethodConfig(str(name), params, changed)


def _task_params(name: object, values: Mapping[str, Any], faults: list[InputError]) -> object:
    try:
        module = lookup.find("bench.tasks", str(name), "task")
    except InputError as error:
        faults.append(error)
        return None
    return bind(module.Params, values, "task", faults)


_AT_LEAST_ONE = (
    "task.limit",
    "task.max_new_tokens",
    "decode.max_new_tokens",
    "meter.batch_size",
    "meter.repeats",
    "meter.timed_batches",
    "train.steps",
    "train.batch_size",
    "train.accumulate",
    "train.save_every_steps",
)
_NOT_NEGATIVE = ("meter.warmups", "train.warmup_steps", "seed", "train.seed")


def _check_numbers(config: RunConfig, faults: list[InputError]) -> None:
    for least, keys in ((1, _AT_LEAST_ONE), (0, _NOT_NEGATIVE)):
        for key in keys:
            value: Any = config
            for part in key.split("."):
                value = getattr(value, part)
            if value is not None and value < least:
                faults.append(
                    InputError(
                        f"Setting {key} is too small",
                        got=value,
                        allowed=f"{least} and up",
                        where=key,
                    )
                )
