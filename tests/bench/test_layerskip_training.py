"""LayerSkip's training pass: dropped rows, exits that share a head, and processes in step."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bench import training as train
from methods.contract import Batch, Progress
from methods.layerskip.method import Method
from methods.layerskip.objective import kept_rows, recipe_loss, weights_at
from methods.layerskip.params import Params

ROOT = Path(__file__).resolve().parents[2]
LAYERS, VOCABULARY = 4, 61
LENGTHS, PROMPTS = [14, 20, 9, 17, 12], [4, 9, 1, 6, 3]
ROWS, EVERY = len(LENGTHS), list(range(len(LENGTHS)))
# All exits at once, and no layer dropped.
PLAIN = Params(
    exit_layer=1,
    max_dropout=0.0,
    dropout_time="constant",
    early_exit_scale=0.5,
    curriculum="all",
)
DROPPING = replace(PLAIN, max_dropout=0.9)


def _mixed():
    """A step at which one layer is dropped by every row, and others by some."""
    for step in range(100):
        kept = kept_rows(DROPPING, LAYERS, ROWS, Progress(step, 100), dropping=True)
        if [] in kept and any(0 < len(rows) < ROWS for rows in kept):
            return Progress(step, 100), kept
    raise AssertionError


MIXED, KEPT = _mixed()


@pytest.fixture
def transformer(shape_name, tiny_transformer):
    return tiny_transformer(shape_name, num_layers=LAYERS).train()


@pytest.fixture
def opt(tiny_transformer):
    return tiny_transformer("an OPT", num_layers=LAYERS).train()


@pytest.fixture
def batch(make_prompts):
    rows = make_prompts(LENGTHS, seed=2)
    padded = torch.tensor([row + [1] * (max(LENGTHS) - len(row)) for row in rows])
    return Batch(padded, torch.tensor(PROMPTS), torch.tensor(LENGTHS))


def gradients(transformer, loss):
    """Of every parameter, by name; None where the loss does not depend on it."""
    transformer.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad for name, parameter in transformer.named_parameters()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-4, rtol=1e-4, msg=name)
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2


def by_hand(transformer, batch, kept, weights):
    """The same loss, row by row; nothing is computed twice."""
    rope, total = transformer.rope(batch.ids.shape[1]), 0.0
    for row in EVERY:
        one = slice(row, row + 1)
        targets = (batch.ids[one], batch.prompt_lengths[one], batch.lengths[one])
        x = transformer.embed(batch.ids[one])
        for layer, block in enumerate(transformer.blocks):
            x = block(x, rope) if row in kept[layer] else x
            total = total + weights.get(layer, 0.0) * transformer.target_loss(x, *targets)
    return total


def test_without_dropout_and_early_exits_it_is_the_dense_objective(transformer, batch, make_method):
    params = replace(PLAIN, early_exit_scale=0.0)
    dense = make_method("dense", transformer.shape).objective(transformer, batch, MIXED).total
    found = recipe_loss(transformer, batch, params, MIXED)
    torch.testing.assert_close(found, dense)
    assert_same(gradients(transformer, found), gradients(transformer, dense))


def test_without_dropout_it_is_the_weighted_loss_of_all_exits(transformer, batch):
    weights = {1: 0.5 / 6.5, 2: 1.5 / 6.5, 3: 4.5 / 6.5}
    expected = by_hand(transformer, batch, [EVERY] * LAYERS, weights)
    found = recipe_loss(transformer, batch, PLAIN, MIXED)
    torch.testing.assert_close(found, expected)
    assert_same(gradients(transformer, found), gradients(transformer, expected))


def test_rows_that_drop_a_layer_pass_it_unchanged_and_unscaled(transformer, batch):
    expected = by_hand(transformer, batch, KEPT, weights_at(DROPPING, LAYERS, MIXED))
    found = recipe_loss(transformer, batch, DROPPING, MIXED)
    torch.testing.assert_close(found, expected)
    got, wanted = gradients(transformer, found), gradients(transformer, expected)
    # A layer that no row ran: by hand it has no gradient, here it has one, zero.
    unseen = {name: gradient for name, gradient in got.items() if wanted[name] is None}
    gone = {f"blocks.{layer}." for layer, rows in enumerate(KEPT) if not rows}
    assert {name for name in got if name.startswith(tuple(gone))} == unseen.keys()
    assert not any(gradient.any() for gradient in unseen.values())
    assert_same(
        {name: gradient for name, gradient in got.items() if name not in unseen},
        {name: gradient for name, gradient in wanted.items() if name not in unseen},
    )


def test_a_layer_of_rate_one_is_as_good_as_removed(shape_name, tiny_transformer, batch):
    transformer = tiny_transformer(shape_name, num_layers=2).train()
    params = replace(PLAIN, max_dropout=1.0)
    with torch.no_grad():
        found = recipe_loss(transformer, batch, params, MIXED)
        x = transformer.blocks[0](transformer.embed(batch.ids), transformer.rope(max(LENGTHS)))
        shorter = transformer.target_loss(x, batch.ids, batch.prompt_lengths, batch.lengths)
        whole = recipe_loss(transformer, batch, PLAIN, MIXED)
    torch.testing.assert_close(found, shorter)
    assert abs(float(whole - found)) > 0.1


def test_dropped_rows_do_not_run(opt, batch):
    seen = []
    for block in opt.blocks:
        block.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape[:2])))
    recipe_loss(opt, batch, DROPPING, MIXED)
    # Of a layer without rows one token stands in, for distributed wrappers.
    assert seen == [(len(rows), max(LENGTHS)) if rows else (1, 1) for rows in KEPT]


def test_outside_training_mode_nothing_is_dropped(opt, batch):
    found = recipe_loss(opt.eval(), batch, DROPPING, MIXED)
    torch.testing.assert_close(found, recipe_loss(opt, batch, PLAIN, MIXED))


def test_layers_that_are_computed_again_drop_the_same_rows(transformer, batch):
    plain = gradients(transformer, recipe_loss(transformer, batch, DROPPING, MIXED))
    sizes = []
    for block in transformer.blocks:
        block.register_forward_pre_hook(lambda _, given: sizes.append(given[0].shape[0]))
    params = replace(DROPPING, checkpoint_layers=True)
    assert_same(gradients(transformer, recipe_loss(transformer, batch, params, MIXED)), plain)
    assert sizes[LAYERS:] == sizes[LAYERS - 1 :: -1]


def test_no_exits_logits_are_held_until_the_way_back(opt, batch):
    targets = sum(LENGTHS) - sum(PROMPTS)

    def held(compute):
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: (shapes.append(tuple(tensor.shape)), tensor)[1], lambda tensor: tensor
        ):
            compute()
        return shapes.count((targets, VOCABULARY))

    assert held(lambda: opt.target_loss(opt.embed(batch.ids), *_targets(batch))) > 0
    assert held(lambda: recipe_loss(opt, batch, PLAIN, MIXED)) == 0


def _targets(batch):
    return batch.ids, batch.prompt_lengths, batch.lengths


def test_mixed_precision_takes_dropped_rows(transformer, batch):
    with torch.autocast("cpu", torch.bfloat16):
        loss = recipe_loss(transformer, batch, DROPPING, MIXED)
    exact = recipe_loss(transformer, batch, DROPPING, MIXED)
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0)
    assert all(gradient.isfinite().all() for gradient in gradients(transformer, loss).values())


@pytest.mark.parametrize("last", [True, False], ids=["always", "in its turn"])
def test_every_parameter_has_a_gradient_at_every_step_of_a_rotation(opt, batch, last):
    params = replace(DROPPING, curriculum="rotational", rotation=4, last_layer=last)
    heads = []
    for step in range(4):
        found = gradients(opt, recipe_loss(opt, batch, params, Progress(step, 4)))
        assert all(gradient is not None for gradient in found.values())
        heads.append(set(weights_at(params, LAYERS, Progress(step, 4))))
    # The exit behind the first layer has no weight.
    assert heads == ([{3}, {1, 3}, {2, 3}, {3}] if last else [{3}, {1}, {2}, {3}])


# ---- whole trainings ----


@pytest.fixture
def training(configured, tiny_model, tmp_path):
    """``training(folder, *overrides)``: a training that drops many layers."""

    def make(folder, *overrides):
        return configured(
            "+method=layerskip",
            *tiny_model,
            "method.max_dropout=0.8",
            "method.rotation=2",
            "task.train_pairs=32",
            "train.steps=4",
            "train.save_every_steps=2",
            "train.batch_size=4",
            "train.warmup_steps=1",
            f"train.output={tmp_path / folder}",
            f"results_dir={tmp_path / 'runs'}",
            *overrides,
        )

    return make


def assert_same_weights(one, other, tolerance=1e-6):
    one, other = (load_file(folder / "model.safetensors") for folder in (one, other))
    worst = max(float((one[name] - other[name]).abs().max()) for name in one)
    assert worst < tolerance


PROCESS = """
import json, pickle, sys
from pathlib import Path
from bench import training
from methods.layerskip import objective

