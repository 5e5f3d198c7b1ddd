"""Companions of a checkpoint: what a method needs beside the weights, trained on those weights.

Apart, and free of torch, because a run whose companion is missing, or was trained on other weights,
is refused on a login node. A companion bears the fingerprint of its weights in its own metadata;
the weights know nothing of it. Not here: training one (``training.py``), what its tensors mean
(``methods/<name>/``).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from bench.errors import InputError
from bench.weights import Weights
from methods.registry import find_params

# Keys of the metadata: of the weights that it was trained on, and of the training.
FINGERPRINT, TRAINING = "fingerprint", "id"


@dataclass(frozen=True, slots=True)
class Companion:
    """A companion that fits the weights.

    Attributes:
        path: its file.
        fingerprint: hash of all of it.
    """

    path: Path
    fingerprint: str


def path_of(folder: Path, name: str) -> Path:
    """Where the companion of a name lies in a checkpoint's folder."""
    return folder / f"{name}.safetensors"


def about(path: Path) -> Mapping[str, str] | None:
    """What a companion says of itself; None if there is no such file.

    Raises:
        InputError: for a file that cannot be read as one.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise InputError(
            "The companion of the checkpoint cannot be read",
            got=f"{path}: {error}",
            allowed="a file that python -m bench.train made",
            where=str(path),
        ) from error


def find(method: str, params: Any, weights: Weights) -> Companion | None:  # noqa: ANN401  # each method has its own type of params
    """What a method with these settings needs beside its weights; None if it needs nothing.

    Raises:
        InputError: if it is not there, or was trained on other weights.
    """
    name = find_params(method).ABILITIES.companion(params)
    if name is None:
        return None
    path = None if weights.folder is None else path_of(weights.folder, name)
    found = None if path is None else about(path)
    if path is None or found is None:
        raise InputError(
            f"Method {method} with these settings needs a companion trained on its weights",
            got=f"no {name}, for random weights have none" if path is None else f"no {path}",
            allowed=f"trained by: {training_command(method, weights)}",
            where="method, model.checkpoint",
        )
    if found.get(FINGERPRINT) != weights.fingerprint:
        raise InputError(
            f"The {name} beside the checkpoint was trained on other weights",
            got=f"{path}: of {found.get(FINGERPRINT)}",
            allowed=f"of {weights.fingerprint}, as trained anew by: "
            f"{training_command(method, weights)} rerun=true",
            where="method, model.checkpoint",
        )
    return Companion(path, f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()[:32]}")


def training_command(method: str, weights: Weights) -> str:
    """What trains a method's companion on these weights."""
    stage = find_params(method).ABILITIES.companion_stage
    asked = "" if stage is None else f" method.{stage.setting}={stage.value}"
    folder = weights.folder or "FOLDER"
    return f"python -m bench.train +method={method}{asked} model.checkpoint={folder}"
