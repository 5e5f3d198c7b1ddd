"""A companion is trained on frozen weights, lies beside them, and fits no others."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench import companion, legs, training_output
from bench import training as train
from bench.errors import InputError
from bench.planning import plan
from bench.preparation import prepare
from bench.training_module import TrainingModule
from bench.weights import method_weights
from methods.engine.confidence import CLASSIFIER_FILE

CALM, STAGE, ASKED = "+method=calm", "method.stage=classifier", "method.measure=classifier"
STEPS, SAVED_AT = 6, 3


@pytest.fixture(scope="module")
def backbone(configured, tiny_model, tmp_path_factory):
    """A folder of trained weights without a companion."""
    folder = tmp_path_factory.mktemp("backbone")
    return train.train(
        configured(
            CALM,
            *tiny_model,
            *("task.train_pairs=8", "train.steps=1", "train.batch_size=4", "train.warmup_steps=1"),
            f"train.output={folder / 'calm'}",
            f"results_dir={folder / 'runs'}",
        )
    )


@pytest.fixture
def folder(backbone, tmp_path):
    """A copy of it that a test may change."""
    return Path(shutil.copytree(backbone, tmp_path / "calm"))


@pytest.fixture
def training(configured, tmp_path):
    """``training(folder, *overrides)``: six steps of the second stage."""

    def make(folder, *overrides):
        return configured(
            *(CALM, STAGE, "model=scratch", "gpu=cpu", f"model.checkpoint={folder}"),
            *("task.train_pairs=32", "train.batch_size=4", "train.warmup_steps=1"),
            *("train.lr=0.1", f"train.steps={STEPS}", f"train.save_every_steps={SAVED_AT}"),
            f"results_dir={tmp_path / 'runs'}",
            *overrides,
        )

    return make


@pytest.fixture
def running(configured, tmp_path):
    """``running(folder, *overrides)``: a run that asks the classifier."""
    given = (CALM, ASKED, "model=scratch", "gpu=cpu", "meter.baseline=own", "task.limit=2")
    where = f"results_dir={tmp_path / 'runs'}"
    return lambda folder, *more: configured(*given, f"model.checkpoint={folder}", where, *more)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(config, work=plan):
    with pytest.raises(InputError) as caught:
        work(config)
    return caught.value


# ---- training it ----


def test_it_is_saved_beside_the_weights_and_says_what_it_is(folder, training, tmp_path):
    before, config = contents(folder), training(folder)
    weights = method_weights(config.model, "calm", 0)
    path = train.train(config)
    assert path == folder / CLASSIFIER_FILE
    after = contents(folder)
    assert after.pop(CLASSIFIER_FILE)
    assert after == before
    known = companion.about(path)
    assert known["fingerprint"] == weights.fingerprint
    assert (known["method"], known["task"]) == ("calm", "demo")
    assert json.loads(known["train"])["steps"] == STEPS
    # The weights know nothing of it.
    assert method_weights(config.model, "calm", 0).fingerprint == weights.fingerprint
    tensors = load_file(path)
    assert {name: tuple(each.shape) for name, each in tensors.items()} == {
        "weight": (16,),
        "bias": (),
    }
    assert tensors["weight"].abs().max() > 1e-3
    # What served to resume is gone.
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_backbone_is_frozen_and_not_in_training_mode(tiny_transformer, make_method):
    transformer = tiny_transformer("an OPT").train()
    method = make_method("calm", transformer.shape, stage="classifier")
    module = TrainingModule(transformer, method).train()
    learning = [name for name, each in module.named_parameters() if each.requires_grad]
    assert learning == ["companion.linear.weight", "companion.linear.bias"]
    assert module.training
    assert not transformer.training
    whole = TrainingModule(transformer, make_method("calm", transformer.shape)).train()
    assert whole.companion is None
    assert transformer.training
    assert whole.companion_tensors() == {}


class KilledError(Exception):
    pass


def test_a_killed_one_goes_on_from_its_checkpoint(
    folder, training, tmp_path, monkeypatch, backbone
):
    whole = train.train(training(shutil.copytree(backbone, tmp_path / "whole")))
    steps = []

    class Killer(train.ProgressCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == SAVED_AT + 1:
                raise KilledError
            super().on_step_begin(args, state, control, **kwargs)

    class Noted(train.ProgressCallback):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)

    monkeypatch.setattr(train, "ProgressCallback", Killer)
    with pytest.raises(KilledError):
        train.train(training(folder))
    assert not (folder / CLASSIFIER_FILE).exists()
    monkeypatch.setattr(train, "ProgressCallback", Noted)
    killed = train.train(training(folder))
    assert steps == list(range(SAVED_AT + 1, STEPS + 1))
    torch.testing.assert_close(load_file(killed), load_file(whole), atol=1e-6, rtol=0)


def test_one_that_is_done_is_told_and_another_is_refused(folder, training, capsys):
    path = train.train(training(folder))
    written = path.read_bytes()
    capsys.readouterr()
    # How it will be asked bears on nothing that is trained.
    assert train.train(training(folder, "method.threshold=0.5", ASKED)) == path
    assert "already trained" in capsys.readouterr().err
    assert path.read_bytes() == written
    error = refusal(training(folder, "train.seed=1"), train.train)
    assert "another training" in error.failed
    assert "rerun=true" in error.allowed
    assert path.read_bytes() == written
    train.train(training(folder, "train.seed=1", "rerun=true"))
    assert path.read_bytes() != written


def test_the_training_is_named_by_the_weights_and_not_by_their_place(folder, training, tmp_path):
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    one, two = (training_output.output_of(training(each)) for each in (folder, moved))
    assert one.training_id == two.training_id
    assert (one.path, two.path) == (folder / CLASSIFIER_FILE, moved / CLASSIFIER_FILE)
    other_task = training_output.output_of(training(folder, "task.train_pairs=8"))
    assert other_task.training_id != one.training_id


WITHOUT_FOLDER = {
    "an embedded model": ("model=tiny", "model.checkpoint=null"),
    "a model of the hub": ("model=opt125m", "model.checkpoint=null"),
    "random weights": ("model=tiny", "model.weights=random"),
}


@pytest.mark.parametrize("name", WITHOUT_FOLDER)
def test_without_a_folder_of_the_users_own_it_is_not_trained(name, folder, training, tmp_path):
    error = refusal(training(folder, *WITHOUT_FOLDER[name]), train.train)
    assert "exit_classifier is trained on a checkpoint" in error.failed
    assert "model=" in error.got
    assert error.allowed == "model.checkpoint=FOLDER"
    assert not (tmp_path / "checkpoints").exists()


def test_it_goes_nowhere_else(folder, training, tmp_path):
    error = refusal(training(folder, f"train.output={tmp_path / 'out'}"), train.train)
    assert error.where == "train.output"
    assert not (tmp_path / "out").exists()


# ---- asking it ----


def classifier(folder, fingerprint, bias=0.0):
    tensors = {"weight": torch.zeros(16), "bias": torch.tensor(bias)}
    save_file(tensors, folder / CLASSIFIER_FILE, {"fingerprint": fingerprint, "id": "x"})


def test_a_missing_one_is_refused_with_what_trains_it(folder, running):
    error = refusal(running(folder))
    assert str(folder / CLASSIFIER_FILE) in error.got
    assert f"bench.train +method=calm {STAGE} model.checkpoint={folder}" in error.allowed


def test_random_weights_have_none(running, tiny_model):
    error = refusal(running("null", *tiny_model, "model.weights=random"))
    assert "random weights" in error.got


def test_that_of_other_weights_is_refused_with_both(folder, running):
    classifier(folder, "sha256:of-another")
    error = refusal(running(folder))
    assert "sha256:of-another" in error.got
    own = method_weights(running(folder).model, "calm", 0)
    assert own.fingerprint in error.allowed
    assert "rerun=true" in error.allowed


def test_a_file_that_is_none_is_refused(folder, running):
    (folder / CLASSIFIER_FILE).write_bytes(b"not a file of tensors")
    error = refusal(running(folder))
    assert str(folder / CLASSIFIER_FILE) in error.got


def test_it_bears_on_the_runs_id(folder, running):
    fingerprint = method_weights(running(folder).model, "calm", 0).fingerprint
    planned = []
    for bias in (0.0, 1.0):
        classifier(folder, fingerprint, bias)
        planned.append(plan(running(folder)))
    ids = {each.run_id for each in planned}
    assert len(ids) == 2
    assert planned[0].identity["weights"]["companion"].startswith("sha256:")
    without = plan(running(folder, "method.measure=softmax"))
    assert "companion" not in without.identity["weights"]


@pytest.mark.parametrize(("bias", "layers"), [(9.0, 1), (-9.0, 3)])
def test_a_run_asks_the_one_beside_its_weights(bias, layers, folder, running, drive):
    config = running(folder, "method.threshold=0.5")
    classifier(folder, method_weights(config.model, "calm", 0).fingerprint, bias)
    runner = legs.runners(prepare(plan(config)))["method"]
    decoded = drive(runner.method, runner.model, [[2, 5, 7]], 3)
    assert [int(each.layers_run[0, 0]) for each in decoded.rounds[1:]] == [layers, layers]


# ---- which settings the weights were trained for ----


def test_settings_of_the_exit_rule_are_none_that_weights_are_trained_for():
    assert training_output.trained_settings("calm", {"threshold": 0.9, "stage": "backbone"}) == {}
    of_recipe = training_output.trained_settings("layerskip", {"exit_layer": 2, "rotation": 4})
    assert of_recipe == {"rotation": 4}
    of_schedule = {"max_layers": 8, "schedule_length": 40}
    assert training_output.trained_settings("skipdecode", of_schedule) == of_schedule