folder = Path(sys.argv[1])
kept_rows, seen = objective.kept_rows, {"dropped": [], "weights": []}

def noted(params, layers, rows, progress, **more):
    kept = kept_rows(params, layers, rows, progress, **more)
    seen["dropped"].append([rows - len(each) for each in kept])
    return kept

class Noted(training.ProgressCallback):
    def on_step_end(self, args, state, control, **kwargs):
        super().on_step_end(args, state, control, **kwargs)
        sums = [p.double().sum().item() for p in self.module.parameters()]
        seen["weights"].append(sums)

objective.kept_rows, training.ProgressCallback = noted, Noted
for config in pickle.loads((folder / "configs.pickle").read_bytes()):
    training.train(config)
rank = training.PartialState().process_index
(folder / f"{rank}.json").write_text(json.dumps(seen))
"""


def test_two_processes_drop_as_much_as_each_other_and_train_as_one(training, call, tmp_path):
    plain = ("method.max_dropout=0", "train.steps=3")
    one = train.train(training("one", *plain, "train.batch_size=8"))
    configs = [training("two", *plain), training("dropping", "train.steps=3")]
    (tmp_path / "configs.pickle").write_bytes(pickle.dumps(configs))
    (tmp_path / "process.py").write_text(PROCESS)
    ended = call(
        *("--nproc-per-node", "2", str(tmp_path / "process.py"), str(tmp_path)),
        module="torch.distributed.run",
        PYTHONPATH=str(ROOT),
    )
    assert ended.code == 0, ended.err
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert [len(first[key]) for key in ("dropped", "weights")] == [6, 6]
    assert first["dropped"][:3] == [[0, 0, 0]] * 3
    assert all(sum(counts) > 0 for counts in first["dropped"][3:])
    assert_same_weights(tmp_path / "two", one)
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "dropping", one, 1e-4)


class KilledError(Exception):
    pass


def test_a_killed_training_drops_what_it_would_have_dropped(training, monkeypatch):
    whole = train.train(training("whole"))

    class Killer(train.ProgressCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise KilledError
            super().on_step_begin(args, state, control, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(train, "ProgressCallback", Killer)
        with pytest.raises(KilledError):
            train.train(training("killed"))
    assert_same_weights(train.train(training("killed")), whole)


def test_micro_batches_of_a_step_are_told_apart(training, monkeypatch):
    heard, objective = [], Method.objective

    def listen(self, model, batch, progress):
        heard.append(progress)
        return objective(self, model, batch, progress)

    monkeypatch.setattr(Method, "objective", listen)
    train.train(training("out", "train.steps=2", "train.accumulate=2", "train.seed=5"))
    assert heard == [Progress(step, 2, micro, seed=5) for step in (0, 1) for micro in (0, 1)]
