"""Which weights a run's legs have: folder, fingerprint, architecture, and their training.

Apart, and free of torch, because where weights come from (embedded, folder, hub, random, trained by
us) bears on every number, and a plan must know it on a login node. Not here: reading tensors
(``models.py``).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from bench import hub
from bench.config import DENSE, ROOT, MeterConfig, ModelConfig
from bench.errors import InputError
from bench.fingerprint import fingerprint
from bench.identity import digest
from methods.engine import files
from methods.engine.families import UnsupportedError
from methods.engine.shape import Shape

TRAINED_FILE = "skipbench.json"


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a leg.

    Attributes:
        folder: a checkpoint in hub format; None for random weights.
        fingerprint: hash of all that is read from the folder, or seed and shape of random weights.
        shape: the architecture.
        trained: contents of the folder's ``skipbench.json``; empty without one.
        seed: of random weights.
    """

    folder: Path | None
    fingerprint: str
    shape: Shape
    trained: Mapping[str, Any]
    seed: int


def not_a_checkpoint(folder: Path, error: Exception) -> InputError:
    """The refusal of a folder that cannot be read as a model."""
    return InputError(
        "Cannot load the checkpoint",
        got=f"{folder}: {error}",
        allowed="a folder with config.json and the weights of OPT, Llama or Qwen2",
        where="model.checkpoint",
    )


def method_weights(model: ModelConfig, method: str, seed: int, *, fetch: bool = True) -> Weights:
    """The weights that a method's own leg runs.

    Args:
        model: the run's model.
        method: the run's method.
        seed: of random weights.
        fetch: ask the hub for what the local cache does not hold.

    Raises:
        InputError: if they are not to be had, or are of another architecture than configured.
    """
    if model.weights == "random":
        shape = model.configured_shape()
        return Weights(None, f"random:{seed}:{digest(asdict(shape))}", shape, {}, seed)
    if model.checkpoint is not None:
        folder = Path(model.checkpoint).expanduser().resolve()
    elif model.variants is not None:
        folder = ROOT / model.variants.get(method, model.variants[DENSE])
    elif model.hub_id is not None:
        folder = _from_hub(model, fetch=fetch)
    else:
        raise InputError(
            f"Model {model.name} has no weights yet",
            got="model.checkpoint=null",
            allowed="a trained folder (python -m bench.train), or model.weights=random",
            where="model.checkpoint",
        )
    return _of_folder(folder, None if model.name == "scratch" else model.configured_shape())


def baseline_weights(
    model: ModelConfig,
    method: str,
    meter: MeterConfig,
    own: Weights,
    seed: int,
    *,
    fetch: bool = True,
) -> Weights:
    """The dense weights that a method is compared with.

    Args:
        model: the run's model.
        method: the run's method.
        meter: ``baseline=own`` takes the method's own weights.
        own: the method's weights.
        seed: of random weights.
        fetch: as for ``method_weights``.

    Raises:
        InputError: for a trained checkpoint that names no dense model.
    """
    if meter.baseline == "own":
        return own
    if model.baseline is not None:
        return _named_baseline(model, seed, fetch=fetch)
    if model.variants is not None and model.checkpoint is None:
        return method_weights(model, DENSE, seed, fetch=fetch)
    if own.trained.get("method", DENSE) == DENSE:
        return own
    base = own.trained.get("base")
    if base is None or own.folder is None:
        raise InputError(
            "The checkpoint was trained from scratch: there is no dense model to compare with",
            got=own.folder,
            allowed="model.baseline=FOLDER, or meter.baseline=own (dense on the same weights)",
            where="model.baseline, meter.baseline",
        )
    found = _of_folder((own.folder / base["folder"]).resolve(), own.shape)
    if found.fingerprint != base["fingerprint"]:
        raise InputError(
            "The dense model that the checkpoint was trained from has changed",
            got=f"{found.folder}: {found.fingerprint}",
            allowed=base["fingerprint"],
            where="model.baseline (names another), meter.baseline=own",
        )
    return found


def _named_baseline(model: ModelConfig, seed: int, *, fetch: bool) -> Weights:
    """A baseline given as a folder or as the name of a config."""
    name = str(model.baseline)
    path = ROOT / "conf" / "model" / f"{name}.yaml"
    if not path.exists():
        return _of_folder(Path(name).expanduser().resolve(), None)
    values: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    known = {field.name for field in fields(ModelConfig)}
    given = {str(key): value for key, value in values.items() if key in known}
    dense = ModelConfig(**{**given, "weights": model.weights})
    return method_weights(dense, DENSE, seed, fetch=fetch)


def _from_hub(model: ModelConfig, *, fetch: bool) -> Path:
    """The cached copy of a hub model: what a plan saw is what runs. Else the hub's, if asked."""
    hub_id = str(model.hub_id)
    held = hub.cached(hub_id, model.revision)
    if held is None and not fetch:
        raise InputError(
            f"The weights of model={model.name} are not here yet",
            got=f"{hub_id}, not in the local cache of the hub",
            allowed=f"python -m bench action=prefetch model={model.name}; or "
            "model.checkpoint=FOLDER, or model.weights=random",
            where="model",
        )
    return held or hub.snapshot(hub_id, model.revision)


def _of_folder(folder: Path, expected: Shape | None) -> Weights:
    """Weights of a folder, whose architecture must be the expected one."""
    try:
        shape = files.read_shape(folder)
        weight_files = files.weight_files(folder)
    except (files.CheckpointError, UnsupportedError) as error:
        raise not_a_checkpoint(folder, error) from error
    if expected is not None and shape != expected:
        differing = [
            f"{f.name}={getattr(shape, f.name)} (config: {getattr(expected, f.name)})"
            for f in fields(Shape)
            if getattr(shape, f.name) != getattr(expected, f.name)
        ]
        raise InputError(
            "The checkpoint is of another architecture than the model config",
            got=", ".join(differing),
            allowed="equal fields",
            where=f"model.shape, or model=scratch for the folder's own; folder {folder}",
        )
    trained_path = folder / TRAINED_FILE
    trained = json.loads(trained_path.read_text("utf-8")) if trained_path.exists() else {}
    return Weights(folder, fingerprint(folder, weight_files), shape, trained, 0)
