"""Where the result of a training goes, whether it is there already, and what else lies there.

Apart, and free of torch, because a folder with something else in it must not be touched, and a
training that is done is told, before anything is loaded. A model is a folder of its own; a
companion is a file in the folder of the checkpoint that it belongs to, whose other files stay as
they are. Not here: the loop, and what is saved (``training.py``).
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import companion
from bench.config import RunConfig
from bench.errors import InputError
from bench.identity import digest
from bench.weights import TRAINED_FILE, Weights, method_weights
from methods.contract import CompanionStage
from methods.registry import find_params

# Within a folder of the training's own: the Trainer's checkpoints.
_WORK = "trainer"


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """A trained model.

    Attributes:
        path: its folder.
        training_id: of the training that makes it.
    """

    path: Path
    training_id: str

    @property
    def work(self) -> Path:
        """The Trainer's checkpoints, while training."""
        return self.path / _WORK

    def begin(self, *, rerun: bool) -> bool:
        """Makes or takes up the folder; False if this very training is done.

        Raises:
            InputError: if the folder holds something else.
        """
        mark = self.work / "training_id"
        if rerun:
            shutil.rmtree(self.path, ignore_errors=True)
        done = self.path / TRAINED_FILE
        found = json.loads(done.read_text("utf-8")).get("id") if done.exists() else None
        if found is None and mark.exists():
            found = mark.read_text("utf-8")
        if found == self.training_id and done.exists():
            return False
        if found != self.training_id and self.path.exists() and any(self.path.iterdir()):
            raise InputError(
                "The output folder holds something else",
                got=f"{self.path} (training {found})",
                allowed=f"an empty folder, or training {self.training_id}; "
                "rerun=true deletes what is there",
                where="train.output",
            )
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(self.training_id, encoding="utf-8")
        return True

    def clean(self) -> None:
        """Removes what served to resume; the folder is then a model like any other."""
        shutil.rmtree(self.work)


@dataclass(frozen=True, slots=True)
class CompanionOutput:
    """A trained companion.

    Attributes:
        path: its file, in the folder of the checkpoint.
        training_id: of the training that makes it.
        weights: those it is trained on.
        folder: of the training's own, elsewhere, while training.
    """

    path: Path
    training_id: str
    weights: Weights
    folder: Path

    @property
    def work(self) -> Path:
        """The Trainer's checkpoints, while training."""
        return self.folder / _WORK

    def begin(self, *, rerun: bool) -> bool:
        """Makes or takes up the training's folder; False if this very training is done.

        Raises:
            InputError: if another training's companion is there.
        """
        if rerun:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.path.unlink(missing_ok=True)
        found = companion.about(self.path)
        if found is not None and found.get(companion.TRAINING) != self.training_id:
            raise InputError(
                "The checkpoint has a companion of another training",
                got=f"{self.path} (training {found.get(companion.TRAINING)})",
                allowed=f"none, or that of training {self.training_id}; rerun=true replaces it",
                where="model.checkpoint",
            )
        if found is None:
            self.work.mkdir(parents=True, exist_ok=True)
        return found is None

    def clean(self) -> None:
        """Removes what served to resume."""
        shutil.rmtree(self.folder)


Output = ModelOutput | CompanionOutput


def output_of(config: RunConfig) -> Output:
    """Where the result goes.

    Raises:
        InputError: for a companion whose checkpoint is no folder that can be written.
    """
    stage = find_params(config.method.name).ABILITIES.companion_stage
    if stage is not None and getattr(config.method.params, stage.setting) == stage.value:
        return _companion_output(config, stage)
    return ModelOutput(output_folder(config), training_id(config))


def training_id(config: RunConfig) -> str:
    """A hash of all that makes the trained weights."""
    return digest(
        {
            "method": {"name": config.method.name} | asdict(config.method.params),
            "model": asdict(config.model),
            "task": asdict(config.task),
            "train": asdict(config.train) | {"output": None},
        }
    )


def output_folder(config: RunConfig) -> Path:
    """Where the trained model goes: as named, or by its id."""
    if config.train.output is not None:
        return Path(config.train.output).expanduser().resolve()
    return _checkpoints(config) / f"{config.method.name}-{config.task.name}-{training_id(config)}"


def trained_settings(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of a method's settings that bear on its training."""
    bearing = find_params(method).ABILITIES.trained_settings
    return {k: v for k, v in settings.items() if bearing is None or k in bearing}


def _companion_output(config: RunConfig, stage: CompanionStage) -> CompanionOutput:
    name, model = stage.companion, config.model
    if model.checkpoint is None or model.weights != "checkpoint":
        raise InputError(
            f"The {name} is trained on a checkpoint and saved into its folder",
            got=f"model={model.name}, model.checkpoint={model.checkpoint}, "
            f"model.weights={model.weights}",
            allowed="model.checkpoint=FOLDER",
            where="model.checkpoint",
        )
    if config.train.output is not None:
        raise InputError(
            f"The {name} goes where its checkpoint is",
            got=f"train.output={config.train.output}",
            allowed=f"train.output=null: {companion.path_of(Path(model.checkpoint), name)}",
            where="train.output",
        )
    weights = method_weights(model, config.method.name, config.seed)
    folder = Path(model.checkpoint).expanduser().resolve()
    if not os.access(folder, os.W_OK):
        raise InputError(
            f"The {name} cannot be saved",
            got=f"{folder}, which cannot be written",
            allowed="a folder that can be written, such as a copy",
            where="model.checkpoint",
        )
    settings = trained_settings(config.method.name, asdict(config.method.params))
    made_of = {
        "companion": name,
        "method": {"name": config.method.name} | settings,
        # Wherever they lie.
        "weights": weights.fingerprint,
        "tokenizer": model.tokenizer,
        "task": asdict(config.task),
        "train": asdict(config.train),
    }
    training = digest(made_of)
    work = _checkpoints(config) / f"{config.method.name}-{name}-{config.task.name}-{training}"
    return CompanionOutput(companion.path_of(folder, name), training, weights, work)


def _checkpoints(config: RunConfig) -> Path:
    return Path(config.results_dir).resolve().parent / "checkpoints"
