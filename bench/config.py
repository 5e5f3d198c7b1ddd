"""What may be configured: the frozen form of every group of ``conf/``, with its checks.

Apart, because a DictConfig ends here: nothing behind this module sees omegaconf. Free of torch. Not
here: what a setting means to the engine or to a task (their own modules check that).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from bench import lookup, ranges
from bench.binding import bind, others, unknown
from bench.calibration_settings import CalibrateConfig
from bench.errors import FaultsError, InputError
from bench.gpus import GpuConfig
from bench.resources import SlurmConfig
from bench.tracking.settings import TrackingConfig
from methods.contract import ParamsModule
from methods.engine.shape import FAMILY_FIELDS, Shape, complete_fields
from methods.registry import UnknownMethodError, find_params

ROOT = Path(__file__).resolve().parent.parent
# The reference that speed-ups and quality are measured against.
DENSE = "dense"
Action = Literal[
    "run",
    "plan",
    "check",
    "calibrate",
    "list",
    "prefetch",
    "pin",
    "doctor",
    "profile-gpu",
    "export-wandb",
    "sync",
]


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
    published: Mapping[str, Mapping[str, Any]] | None = None
    slurm: SlurmConfig = field(default_factory=SlurmConfig)

    def configured_shape(self) -> Shape:
        """The Shape that the architecture fields give.

        Raises:
            FaultsError: for unknown, missing or wrong fields.
        """
        faults: list[InputError] = []
        family = self.shape.get("family")
        if family not in FAMILY_FIELDS:
            # Alone, for without a family almost every other field would be missing.
            allowed = ", ".join(FAMILY_FIELDS)
            where = "model.shape.family"
            fault = InputError("There is no such family", got=family, allowed=allowed, where=where)
            raise FaultsError([fault])
        shape = bind(Shape, complete_fields(self.shape), "model.shape", faults)
        if shape is None:
            raise FaultsError(faults)
        return shape


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """A task, and which of its examples."""

    name: str
    split: Literal["train", "validation", "test"]
    limit: int | None
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class TaskConfig(TaskChoice):
    """A task with its own settings, as its own dataclass."""

    params: Any


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Stop rule and choice of tokens."""

    length: Literal["until_eos", "fixed"]
    max_new_tokens: int | None
    choose: Literal["greedy", "sample"]
    temperature: float
    top_k: int | None
    top_p: float


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """How is measured."""

    batch_size: int
    warmups: int
    repeats: int
    timed_batches: int
    baseline: Literal["auto", "dense", "own", "none"]
    own_dense: Literal["auto", "always", "never"]
    profile: bool
    energy: bool
    margin: float


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How weights are held, and how long rows."""

    dtype: Literal["float32", "bfloat16", "float16"]
    packed: Literal["auto", "on", "off"]
    attention: Literal["auto", "sdpa", "products"]
    compile: bool
    cuda_graphs: bool
    drop_finished: bool


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training recipe."""

    steps: int
    batch_size: int
    accumulate: int
    lr: float
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float
    save_every_steps: int
    seed: int
    dtype: Literal["float32", "bfloat16"]
    save_dtype: Literal["float32", "bfloat16", "float16"]
    output: str | None


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How the runs of a sweep are started, as in ``conf/launch/*.yaml``."""

    fail_fast: bool
    wait: bool
    dry_run: bool
    job_name: str
    runs_per_job: int
    array_parallelism: int | None
    setup: tuple[str, ...]
    python: str | None
    notice_s: int
    margin_s: int
    grace_s: int | None
    max_timeouts: int
    requeue: bool
    changed_code: Literal["refuse", "record"]
    slurm: SlurmConfig


@dataclass(frozen=True, slots=True)
class PlainConfig:
    """What is bound as it stands; method and task bring settings of their own."""

    model: ModelConfig
    gpu: GpuConfig
    decode: DecodeConfig
    meter: MeterConfig
    engine: EngineConfig
    tracking: TrackingConfig
    train: TrainConfig
    calibrate: CalibrateConfig
    launch: LaunchConfig
    action: Action
    results_dir: str
    seed: int
    rerun: bool
    verbosity: Literal["quiet", "normal", "debug"]


@dataclass(frozen=True, slots=True)
class RunConfig(PlainConfig):
    """One run or training, whole."""

    method: MethodConfig
    task: TaskConfig

    @property
    def max_new_tokens(self) -> int:
        """The limit in force: the decode group's, else the task's."""
        limit = self.decode.max_new_tokens
        return self.task.max_new_tokens if limit is None else limit


def from_mapping(raw: Mapping[str, Any], method_defaults: Mapping[str, Any]) -> RunConfig:
    """Binds a composed configuration.

    Args:
        raw: plain nested dicts.
        method_defaults: the settings of ``conf/method/<name>.yaml`` as they stand there.

    Raises:
        FaultsError: with every fault that was found.
    """
    faults: list[InputError] = []
    known = [field.name for field in fields(RunConfig)]
    faults += [unknown(name, known) for name in others(raw, known)]
    values = {name: value for name, value in raw.items() if name in known}
    method = _method(values.pop("method", {}), method_defaults, faults)
    task = _task(values.pop("task", {}), faults)
    plain = bind(PlainConfig, values, "", faults)
    if method is None or task is None or plain is None:
        raise FaultsError(faults)
    try:
        plain.model.configured_shape()
    except FaultsError as error:
        faults.extend(error.faults)
    bound = {field.name: getattr(plain, field.name) for field in fields(plain)}
    config = RunConfig(method=method, task=task, **bound)
    faults += [*ranges.faults_of(config), *config.calibrate.faults()]
    if faults:
        raise FaultsError(faults)
    return config


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


def _task(raw: Mapping[str, Any], faults: list[InputError]) -> TaskConfig | None:
    common = [field.name for field in fields(TaskChoice)]
    choice = bind(TaskChoice, {k: v for k, v in raw.items() if k in common}, "task", faults)
    try:
        module = lookup.find("bench.tasks", str(raw.get("name")), "task")
    except InputError as error:
        faults.append(error)
        return None
    own = [field.name for field in fields(module.Params)]
    faults += [unknown(f"task.{key}", [*common, *own]) for key in others(raw, [*common, *own])]
    params = bind(module.Params, {k: v for k, v in raw.items() if k in own}, "task", faults)
    if choice is None or params is None:
        return None
    return TaskConfig(**asdict(choice), params=params)
