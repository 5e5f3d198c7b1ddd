"""Checkpoints: Hugging Face folders <-> our parameters, exact in both directions.

Apart, because file formats and tensor names are no business of the engine. Not here: which of a
folder's files are read (``files.py``), which folder or hub commit a config names
(``bench/weights.py``), tokenizers.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from methods.engine.families import FAMILIES, config_of_shape
from methods.engine.files import SAFETENSORS, CheckpointError, read_shape, weight_files
from methods.engine.shape import Shape
from methods.engine.transformer import Transformer


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a stored tensor belongs: rows of one of our parameters."""

    parameter: str
    first_row: int
    size: tuple[int, ...]


def load(folder: Path, dtype: torch.dtype | None = None) -> Transformer:
    """Reads a checkpoint folder, one tensor after the other: no weight is held twice.

    Args:
        folder: config.json and the weights, as safetensors or ``.bin``, whole or in shards.
        dtype: cast while reading; None keeps the stored one.

    Raises:
        CheckpointError: for damaged files, and for missing, unused or misshapen tensors.
        UnsupportedError: for an architecture that the engine does not have.
    """
    shape = read_shape(folder)
    files = weight_files(folder)
    with torch.device("meta"):
        model = Transformer(shape)
    places = _places(model)
    # Mapped files show names and sizes without reading: faults come before minutes of copying.
    _check(folder, files, places, shape)
    state: dict[str, Tensor] = {}
    for path in files:
        for name, stored in _tensors(path):
            place = places.get(_canonical(name, places))
            if place is not None:
                size = model.get_parameter(place.parameter).shape
                if place.parameter not in state:
                    state[place.parameter] = torch.empty(size, dtype=dtype or stored.dtype)
                end = place.first_row + place.size[0]
                state[place.parameter][place.first_row : end].copy_(stored)
    model.load_state_dict(state, assign=True)
    return model


def save(model: Transformer, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Writes config.json and model.safetensors, which ``transformers`` opens.

    Args:
        model: any parameters.
        folder: made if missing.
        dtype: stored dtype; None keeps the model's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = hub_tensors(model, dtype)
    stored = next(iter(tensors.values())).dtype
    config = config_of_shape(model.shape, str(stored).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, str(folder / SAFETENSORS.single), metadata={"format": "pt"})
    # The library writes for the owner alone; a checkpoint is shared like its other files.
    (folder / SAFETENSORS.single).chmod((folder / "config.json").stat().st_mode)


def hub_tensors(model: Transformer, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Copies of the parameters on the CPU, by the names and in the parts that ``transformers`` has.

    Args:
        model: any parameters.
        dtype: of the copies; None keeps the model's.
    """
    tensors: dict[str, Tensor] = {}
    for ours, theirs in tensor_names(model.shape):
        parameter = model.get_parameter(ours).detach().to("cpu", dtype)
        sizes = _part_sizes(model.shape, ours, len(theirs))
        parts = torch.split(parameter, sizes) if sizes else (parameter,)
        for name, part in zip(theirs, parts, strict=True):
            tensors[name] = part.contiguous().clone()
    return tensors


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


def _places(model: Transformer) -> dict[str, _Place]:
    """Every stored tensor that the model needs, by name."""
    places = {}
    for ours, theirs in tensor_names(model.shape):
        height, *rest = model.get_parameter(ours).shape
        first_row = 0
        for name, rows in zip(
            theirs, _part_sizes(model.shape, ours, len(theirs)) or [height], strict=True
        ):
            places[name] = _Place(ours, first_row, (rows, *rest))
            first_row += rows
    return places


def _check(folder: Path, files: list[Path], places: Mapping[str, _Place], shape: Shape) -> None:
    """Refuses what does not fit; unknown tensors too, so that nothing is dropped in silence."""
    ignored = FAMILIES[shape.family].ignored
    ignored += ("lm_head.weight",) if shape.tied_embeddings else ()
    unused: list[str] = []
    dtypes: dict[str, torch.dtype] = {}
    found: set[str] = set()
    for path in files:
        for stored, tensor in _tensors(path):
            name = _canonical(stored, places)
            if name not in places:
                unused += [] if stored.endswith(ignored) else [stored]
                continue
            place = places[name]
            if tuple(tensor.shape) != place.size:
                raise CheckpointError(
                    f"{name}: shape {list(tensor.shape)}, config says {list(place.size)}"
                )
            if name in found:
                raise CheckpointError(f"{name} is stored twice, the second time in {path}")
            if dtypes.setdefault(place.parameter, tensor.dtype) != tensor.dtype:
                raise CheckpointError(f"{name}: {tensor.dtype}, unlike what it is stacked with")
            found.add(name)
    if unused:
        raise CheckpointError(f"{len(unused)} tensors fit nothing, such as {sorted(unused)[0]}")
    missing = sorted(places.keys() - found)
    if missing:
        raise CheckpointError(f"{folder} lacks {len(missing)} tensors, such as {missing[0]}")


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a weight file, mapped: their pages are read when they are copied.

    Raises:
        CheckpointError: for a damaged file, or one that holds something else.
    """
    try:
        if path.suffix == ".safetensors":
            with safe_open(str(path), framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118  # no mapping
                    yield name, reader.get_tensor(name)
            return
        held = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    # Damage shows as whatever the damaged bytes lead to; nothing of ours runs in here.
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} cannot be read: {first_line}") from error
    if not isinstance(held, dict):
        raise CheckpointError(f"{path} holds no tensors by name")
    for name, tensor in held.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path} holds {name!r}, which is no tensor")
        yield name, tensor


def _canonical(stored: str, places: Mapping[str, _Place]) -> str:
    """The full name; some files leave out the leading ``model.``."""
    full = f"model.{stored}"
    return full if stored not in places and full in places else stored
