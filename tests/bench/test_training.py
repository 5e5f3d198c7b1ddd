"""Training: the same gradients however a step is divided, resume, and what is left behind."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench import text, training_output
from bench import training as train
from bench.errors import InputError
from bench.examples import Tokens, schedule_lengths
from bench.fingerprint import fingerprint
from bench.tasks import demo
from bench.training_module import TrainingModule
from methods.engine import checkpoint

OPT, LLAMA = "an OPT", "a Llama with grouped heads"
METHODS = ["dense", "skipdecode"]
STEPS, SAVED_AT = 6, 3
ROOT = Path(__file__).resolve().parents[2]
EOS = 2


def example(prompt, target, seed):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 61, (prompt + target - 2,), generator=draw).tolist()
    return {"input_ids": (EOS, *ids, EOS), "prompt_length": prompt}


# Rows of unequal prompt and target; the two halves have 3 + 20 and 9 + 2 + 6 target tokens.
ROWS = [example(*row) for row in [(4, 3, 0), (2, 20, 1), (11, 9, 2), (3, 2, 3), (1, 6, 4)]]
HALVES = [ROWS[:2], ROWS[2:]]
ALL_TARGETS = 40


@pytest.fixture
def training_module(tiny_transformer, make_method):
    """``training_module(method, shape)``: always the same weights."""

    def make(name, shape=OPT):
        transformer = tiny_transformer(shape, seed=5).train()
        return TrainingModule(transformer, make_method(name, transformer.shape))

    return make


def loss_of(module, rows, items, processes=1):
    """The loss as the Trainer's step has it."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(num_processes=processes))
    return train.MethodTrainer.compute_loss(
        trainer, module, train.collate(rows), num_items_in_batch=torch.tensor(items)
    )


def gradients(module):
    return {name: p.grad for name, p in module.transformer.named_parameters()}


