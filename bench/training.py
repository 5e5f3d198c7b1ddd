"""Trains a model under a method's own objective.

On the Hugging Face Trainer: checkpoints, resume, distributed processes and accumulation are its.
What is ours: tokenising a task, the objective, and what is saved: a folder in hub format with
``skipbench.json`` beside the weights, or the companion of a checkpoint. Not here: objectives
(``methods/<name>/objective.py``), where the result goes (``training_output.py``).
"""

import json
import os.path
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState  # type: ignore[import-untyped]  # ships no types
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from bench import companion, disk, lookup, models, text
from bench.config import RunConfig
from bench.errors import InputError
from bench.examples import Tokens, schedule_lengths, tokenise
from bench.progress import Progress
from bench.training_module import TrainingModule
from bench.training_output import (
    CompanionOutput,
    Output,
    output_of,
    trained_settings,
)
from bench.weights import TRAINED_FILE, method_weights
from methods import contract
from methods.engine import checkpoint
from methods.engine.transformer import Transformer
from methods.registry import find_method, find_params

IGNORED = -100


class TokenData(Dataset[dict[str, Any]]):
    """Tokenised examples, as the Trainer takes them."""

    def __init__(self, examples: Sequence[Tokens]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = self.examples[index]
        return {"input_ids": example.ids, "prompt_length": example.prompt_length}


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Right-pads rows; ``labels`` serve only to count the target tokens of a step."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor(
        [[*row["input_ids"], *[0] * (longest - len(row["input_ids"]))] for row in rows]
    )
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    prompts = torch.tensor([row["prompt_length"] for row in rows])
    at = torch.arange(longest)
    judged = (at >= prompts[:, None]) & (at < lengths[:, None])
    return {
        "input_ids": ids,
        "prompt_lengths": prompts,
        "lengths": lengths,
        "labels": torch.where(judged, ids, IGNORED),
    }


class MethodTrainer(Trainer):
    """The Trainer with a method's loss, exact under accumulation and several processes."""

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Sum over target tokens / target tokens of the whole step over all processes."""
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
        loss: Tensor = model(**inputs, num_items_in_batch=num_items_in_batch)
        # Distributed gradients are averaged over processes, but the tokens were counted over all.
        scaled: Tensor = loss * self.accelerator.num_processes
        return scaled


class ProgressCallback(TrainerCallback):
    """Tells the objective where training is, and shows it."""

    def __init__(self, module: TrainingModule, progress: Progress) -> None:
        self.module, self.progress = module, progress

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401  # the Trainer's hook
        """Sets the step."""
        done, steps = state.global_step, state.max_steps
        self.module.progress = contract.Progress(done, steps, seed=args.seed)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401  # the Trainer's hook
        """Moves the bar."""
        self.progress.to(state.global_step)

    def on_log(
        self,
        args: Any,  # noqa: ANN401  # the Trainer's hook
        state: Any,  # noqa: ANN401
        control: Any,  # noqa: ANN401
        logs: dict[str, float] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Shows the loss per target token."""
        if logs and "loss" in logs:
            self.progress.note(f"loss {float(logs['loss']):.4f}")


def train(config: RunConfig) -> Path:
    """Trains, saves, and returns the folder of the model, or the file of the companion.

    Raises:
        InputError: for a method without objective, a task without training data, texts too long.
    """
    if not find_params(config.method.name).ABILITIES.trains:
        raise InputError(
            f"Method {config.method.name} has no training objective",
            got=config.method.name,
            allowed="a method that trains",
            where="+method=NAME",
        )
    output = output_of(config)
    # Of several processes the first one makes the folder, and it alone writes the result.
    with PartialState(cpu=config.gpu.is_cpu).main_process_first():
        begun = output.begin(rerun=config.rerun)
    if not begun:
        sys.stderr.write(f"already trained: {output.path} (rerun=true trains again)\n")
        return output.path
    task = lookup.find("bench.tasks", config.task.name, "task").Task(config.task.params)
    transformer, words, base = _starting_point(config, task)
    examples = tokenise(task, words, transformer.shape.max_positions)
    lengths = schedule_lengths(examples)
    schedule_length = lengths[getattr(config.method.params, "clock", "generated")]
    params = _resolved(config, transformer, schedule_length)
    method = find_method(config.method.name).Method(params, transformer.shape)
    module = TrainingModule(transformer, method)
    if not _fit(config, module, TokenData(examples), output.work):
        return output.path
    about = {
        "id": output.training_id,
        "method": config.method.name,
        "settings": asdict(params),
        "schedule_length": getattr(params, "schedule_length", schedule_length),
        "task": config.task.name,
        "base": base and {**base, "folder": os.path.relpath(base["folder"], output.path)},
        "train": asdict(config.train) | {"output": None},
    }
    if isinstance(output, CompanionOutput):
        _save_companion(output, module, about)
    else:
        _save_model(output, transformer, words, about, config.train.save_dtype)
    output.clean()
    return output.path


