"""Checkpoints: Hugging Face folders <-> our parameters, exact in both directions.

Apart, because file formats and tensor names are no business of the engine. Not here: which folder
or hub commit a config names (``bench/models.py``), tokenizers.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from methods.engine.families import FAMILIES, Family, config_of_shape, shape_of_config
from methods.engine.shape import Shape
from methods.engine.transformer import Transformer

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class CheckpointError(ValueError):
    """A folder that is no complete checkpoint of a supported model."""


def read_shape(folder: Path) -> Shape:
    """The Shape of a checkpoint folder, before any weight is read.

    Raises:
        CheckpointError: if there is no readable config.json.
        UnsupportedError: for an architecture that the engine does not have.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return shape_of_config(config)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those its index names, else the single one.

    Raises:
        CheckpointError: if there is none, or one is missing.
    """
    index = folder / INDEX
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        names = [SINGLE]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}")
    return [folder / name for name in names]


def load(folder: Path, dtype: torch.dtype | None = None) -> Transformer:
    """Reads a checkpoint folder.

    Args:
        folder: config.json and safetensors.
        dtype: cast while reading; None keeps the stored one.

    Raises:
        CheckpointError: for missing, unused or misshapen tensors.
        UnsupportedError: for an architecture that the engine does not have.
    """
    shape = read_shape(folder)
    files = weight_files(folder)
    with torch.device("meta"):
        model = Transformer(shape)
    sources = dict(tensor_names(shape))
    wanted = {theirs for names in sources.values() for theirs in names}
    stored = _read(files, wanted, FAMILIES[shape.family], shape, dtype)
    missing = sorted(wanted - stored.keys())
    if missing:
        raise CheckpointError(f"{folder} lacks {len(missing)} tensors, such as {missing[0]}")
    state = {}
    for ours, theirs in sources.items():
        size = model.get_parameter(ours).shape
        # Part by part: a sum of rows can be right where the parts are not.
        rows = _part_sizes(shape, ours, len(theirs)) or [size[0]]
        parts = [stored.pop(name) for name in theirs]
        for name, part, height in zip(theirs, parts, rows, strict=True):
            expected = [height, *size[1:]]
            if list(part.shape) != expected:
                raise CheckpointError(f"{name}: shape {list(part.shape)}, config says {expected}")
        state[ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
    model.load_state_dict(state, strict=False, assign=True)
    return model


def save(model: Transformer, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Writes config.json and model.safetensors, which ``transformers`` opens.

    Args:
        model: any parameters.
        folder: made if missing.
        dtype: stored dtype; None keeps the model's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for ours, theirs in tensor_names(model.shape):
        parameter = model.get_parameter(ours).detach().to("cpu", dtype)
        sizes = _part_sizes(model.shape, ours, len(theirs))
        parts = torch.split(parameter, sizes) if sizes else (parameter,)
        for name, part in zip(theirs, parts, strict=True):
            tensors[name] = part.contiguous().clone()
    stored = next(iter(tensors.values())).dtype
    config = config_of_shape(model.shape, str(stored).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, str(folder / SINGLE), metadata={"format": "pt"})
    # The library writes for the owner alone; a checkpoint is shared like its other files.
    (folder / SINGLE).chmod((folder / "config.json").stat().st_mode)


def tensor_names(shape: Shape) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Our parameters, each with the stored tensors that are stacked to make it."""
    family = FAMILIES[shape.family]
    absent = set()
    if shape.tied_embeddings:
        absent.add("lm_head.weight")
    if not shape.projects_embedding:
        absent |= {"project_in.weight", "project_out.weight"}
    if not shape.final_norm:
        absent |= {"final_norm.weight", "final_norm.bias"}
    for ours, theirs in family.globals.items():
        if ours not in absent:
            yield ours, (theirs,)
    for layer in range(shape.num_layers):
        prefix = family.layer_prefix.format(layer)
        for ours, names in family.layer.items():
            yield f"blocks.{layer}.{ours}", tuple(prefix + name for name in names)


def _part_sizes(shape: Shape, ours: str, parts: int) -> list[int]:
    """Rows of each stored tensor within a stacked parameter; empty if it is not stacked."""
    if parts == 3:
        return [shape.query_width, shape.kv_width, shape.kv_width]
    return [shape.ffn_width] * 2 if parts == 2 else []


def _read(
    files: list[Path],
    wanted: set[str],
    family: Family,
    shape: Shape,
    dtype: torch.dtype | None,
) -> dict[str, Tensor]:
    """All wanted tensors; unknown ones are refused, so that nothing is dropped in silence."""
    ignored = (*family.ignored, *(("lm_head.weight",) if shape.tied_embeddings else ()))
    found: dict[str, Tensor] = {}
    unused: list[str] = []
    for path in files:
        with safe_open(str(path), framework="pt") as reader:
            for stored in reader.keys():  # noqa: SIM118  # no mapping
                name = _canonical(stored, wanted)
                if name in wanted:
                    tensor = reader.get_tensor(stored)
                    found[name] = tensor if dtype is None else tensor.to(dtype)
                elif not stored.endswith(ignored):
                    unused.append(stored)
    if unused:
        raise CheckpointError(f"{len(unused)} tensors fit nothing, such as {sorted(unused)[0]}")
    return found


def _canonical(stored: str, wanted: Mapping[str, object] | set[str]) -> str:
    """The full name; some files leave out the leading ``model.``."""
    full = f"model.{stored}"
    return full if stored not in wanted and full in wanted else stored