def assert_close(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    worst = {name: float((found[name] - expected[name]).abs().max()) for name in expected}
    assert max(worst.values()) < tolerance, worst


def test_collate_judges_exactly_the_targets():
    batch = train.collate(ROWS)
    assert batch["input_ids"].shape == (5, 22)
    judged = (batch["labels"] != train.IGNORED).sum(dim=1).tolist()
    assert judged == [len(row["input_ids"]) - row["prompt_length"] for row in ROWS]
    assert sum(judged) == ALL_TARGETS
    first = ROWS[0]["input_ids"]
    assert batch["labels"][0, 4:7].tolist() == list(first[4:])


def test_the_loss_is_the_mean_over_target_tokens(training_module):
    module = training_module("dense")
    loss = module(**{k: v for k, v in train.collate(ROWS).items() if k != "labels"})
    by_hand = 0.0
    for row in ROWS:
        ids = torch.tensor([row["input_ids"]])
        log_probs = module.transformer(ids).log_softmax(-1)[0, row["prompt_length"] - 1 : -1]
        by_hand -= log_probs.gather(1, ids[0, row["prompt_length"] :, None]).sum()
    assert float(loss.detach()) == pytest.approx(float(by_hand.detach()) / ALL_TARGETS, rel=1e-5)


@pytest.mark.parametrize("shape", [OPT, LLAMA])
@pytest.mark.parametrize("name", METHODS)
def test_accumulated_halves_of_unequal_rows_are_one_large_batch(name, shape, training_module):
    whole, halved = training_module(name, shape), training_module(name, shape)
    loss_of(whole, ROWS, ALL_TARGETS).backward()
    for half in HALVES:
        loss_of(halved, half, ALL_TARGETS).backward()
    assert_close(gradients(halved), gradients(whole))
    assert max(float(grad.abs().max()) for grad in gradients(whole).values()) > 1e-3


PROCESS = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.bench import test_training as tests

folder, rank = sys.argv[1], int(sys.argv[2])
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
modules = torch.load(folder + "/modules.pt", weights_only=False)
for module in modules.values():
    wrapped = DistributedDataParallel(module)
    tests.loss_of(wrapped, tests.HALVES[rank], tests.ALL_TARGETS, processes=2).backward()
if rank == 1:
    found = {name: tests.gradients(module) for name, module in modules.items()}
    torch.save(found, folder + "/gradients.pt")
dist.barrier()
dist.destroy_process_group()
"""


def test_two_processes_have_the_gradients_of_one(training_module, tmp_path):
    modules = {name: training_module(name) for name in METHODS}
    torch.save(modules, tmp_path / "modules.pt")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path), str(rank)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    for name, module in modules.items():
        loss_of(module, ROWS, ALL_TARGETS).backward()
        assert_close(found[name], gradients(module))


# ---- whole trainings ----


@pytest.fixture
def training(configured, tiny_model, tmp_path):
    """``training(method, folder, *overrides)``: a training of six steps of four examples."""

    def make(method, folder, *overrides):
        return configured(
            f"+method={method}",
            *tiny_model,
            "task.train_pairs=32",
            f"train.steps={STEPS}",
            f"train.save_every_steps={SAVED_AT}",
            "train.batch_size=4",
            "train.warmup_steps=1",
            f"train.output={tmp_path / folder}",
            f"results_dir={tmp_path / 'runs'}",
            *overrides,
        )

    return make


@pytest.fixture
def steps(monkeypatch):
    """The optimiser steps that were made, as they come."""
    made = []

    class Noted(train.ProgressCallback):
        def on_step_end(self, args, state, control, **kwargs):
            super().on_step_end(args, state, control, **kwargs)
            made.append(state.global_step)

    monkeypatch.setattr(train, "ProgressCallback", Noted)
    return made


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same_weights(one, other, tolerance=1e-6):
    assert_close(weights(one), weights(other), tolerance)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_may_be_accumulated(name, training):
    short = ("train.steps=2",)
    whole = train.train(training(name, "whole", "train.batch_size=8", *short))
    parts = train.train(training(name, "parts", "train.accumulate=2", *short))
    assert_same_weights(parts, whole)
    start = train.train(training(name, "start", "train.batch_size=8", "train.steps=1"))
    with pytest.raises(AssertionError):
        assert_same_weights(start, whole, 1e-4)


def test_two_processes_train_as_one_with_twice_the_batch(training, call, tiny_model):
    name = "skipdecode"
    config = training(name, "one", "train.batch_size=8", "train.steps=2")
    one = train.train(config)
    two = one.with_name("two")
    ended = call(
        *("--nproc-per-node", "2", "-m", "bench.train"),
        f"+method={name}",
        *tiny_model,
        *("task.train_pairs=32", "train.steps=2", "train.batch_size=4", "train.warmup_steps=1"),
        f"train.save_every_steps={SAVED_AT}",
        f"train.output={two}",
        f"results_dir={config.results_dir}",
        module="torch.distributed.run",
    )
    assert ended.code == 0, ended.err
    assert_same_weights(two, one)
    assert sorted(path.name for path in two.iterdir()) == sorted(p.name for p in one.iterdir())


class KilledError(Exception):
    pass


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_training_goes_on_from_its_checkpoint(name, training, steps, monkeypatch):
    whole = train.train(training(name, "whole"))
    assert steps == list(range(1, STEPS + 1))
    steps.clear()

    class Killer(train.ProgressCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == SAVED_AT + 1:
                raise KilledError
            super().on_step_begin(args, state, control, **kwargs)

    config = training(name, "killed")
    with monkeypatch.context() as patch:
        patch.setattr(train, "ProgressCallback", Killer)
        with pytest.raises(KilledError):
            train.train(config)
    assert steps == list(range(1, SAVED_AT + 2))
    steps.clear()
    killed = train.train(config)
    assert steps == list(range(SAVED_AT + 1, STEPS + 1))
    assert_same_weights(killed, whole)
    assert sorted(path.name for path in killed.iterdir()) == sorted(
        path.name for path in whole.iterdir()
    )


def test_the_objective_hears_how_far_training_is(training, monkeypatch):
    heard = []
    objective = train.find_method("dense").Method.objective

    def listen(self, model, batch, progress):
        heard.append(progress)
        return objective(self, model, batch, progress)

    monkeypatch.setattr(train.find_method("dense").Method, "objective", listen)
    train.train(training("dense", "out", "train.steps=4"))
    assert [(at.step, at.steps) for at in heard] == [(0, 4), (1, 4), (2, 4), (3, 4)]


@pytest.fixture
def trained(training):
    return train.train(training("skipdecode", "out", "method.preset=1.5x", "train.steps=2"))


def test_a_trained_folder_is_a_checkpoint_that_transformers_opens(trained):
    theirs = AutoModelForCausalLM.from_pretrained(trained).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained)
    ours = checkpoint.load(trained)
    words = text.load(trained, ours.shape)
    ids = words.prompt("name[Alder Hut], beds[8]\n")
    assert ids[0] == tokenizer.bos_token_id == theirs.config.bos_token_id == EOS
    assert tokenizer.decode(ids[1:]) == "name[Alder Hut], beds[8]\n"
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits
        torch.testing.assert_close(ours(torch.tensor([ids])), expected, atol=1e-5, rtol=0)
    assert sorted(path.name for path in trained.iterdir()) == [
        "config.json",
        "model.safetensors",
        "skipbench.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def target_lengths(folder):
    words = text.load(folder, checkpoint.read_shape(folder))
    pairs = demo.Task(demo.Params(32)).training_pairs()
    return [len(words.target(pair.target)) for pair in pairs]


def test_a_trained_folder_says_what_it_is(trained, training):
    config = training("skipdecode", "out", "method.preset=1.5x", "train.steps=2")
    about = json.loads((trained / "skipbench.json").read_text())
    assert about["id"] == training_output.training_id(config)
    assert about["method"] == "skipdecode"
    assert about["task"] == "demo"
    assert about["base"] is None
    assert about["train"]["steps"] == 2
    assert about["train"]["output"] is None
    assert about["settings"]["preset"] == "1.5x"
    # Of three layers at 1.5x: mean 2.
    assert (about["settings"]["max_layers"], about["settings"]["min_layers"]) == (2, 2)
    median = round(statistics.median(target_lengths(trained)))
    assert about["schedule_length"] == about["settings"]["schedule_length"] == median


def test_a_given_schedule_length_is_what_the_weights_are_for(training):
    folder = train.train(training("skipdecode", "out", "method.schedule_length=7"))
    about = json.loads((folder / "skipbench.json").read_text())
    assert about["schedule_length"] == about["settings"]["schedule_length"] == 7


def test_schedule_length_is_the_median_with_eos():
    examples = [
        Tokens((2, 5, 5, 7, 2), 3),
        Tokens((2, 7, 7, 2), 1),
        Tokens((2, 5, 5, 5, 5, 7, 7, 7, 2), 5),
    ]
    # Targets of 2, 3 and 4 tokens, EOS included; whole texts of 5, 4 and 9.
    assert schedule_lengths(examples) == {"generated": 3, "position": 5}


def test_the_same_training_again_does_nothing(trained, training, steps, capsys):
    before = {path: path.stat().st_mtime_ns for path in trained.iterdir()}
    again = train.train(training("skipdecode", "out", "method.preset=1.5x", "train.steps=2"))
    assert again == trained
    assert steps == []
    assert "already trained" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in trained.iterdir()} == before


def test_another_training_in_the_same_folder_is_refused(trained, training, steps):
    with pytest.raises(InputError, match="holds something else") as caught:
        train.train(training("skipdecode", "out", "train.steps=2"))
    assert caught.value.where == "train.output"
    assert steps == []


def test_a_folder_of_other_things_is_not_touched(training, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds something else"):
        train.train(training("dense", "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_a_second_training_starts_from_the_first_and_names_it(trained, training):
    settings = ("model.checkpoint=" + str(trained), "train.steps=1", "train.lr=1e-6")
    folder = train.train(training("dense", "next", *settings))
    base = json.loads((folder / "skipbench.json").read_text())["base"]
    assert (folder / base["folder"]).resolve() == trained
    assert base["fingerprint"] == fingerprint(trained, [trained / "model.safetensors"])
    assert_same_weights(folder, trained, 1e-4)


def test_the_default_folder_bears_the_trainings_id(training):
    config = training("dense", "out", "train.output=null")
    folder = training_output.output_folder(config)
    assert folder.name == f"dense-demo-{training_output.training_id(config)}"
    assert folder.parent.name == "checkpoints"


def test_where_it_is_saved_is_no_part_of_the_id(training):
    ids = {training_output.training_id(training("dense", folder)) for folder in ("a", "b")}
    assert len(ids) == 1
    assert training_output.training_id(training("dense", "a", "train.seed=1")) not in ids


def test_texts_that_do_not_fit_are_refused(training):
    with pytest.raises(InputError, match="texts have more than 64 tokens"):
        train.train(training("dense", "out", "model.shape.max_positions=64"))
