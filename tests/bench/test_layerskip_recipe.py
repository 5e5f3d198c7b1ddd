"""LayerSkip's recipe as numbers: rates, weights, curricula, the published rows, and settings."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from methods.contract import Progress
from methods.layerskip.objective import kept_rows
from methods.layerskip.params import Params, resolve
from methods.layerskip.recipe import (
    PUBLISHED,
    dropout_rates,
    enabled_layers,
    loss_scales,
    loss_weights,
    time_scale,
)

CONF = Path(__file__).resolve().parents[2] / "conf" / "train"

# ---- the paper's numbers ----


def test_dropout_grows_exponentially_from_nothing_to_its_maximum():
    assert dropout_rates(3, 1.0) == pytest.approx([0, 2**0.5 - 1, 1])
    rates = dropout_rates(32, 0.1)
    assert (rates[0], rates[-1]) == (0, 0.1)
    assert sum(rates) == pytest.approx(1.42, abs=0.005)
    assert sum(rates) / 32 == pytest.approx(0.04445, abs=1e-5)


def test_from_scratch_dropout_grows_with_time_from_nothing_to_its_whole():
    steps = [Progress(index, 5) for index in range(5)]
    assert [time_scale("constant", step) for step in steps] == [1] * 5
    expected = [0, 2**0.25 - 1, 2**0.5 - 1, 2**0.75 - 1, 1]
    assert [time_scale("exponential", step) for step in steps] == pytest.approx(expected)


def test_loss_weights_are_the_closed_form():
    assert loss_scales(4, 0.5) == [0, 0.5, 1.5, 4.5]
    weights = loss_weights(loss_scales(4, 0.5), range(4), last=True)
    assert weights == pytest.approx({1: 0.0769, 2: 0.2308, 3: 0.6923}, abs=5e-5)
    assert sum(weights.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("layers", "scale", "curriculum", "rotation", "heads", "shares"),
    [
        (32, 0.2, "all", None, {32}, (0.111, 0.111)),
        (32, 0.2, "rotational", 8, {4, 5}, (0.42, 0.59)),
        (32, 0.1, "rotational", 8, {4, 5}, (0.48, 0.65)),
        (40, 0.1, "rotational", 39, {2}, (0.60, 1.00)),
        (16, 0.1, "rotational", 8, {2, 3}, (0.67, 0.90)),
        (32, 1.0, "rotational", 16, {2, 3}, (0.46, 0.80)),
    ],
)
def test_the_last_layers_share_of_the_loss_lies_where_it_should(
    layers, scale, curriculum, rotation, heads, shares
):
    found, numbers = [], set()
    for index in range(rotation or 1):
        enabled = enabled_layers(layers, curriculum, rotation, Progress(index, 100))
        found.append(loss_weights(loss_scales(layers, scale), enabled, last=True)[layers - 1])
        numbers.add(len(enabled | {layers - 1}))
    assert (min(found), max(found)) == pytest.approx(shares, abs=0.006)
    assert numbers == heads


@pytest.mark.parametrize(("layers", "rotation"), [(32, 8), (40, 39), (4, 7), (5, 1), (7, 3)])
def test_the_rotation_comes_to_every_layer_once_in_r_steps(layers, rotation):
    seen = [
        layer
        for index in range(5, 5 + rotation)
        for layer in enabled_layers(layers, "rotational", rotation, Progress(index, 100))
    ]
    assert sorted(seen) == list(range(layers))


@pytest.mark.parametrize(("layers", "steps"), [(24, 5800), (4, 10), (6, 7), (12, 3)])
def test_the_gradual_curriculum_goes_down_from_the_last_layer_to_all_at_half(layers, steps):
    sets = [
        enabled_layers(layers, "gradual", None, Progress(index, steps)) for index in range(steps)
    ]
    assert sets[0] == {layers - 1}
    assert all(found == set(range(layers - len(found), layers)) for found in sets)
    sizes = list(map(len, sets))
    assert sizes == sorted(sizes)
    half = -(-steps // 2)
    assert sizes[half:] == [layers] * (steps - half)
    # One more each T / 2L steps.
    assert sizes == [min(layers, 1 + int(index / (steps / (2 * layers)))) for index in range(steps)]


def test_a_step_that_enables_nothing_of_weight_trains_the_last_layer():
    scales = loss_scales(4, 0.5)
    assert loss_weights(scales, {0}, last=False) == {3: 1.0}
    assert loss_weights(scales, set(), last=False) == {3: 1.0}
    assert loss_weights(scales, {0, 2}, last=False) == {2: 1.0}


# Of the paper's table of hyper-parameters: p_max, S, e_scale, C, R; rate, batch, steps.
ROWS = {
    "llama2-7b": (0.1, "constant", 0.2, "rotational", 8, 3e-5, 4, 50_000),
    "llama2-13b": (0.1, "constant", 0.1, "rotational", 39, 2e-5, 4, 50_000),
    "llama3-8b": (0.1, "constant", 0.1, "rotational", 8, None, None, None),
    "llama3.2-1b": (0.1, "constant", 0.1, "rotational", 8, None, None, None),
    "llama2-70b": (None,) * 8,
    "llama1.5b-scratch": (0.1, "exponential", 0.2, "rotational", 23, 8e-4, 4, 50_000),
    "llama2-7b-scratch": (0.2, "exponential", 0.2, "rotational", 31, 8e-4, 4, 50_000),
    "llama1-7b-code": (0.1, "constant", 1.0, "rotational", 16, 1e-4, 4, 10_000),
    "llama1.5b-topv2": (0.2, "constant", 1.0, "gradual", None, 1e-4, 32, 5800),
}


def test_every_published_row_is_a_recipe_and_a_train_config():
    assert PUBLISHED.keys() == ROWS.keys()
    files = {path.stem for path in CONF.glob("layerskip-*.yaml")}
    assert files == {f"layerskip-{name}" for name in ROWS}
    for name, row in ROWS.items():
        recipe, given = PUBLISHED[name], OmegaConf.load(CONF / f"layerskip-{name}.yaml")
        found = (recipe.max_dropout, recipe.dropout_time, recipe.early_exit_scale)
        found += (recipe.curriculum, recipe.rotation, given.lr, given.batch_size, given.steps)
        assert found == row, name


# ---- which rows drop a layer ----


def test_rows_drop_layers_as_often_as_the_profile_says():
    layers, steps, rows = 32, 400, 8
    params = Params(max_dropout=0.1, dropout_time="constant")
    rates, dropped = dropout_rates(layers, 0.1), [0] * layers
    for step in range(steps):
        kept = kept_rows(params, layers, rows, Progress(step, steps), dropping=True)
        dropped = [n + rows - len(each) for n, each in zip(dropped, kept, strict=True)]
    draws = steps * rows
    for count, rate in zip(dropped, rates, strict=True):
        assert abs(count - draws * rate) <= 4 * (draws * rate * (1 - rate)) ** 0.5
    assert sum(dropped) / draws == pytest.approx(0.4445 * 0.1 * layers, rel=0.05)


def test_from_scratch_nothing_is_dropped_at_the_first_step_and_all_of_it_at_the_last():
    params = Params(max_dropout=1.0, dropout_time="exponential")
    first, last = (kept_rows(params, 8, 64, Progress(at, 9), dropping=True) for at in (0, 8))
    assert first == [list(range(64))] * 8
    assert last[-1] == []


def test_what_is_dropped_follows_from_the_step_alone():
    params = Params(max_dropout=0.9, dropout_time="constant")

    def kept(rows=5, step=3, **more):
        return kept_rows(params, 4, rows, Progress(step, 100, **more), dropping=True)

    torch.manual_seed(1)
    first = kept()
    torch.manual_seed(2)
    assert kept() == first
    others = [kept(step=4), kept(micro_batch=1), kept(seed=1)]
    assert first not in others
    assert len({str(each) for each in others}) == 3
    # A row draws the same however many others there are.
    assert [[row for row in rows if row < 5] for rows in kept(8)] == first


# ---- settings ----


def completed(tiny_shape, trained=None, layers=12, **settings):
    return resolve(Params(**settings), tiny_shape("an OPT", num_layers=layers), trained or {})


def recipe_of(params):
    return (
        params.recipe,
        params.max_dropout,
        params.dropout_time,
        params.early_exit_scale,
        params.curriculum,
        params.rotation,
    )


def test_a_recipe_gives_what_is_not_given(tiny_shape):
    assert recipe_of(completed(tiny_shape)) == ("llama2-7b", 0.1, "constant", 0.2, "rotational", 8)
    found = completed(tiny_shape, recipe="llama1.5b-scratch", max_dropout=0.0, rotation=3)
    expected = ("llama1.5b-scratch", 0.0, "exponential", 0.2, "rotational", 3)
    assert recipe_of(found) == expected
    assert resolve(found, tiny_shape("an OPT", num_layers=12), {}) == found


@pytest.mark.parametrize(("layers", "exit_layer"), [(2, 1), (3, 1), (12, 3), (32, 8)])
def test_a_quarter_of_the_layers_drafts_where_nothing_else_is_known(tiny_shape, layers, exit_layer):
    assert completed(tiny_shape, layers=layers).exit_layer == exit_layer
    assert completed(tiny_shape, {"published": {"exit_layer": 1}}, layers=layers).exit_layer == 1


def test_settings_of_the_checkpoint_stand_where_none_are_given(tiny_shape):
    settings = {
        "exit_layer": 5,
        "recipe": "llama2-13b",
        "max_dropout": 0.3,
        "dropout_time": "constant",
        "early_exit_scale": 0.7,
        "curriculum": "gradual",
        "rotation": None,
    }
    trained = {"method": "layerskip", "settings": settings}
    found = completed(tiny_shape, trained)
    assert recipe_of(found) == ("llama2-13b", 0.3, "constant", 0.7, "gradual", None)
    assert found.exit_layer == 5
    given = completed(tiny_shape, trained, recipe="llama2-7b", exit_layer=2)
    assert recipe_of(given) == recipe_of(completed(tiny_shape))
    assert given.exit_layer == 2
    # Settings of another method are none of this one.
    other = completed(tiny_shape, {"method": "static", "settings": {"exit_layer": 5}})
    assert other == completed(tiny_shape)


WRONG = {
    "no draft layer": ({"exit_layer": 0}, ["exit_layer=0: allowed 1..7"]),
    "all layers draft": ({"exit_layer": 8}, ["exit_layer=8: allowed 1..7"]),
    "no draft": ({"num_speculations": 0}, ["num_speculations=0: allowed 1"]),
    "a confidence above 1": ({"stop_confidence": 1.1}, ["stop_confidence=1.1:", "0..1"]),
    "a negative confidence": ({"stop_confidence": -0.1}, ["stop_confidence=-0.1:", "0..1"]),
    "a rate above 1": ({"max_dropout": 1.5}, ["max_dropout=1.5: allowed 0..1"]),
    "a negative rate": ({"max_dropout": -0.1}, ["max_dropout=-0.1: allowed 0..1"]),
    "a scale above 1": ({"early_exit_scale": 2.0}, ["early_exit_scale=2.0: allowed 0..1"]),
    "a negative scale": ({"early_exit_scale": -1.0}, ["early_exit_scale=-1.0: allowed 0..1"]),
    "no rotation": ({"rotation": 0}, ["rotation=0: allowed 1 and up"]),
    "a recipe that is none": ({"recipe": "llama9"}, ["recipe=llama9: allowed llama2-7b, "]),
    "a recipe that states nothing": (
        {"recipe": "llama2-70b"},
        ["max_dropout=None: allowed 0..1", "not stated for recipe=llama2-70b"],
    ),
    "a rotation of a recipe without one": (
        {"recipe": "llama1.5b-topv2", "curriculum": "rotational"},
        ["rotation=None: allowed 1 and up", "not stated for recipe=llama1.5b-topv2"],
    ),
}


@pytest.mark.parametrize(("settings", "texts"), WRONG.values(), ids=WRONG)
def test_impossible_settings_are_named_with_what_is_allowed(tiny_shape, settings, texts):
    with pytest.raises(ValueError, match="allowed") as caught:
        completed(tiny_shape, layers=8, **settings)
    assert [text for text in texts if text not in str(caught.value)] == []


def test_a_model_of_one_layer_is_refused(tiny_shape):
    with pytest.raises(ValueError, match="exit_layer=1: allowed none"):
        completed(tiny_shape, layers=1)


def test_each_value_that_a_recipe_does_not_state_can_be_given(tiny_shape):
    given = {"max_dropout": 0.1, "dropout_time": "constant", "early_exit_scale": 0.1}
    for name in (*given, "curriculum"):
        settings = given | {"curriculum": "all"}
        assert completed(tiny_shape, recipe="llama2-70b", **settings).curriculum == "all"
        del settings[name]
        with pytest.raises(ValueError, match=f"{name}=None: allowed .*not stated"):
            completed(tiny_shape, recipe="llama2-70b", **settings)
