"""Files of a checkpoint folder: its config.json, and the one set of weight files that is read.

Apart from ``checkpoint.py``, and free of torch, so that a login node can check, count and hash a
checkpoint. Not here: what stands in the weight files.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from methods.engine.families import shape_of_config
from methods.engine.shape import Shape


class CheckpointError(ValueError):
    """A folder that is no complete checkpoint of a supported model."""


@dataclass(frozen=True, slots=True)
class WeightSet:
    """One form in which a checkpoint's weights are published.

    Attributes:
        single: name of the file that holds all weights.
        index: name of the file that says which shard holds which tensor.
        shard: form of the shards' names.
    """

    single: str
    index: str
    shard: re.Pattern[str]


SAFETENSORS = WeightSet(
    "model.safetensors",
    "model.safetensors.index.json",
    re.compile(r"model-\d+-of-\d+\.safetensors"),
)
PICKLED = WeightSet(
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    re.compile(r"pytorch_model-\d+-of-\d+\.bin"),
)


def weight_set(names: Collection[str]) -> WeightSet | None:
    """The form that is read of those a folder has: safetensors before ``.bin``, never both.

    Never by the ending: some publish the same weights again under names of their own.
    """
    for form in (SAFETENSORS, PICKLED):
        if form.single in names or form.index in names:
            return form
    return None


def read_shape(folder: Path) -> Shape:
    """The Shape of a checkpoint folder, before any weight is read.

    Raises:
        CheckpointError: if there is no readable config.json.
        UnsupportedError: for an architecture that the engine does not have.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no mapping")
    try:
        return shape_of_config(config)
    except KeyError as error:
        raise CheckpointError(f"{path} lacks {error}") from error


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint: the single one, else those that its index names.

    Raises:
        CheckpointError: if there is none, or one is missing.
    """
    present = (
        {path.name for path in folder.iterdir() if path.exists()} if folder.is_dir() else set()
    )
    form = weight_set(present)
    if form is None:
        raise CheckpointError(f"{folder} lacks {SAFETENSORS.single} and {PICKLED.single}")
    # The single file first, as transformers reads; an index beside it is a remainder.
    names = [form.single] if form.single in present else _shards(folder / form.index)
    missing = [name for name in names if name not in present]
    if missing:
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}")
    return [folder / name for name in names]


def _shards(index: Path) -> list[str]:
    """The files that an index names."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} cannot be read: {error!r}") from error
    return sorted(map(str, names))
