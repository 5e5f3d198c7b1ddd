"""From a model config to weights, tokenizer and fingerprint; and which is the baseline.

Apart, because where weights come from (embedded, folder, hub, random, trained by us) bears on every
number and is decided once. Not here: reading tensors (``methods/engine/checkpoint.py``).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from omegaconf import OmegaConf

from bench import text
from bench.config import DENSE, ROOT, MeterConfig, ModelConfig
from bench.errors import InputError
from methods.engine import checkpoint
from methods.engine.families import UnsupportedError
from methods.engine.shape import Shape
from methods.engine.transformer import Transformer

TRAINED_FILE = "skipbench.json"
_FINGERPRINTED = ("config.json", "tokenizer.json", "*.safetensors")


@dataclass(frozen=True, slots=True)
class Weights:
    """Which weights a leg runs.

    Attributes:
        folder: a checkpoint in hub format; None for random weights.
        fingerprint: hash of all that is read from the folder, or the seed of random weights.
        shape: the architecture.
        trained: contents of the folder's ``skipbench.json``; empty without one.
        seed: of random weights.
    """

    folder: Path | None
    fingerprint: str
    shape: Shape
    trained: Mapping[str, Any]
    seed: int

    def load(self, dtype: torch.dtype | None = None) -> Transformer:
        """Reads or draws the weights.

        Raises:
            InputError: for a folder that is no complete checkpoint.
        """
        if self.folder is None:
            return Transformer(self.shape).initialise(self.seed)
        try:
            return checkpoint.load(self.folder, dtype)
        except checkpoint.CheckpointError as error:
            raise _not_a_checkpoint(self.folder, error) from error

    def text(self, tokenizer: str | None) -> text.Text:
        """The tokenizer: the named folder's, the checkpoint's, or bytes for random weights."""
        folder = self.folder if tokenizer is None else Path(tokenizer)
        if folder is None:
            return text.Text(text.ByteTokenizer(self.shape.vocab_size), self.shape)
        return text.load(folder, self.shape)


def _not_a_checkpoint(folder: Path, error: Exception) -> InputError:
    return InputError(
        "Cannot load the checkpoint",
        got=f"{folder}: {error}",
        allowed="a folder with config.json and safetensors of OPT or Llama",
        where="model.checkpoint",
    )


def method_weights(model: ModelConfig, method: str, seed: int) -> Weights:
    """The weights that a method's own leg runs.

    Raises:
        InputError: if they are not to be had, or are of another architecture than configured.
    """
    if model.weights == "random":
        shape = model.configured_shape()
        return Weights(None, f"random:{seed}", shape, {}, seed)
    if model.checkpoint is not None:
        folder = Path(model.checkpoint).expanduser().resolve()
    elif model.variants is not None:
        folder = ROOT / model.variants.get(method, model.variants[DENSE])
    elif model.hub_id is not None:
        folder = _from_hub(model)
    else:
        raise InputError(
            f"Model {model.name} has no weights yet",
            got="model.checkpoint=null",
            allowed="a trained folder (python -m bench.train), or model.weights=random",
            where="model.checkpoint",
        )
    return _of_folder(folder, None if model.name == "scratch" else model.configured_shape())


def baseline_weights(
    model: ModelConfig, method: str, meter: MeterConfig, own: Weights, seed: int
) -> Weights:
    """The dense weights that a method is compared with.

    Args:
        model: the run's model.
        method: the run's method.
        meter: ``baseline=own`` takes the method's own weights.
        own: the method's weights.
        seed: of random weights.

    Raises:
        InputError: for a trained checkpoint that names no dense model.
    """
    if meter.baseline == "own":
        return own
    if model.baseline is not None:
        return _named_baseline(model.baseline, seed)
    if model.variants is not None and model.checkpoint is None:
        return method_weights(model, DENSE, seed)
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


def _named_baseline(name: str, seed: int) -> Weights:
    """A baseline given as a folder or as the name of a config."""
    path = ROOT / "conf" / "model" / f"{name}.yaml"
    if not path.exists():
        return _of_folder(Path(name).expanduser().resolve(), None)
    values = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    assert isinstance(values, dict), f"{path} is no mapping"
    known = {field.name for field in fields(ModelConfig)}
    return method_weights(
        ModelConfig(**{str(k): v for k, v in values.items() if k in known}), DENSE, seed
    )


def _of_folder(folder: Path, expected: Shape | None) -> Weights:
    """Weights of a folder, whose architecture must be the expected one."""
    try:
        shape = checkpoint.read_shape(folder)
        checkpoint.weight_files(folder)
    except (checkpoint.CheckpointError, UnsupportedError) as error:
        raise _not_a_checkpoint(folder, error) from error
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
    return Weights(folder, fingerprint(folder), shape, trained, 0)


def fingerprint(folder: Path) -> str:
    """Hash of the hashes of every file that bears on the numbers."""
    total = hashlib.sha256()
    paths = sorted(path for pattern in _FINGERPRINTED for path in folder.glob(pattern))
    for path in paths:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256") if _HAS_DIGEST else _digest(file.read())
        total.update(f"{path.name}:{digest.hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()[:32]}"


# Python 3.10 has no file_digest.
_HAS_DIGEST = hasattr(hashlib, "file_digest")


def _digest(data: bytes) -> Any:  # noqa: ANN401  # hashlib's hash type has no public name
    return hashlib.sha256(data)


def _from_hub(model: ModelConfig) -> Path:
    """Downloads a hub model, or takes it from the local cache."""
    assert model.hub_id is not None
    patterns = ["*.json", "*.safetensors", "*.txt", "*.model"]
    try:
        found = snapshot_download(model.hub_id, revision=model.revision, allow_patterns=patterns)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"Cannot fetch {model.hub_id} from the hub",
            got=str(error).splitlines()[0],
            allowed="a reachable hub (gated models: accept the licence on the model's page and log "
            "in with a token), model.checkpoint=FOLDER, or model.weights=random",
            where="model.checkpoint, model.weights",
        ) from error
    return Path(found)