def _resolved(config: RunConfig, transformer: Transformer, schedule_length: int) -> Any:  # noqa: ANN401  # each method has its own type
    """The method's complete settings."""
    module = find_params(config.method.name)
    try:
        return module.resolve(
            config.method.params, transformer.shape, {"schedule_length": schedule_length}
        )
    except ValueError as error:
        raise InputError(
            "The method does not fit the model", got=error, allowed="see got", where="method"
        ) from error


def _save_model(
    output: Output, transformer: Transformer, words: text.Text, about: dict[str, Any], dtype: str
) -> None:
    checkpoint.save(transformer, output.path, getattr(torch, dtype))
    words.tokenizer.save_pretrained(str(output.path))
    path = output.path / TRAINED_FILE
    path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _save_companion(output: CompanionOutput, module: TrainingModule, about: dict[str, Any]) -> None:
    """Its tensors, with what they are and of which weights; the other files stay as they are."""
    settings = trained_settings(about["method"], about["settings"])
    known = {
        companion.FINGERPRINT: output.weights.fingerprint,
        companion.TRAINING: output.training_id,
        "method": about["method"],
        "settings": json.dumps(settings),
        "task": about["task"],
        "train": json.dumps(about["train"]),
    }
    part = output.path.with_suffix(disk.PART)
    part.write_bytes(save(module.companion_tensors(), known))
    part.replace(output.path)


def _starting_point(
    config: RunConfig,
    task: Any,  # noqa: ANN401  # a task module's class
) -> tuple[Transformer, text.Text, dict[str, str] | None]:
    """Weights and tokenizer to start from, and what they are (None: from scratch)."""
    model = config.model
    if model.name == "scratch" and model.checkpoint is None:
        shape = model.configured_shape()
        pairs = task.training_pairs()
        tokenizer = text.train_tokenizer(
            (part for pair in pairs for part in (pair.prompt, pair.target)), shape
        )
        transformer = Transformer(shape).initialise(config.train.seed)
        return transformer, text.Text(tokenizer, shape), None
    weights = method_weights(model, config.method.name, config.seed)
    transformer = models.load(weights, torch.float32)
    base = None
    if weights.folder is not None:
        base = {"folder": str(weights.folder), "fingerprint": weights.fingerprint}
    return transformer, models.text_of(weights, model.tokenizer), base


def _fit(config: RunConfig, module: TrainingModule, data: TokenData, work: Path) -> bool:
    """Runs the Trainer, from its last checkpoint if there is one; True in the first process."""
    settings = config.train
    set_seed(settings.seed)
    arguments = TrainingArguments(
        output_dir=str(work),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.lr,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        save_steps=settings.save_every_steps,
        save_total_limit=1,
        logging_steps=max(1, min(50, settings.steps // 10)),
        seed=settings.seed,
        bf16=settings.dtype == "bfloat16",
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
        use_cpu=config.gpu.is_cpu,
    )
    last = get_last_checkpoint(str(work)) if work.is_dir() else None  # type: ignore[no-untyped-call]  # the library leaves it untyped
    with Progress(f"training {config.method.name}", settings.steps) as progress:
        trainer = MethodTrainer(
            model=module,
            args=arguments,
            train_dataset=data,
            data_collator=collate,
            callbacks=[ProgressCallback(module, progress)],
        )
        # Our progress says the same on one line.
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=last)
    trainer.accelerator.wait_for_everyone()
    return trainer.is_world_process_zero()
