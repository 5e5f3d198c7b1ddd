"""SkipDecode: schedule, presets and settings; decoding against the schedule and the objective."""

import random
from dataclasses import replace

import pytest
import torch

from methods.contract import Progress
from methods.engine.cache import KVCache
from methods.engine.sampling import Forced
from methods.skipdecode.objective import scheduled_pass
from methods.skipdecode.params import Params, resolve
from methods.skipdecode.schedule import Schedule, preset_budgets

TOLERANCE = 1e-4
LAYERS, NEW = 6, 14
PROMPTS = [3, 9, 1, 6]
CLOCKS = {"a clock of generated tokens": "generated", "a clock of positions": "position"}
# From all six layers down to two, over eight positions: each layer but the first and last drops.
FALLING = {"preset": None, "max_layers": 6, "min_layers": 2, "schedule_length": 8}


@pytest.fixture(params=CLOCKS)
def clock(request):
    return CLOCKS[request.param]


@pytest.fixture(params=["skip", "terminate"])
def variant(request, clock):
    return {"clock": clock, "mode": request.param}


@pytest.fixture
def transformer(shape_name, tiny_transformer):
    return tiny_transformer(shape_name, num_layers=LAYERS)


def _random_schedules(number=300):
    draw = random.Random(11)
    for _ in range(number):
        layers = draw.randint(2, 40)
        warmup = draw.randint(0, min(3, layers - 1))
        low = draw.randint(warmup + 1, layers)
        power = draw.choice([None, 0.5, 1.0, 2.0, 3.7])
        yield Schedule(
            num_layers=layers,
            max_layers=draw.randint(low, layers),
            min_layers=low,
            warmup_layers=warmup,
            length=draw.randint(1, 60),
            decay="linear" if power is None else "power",
            power=power or 1.0,
        )


# --- the schedule ---------------------------------------------------------------------------------


def test_layers_only_ever_fall_away_and_as_many_run_as_the_budget_says():
    for schedule in _random_schedules():
        end = schedule.length + 5
        sets = [schedule.layers(t) for t in range(end)]
        budgets = [schedule.budget(t) for t in range(end)]
        assert budgets[0] == schedule.max_layers
        assert budgets[schedule.length :] == [schedule.min_layers] * 5
        assert budgets == sorted(budgets, reverse=True)
        assert list(map(len, sets)) == budgets
        for t, layers in enumerate(sets):
            assert list(layers) == sorted(set(layers))
            assert set(range(schedule.warmup_layers)) <= set(layers)
            assert layers[-1] == schedule.num_layers - 1
            assert set(layers) <= set(sets[max(t - 1, 0)])
            # Warm-up at the bottom, the rest of the budget at the top of the stack.
            top = schedule.budget(t) - schedule.warmup_layers
            assert layers[schedule.warmup_layers :] == tuple(range(schedule.num_layers))[-top:]


def test_to_terminate_pays_for_the_bottom_of_the_stack_with_the_same_budgets():
    for schedule in _random_schedules(50):
        other = replace(schedule, mode="terminate")
        for t in range(schedule.length + 3):
            assert other.layers(t) == tuple(range(schedule.budget(t)))
            assert set(other.layers(t + 1)) <= set(other.layers(t))


def test_the_linear_budget_is_the_interpolation_rounded_to_nearest():
    schedule = Schedule(24, 16, 8, 1, length=16)
    # 16 - t / 2: halves go up.
    expected = [16, 16, 15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8]
    assert [schedule.budget(t) for t in range(18)] == expected


def test_a_power_above_one_falls_faster_and_a_power_of_one_is_linear():
    linear, one, three = (
        [Schedule(24, 20, 4, 1, 32, decay, power).budget(t) for t in range(40)]
        for decay, power in (("linear", 3.0), ("power", 1.0), ("power", 3.0))
    )
    assert linear == one
    assert all(steep <= flat for steep, flat in zip(three, linear, strict=True))
    # At the middle 4 + 16 / 2 ** 3.
    assert (three[16], linear[16]) == (6, 12)


def test_the_first_inactive_position_is_the_one_found_by_trying_all():
    for schedule in _random_schedules():
        for layer in range(schedule.num_layers):
            active = [layer in schedule.layers(t) for t in range(schedule.length + 3)]
            found = schedule.first_inactive(layer)
            if all(active):
                assert found > 1_000_000
            else:
                assert found == active.index(False)
                assert not any(active[found:])


def test_a_layer_that_falls_away_at_the_very_end_is_found():
    schedule = Schedule(4, 4, 3, 1, length=10, decay="power", power=0.05)
    assert [t for t in range(12) if 1 in schedule.layers(t)] == list(range(10))
    assert schedule.first_inactive(1) == 10


# --- presets and settings -------------------------------------------------------------------------


def test_a_preset_of_2x_on_12_layers_falls_from_8_to_4():
    assert preset_budgets(2.0, 12, 1) == (8, 4)


@pytest.mark.parametrize("layers", [24, 32], ids=["24 layers", "32 layers"])
@pytest.mark.parametrize("speedup", [2, 3, 4, 5], ids=lambda speedup: f"a speed-up of {speedup}")
def test_a_presets_mean_budget_lies_within_half_a_layer_of_the_target(layers, speedup):
    high, low = preset_budgets(speedup, layers, 1)
    assert abs((high + low) / 2 - layers / speedup) <= 0.5
    assert 2 <= low < high <= layers


def _shape(tiny_shape):
    return tiny_shape("an OPT", num_layers=12)


def test_settings_are_completed_from_the_preset_and_the_training(tiny_shape):
    found = resolve(Params(), _shape(tiny_shape), {"schedule_length": 40})
    assert (found.max_layers, found.min_layers, found.schedule_length) == (8, 4, 40)
    assert (found.preset, found.warmup_layers, found.clock) == ("2x", 1, "generated")


def test_given_settings_win_over_those_of_the_training(tiny_shape):
    given = Params(preset=None, max_layers=7, min_layers=3, schedule_length=9)
    assert resolve(given, _shape(tiny_shape), {"schedule_length": 40}) == given


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({"warmup_layers": -1}, ["warmup_layers=-1", "0..11"]),
        ({"warmup_layers": 12}, ["warmup_layers=12", "0..11"]),
        ({"max_layers": 9}, ["preset=2x", "max_layers=9", "preset=null"]),
        ({"min_layers": 4}, ["preset=2x", "min_layers=4", "preset=null"]),
        ({"preset": "fast"}, ["preset=fast", "1.3x to 8.0x", "12 layers"]),
        ({"preset": "2"}, ["preset=2", "1.3x to 8.0x", "12 layers"]),
        ({"preset": "1x"}, ["preset=1x", "1.3x to 8.0x", "12 layers"]),
        ({"preset": "13x"}, ["preset=13x", "1.3x to 8.0x", "12 layers"]),
        ({"preset": None, "max_layers": 8}, ["max_layers=8", "min_layers=None", "both"]),
        ({"preset": None}, ["max_layers=None", "min_layers=None", "both"]),
        (
            {"preset": None, "max_layers": 4, "min_layers": 5},
            ["max_layers=4", "min_layers=5", "2 (warm-up + 1) <= min_layers <= max_layers <= 12"],
        ),
        (
            {"preset": None, "max_layers": 13, "min_layers": 5},
            ["max_layers=13", "max_layers <= 12"],
        ),
        (
            {"preset": None, "max_layers": 8, "min_layers": 3, "warmup_layers": 3},
            ["min_layers=3", "4 (warm-up + 1) <= min_layers"],
        ),
        ({"power": 0.0}, ["power=0.0", "above 0"]),
        ({"power": -2.0}, ["power=-2.0", "above 0"]),
        ({"schedule_length": 0}, ["schedule_length=0", "1 and up"]),
        ({"schedule_length": -3}, ["schedule_length=-3", "1 and up"]),
    ],
    ids=[
        "fewer warm-up layers than none",
        "nothing but warm-up layers",
        "a preset and a maximum",
        "a preset and a minimum",
        "a preset that is no number",
        "a preset without its x",
        "a preset that is too slow",
        "a preset that is too fast",
        "a maximum alone",
        "neither preset nor layers",
        "a minimum above the maximum",
        "more layers than there are",
        "a minimum of warm-up layers only",
        "a power of nought",
        "a negative power",
        "a schedule of no length",
        "a schedule of negative length",
    ],
)
def test_impossible_settings_are_named_with_what_is_allowed(tiny_shape, settings, texts):
    with pytest.raises(ValueError, match=r"allowed|both are needed") as caught:
        resolve(Params(**settings), _shape(tiny_shape), {"schedule_length": 40})
    assert [text for text in texts if text not in str(caught.value)] == []


def test_a_schedule_length_must_come_from_somewhere(tiny_shape):
    with pytest.raises(ValueError, match="schedule_length=None: allowed 1 and up"):
        resolve(Params(), _shape(tiny_shape), {})


# --- decoding -------------------------------------------------------------------------------------


def test_the_layers_that_ran_are_those_of_the_schedule_for_all_rows_and_never_rise(
    transformer, watch, make_method, make_prompts, drive
):
    method = make_method("skipdecode", transformer.shape, **FALLING)
    watched = watch(transformer)
    decoded = drive(method, watched.model, make_prompts(PROMPTS), NEW)
    # By hand: 6 - t / 2, halves up; the first layer and the top of the stack.
    budgets = [6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 2, 2, 2]
    assert watched.layers == [[0, *range(7 - budget, 6)] for budget in budgets]
    assert [answer.layers_run for answer in decoded.rounds] == [6, *budgets]
    assert all(answer.layers_needed is None for answer in decoded.rounds)


def test_with_the_positions_clock_the_least_advanced_row_decides_what_runs(
    transformer, watch, make_method, make_prompts, drive
):
    method = make_method("skipdecode", transformer.shape, **FALLING, clock="position")
    watched = watch(transformer)
    decoded = drive(method, watched.model, make_prompts(PROMPTS), NEW)
    # The shortest prompt has one token: t = 1, 2, ... for its row.
    budgets = [6, 5, 5, 4, 4, 3, 3, 2, 2, 2, 2, 2, 2]
    assert watched.layers == [[0, *range(7 - budget, 6)] for budget in budgets]
    assert [answer.layers_run for answer in decoded.rounds] == [6, *budgets]
    needed = [answer.layers_needed for answer in decoded.rounds]
    assert needed[0] is None
    for step, rows in enumerate(needed[1:]):
        assert rows == [method.schedule.budget(length + step) for length in PROMPTS]
        assert max(rows) == budgets[step]


def test_cached_decoding_equals_the_teacher_forced_pass_on_the_same_ids(
    transformer, variant, watch, make_method, make_prompts, make_batch, drive
):
    method = make_method("skipdecode", transformer.shape, **FALLING, **variant)
    rows = make_prompts([length + NEW for length in PROMPTS], seed=3)
    prompts = [row[:length] for row, length in zip(rows, PROMPTS, strict=True)]
    forced = Forced([row[length:] for row, length in zip(rows, PROMPTS, strict=True)])
    watched = watch(transformer)
    drive(method, watched.model, prompts, NEW, forced)
    found = torch.cat(watched.logits, dim=1)
    with torch.no_grad():
        x = scheduled_pass(
            transformer,
            make_batch(rows, PROMPTS),
            method.schedule,
            from_prompt=variant["clock"] == "generated",
        )
        expected, dense = transformer.head(x), transformer(make_batch(rows, PROMPTS).ids)
    for row, length in enumerate(PROMPTS):
        span = slice(length - 1, length - 1 + NEW)
        torch.testing.assert_close(found[row], expected[row, span], atol=TOLERANCE, rtol=0)
        assert (found[row] - dense[row, span]).abs().max() > 0.1


def test_the_objective_is_the_loss_of_the_target_as_decoding_scores_it(
    transformer, clock, watch, make_method, make_prompts, make_batch, drive
):
    method = make_method("skipdecode", transformer.shape, **FALLING, clock=clock)
    rows = make_prompts([length + NEW for length in PROMPTS], seed=7)
    prompts = [row[:length] for row, length in zip(rows, PROMPTS, strict=True)]
    forced = Forced([row[length:] for row, length in zip(rows, PROMPTS, strict=True)])
    drive(method, watch(transformer).model, prompts, NEW, forced)
    expected = -torch.cat(forced.log_probs, dim=1).sum().item()
    found = method.objective(transformer, make_batch(rows, PROMPTS), Progress(0, 1)).total.item()
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_teacher_forced_pass_is_the_same_for_a_row_alone(
    transformer, clock, make_method, make_prompts, make_batch
):
    method = make_method("skipdecode", transformer.shape, **FALLING, clock=clock)
    rows = make_prompts([length + 12 for length in PROMPTS], seed=4)

    def run(rows, prompt_lengths):
        batch = make_batch(rows, prompt_lengths)
        return scheduled_pass(transformer, batch, method.schedule, from_prompt=clock == "generated")

    with torch.no_grad():
        together = run(rows, PROMPTS)
        for row, (ids, length) in enumerate(zip(rows, PROMPTS, strict=True)):
            torch.testing.assert_close(
                together[row, : len(ids)], run([ids], [length])[0], atol=TOLERANCE, rtol=0
            )


def test_a_schedule_that_never_skips_gives_the_dense_ids_logits_and_cache_exactly(
    transformer, clock, watch, make_method, make_prompts, drive
):
    full = FALLING | {"min_layers": LAYERS}
    outcomes = []
    for name, settings in (("dense", {}), ("skipdecode", full | {"clock": clock})):
        watched = watch(transformer)
        method = make_method(name, transformer.shape, **settings)
        rows = drive(method, watched.model, make_prompts(PROMPTS), NEW).rows
        outcomes.append((rows, watched))
    (dense_rows, dense), (rows, skipping) = outcomes
    assert rows == dense_rows
    assert torch.equal(torch.cat(skipping.logits, dim=1), torch.cat(dense.logits, dim=1))
    for one, other in zip(skipping.cache.layers, dense.cache.layers, strict=True):
        assert torch.equal(one, other)


def test_skipping_changes_the_ids(transformer, watch, make_method, make_prompts, drive):
    rows = [
        drive(
            make_method(name, transformer.shape, **settings),
            watch(transformer).model,
            make_prompts(PROMPTS),
            NEW,
        ).rows
        for name, settings in (("dense", {}), ("skipdecode", FALLING))
    ]
    assert rows[0] != rows[1]
    # The prompt's token comes from a pass at full depth.
    assert [row[0] for row in rows[0]] == [row[0] for row in rows[1]]


def test_a_batch_of_unequal_prompts_equals_its_rows_run_singly(
    transformer, clock, watch, make_method, make_prompts, drive
):
    method = make_method("skipdecode", transformer.shape, **FALLING, clock=clock)
    prompts = make_prompts(PROMPTS, seed=5)
    together, alone = watch(transformer), []
    rows = drive(method, together.model, prompts, NEW).rows
    found = torch.cat(together.logits, dim=1)
    for row, prompt in enumerate(prompts):
        single = watch(transformer)
        alone += drive(method, single.model, [prompt], NEW).rows
        expected = torch.cat(single.logits, dim=1)[0]
        torch.testing.assert_close(found[row], expected, atol=TOLERANCE, rtol=0)
    assert rows == alone


def test_a_layer_holds_the_prompt_and_each_position_at_which_it_ran(
    transformer, clock, watch, make_method, make_prompts, drive
):
    method = make_method("skipdecode", transformer.shape, **FALLING, clock=clock)
    watched = watch(transformer)
    drive(method, watched.model, make_prompts([4, 4, 4]), NEW)
    start = 4 if clock == "position" else 0
    times = range(start, start + NEW - 1)
    for layer in range(LAYERS):
        expected = 4 + sum(layer in method.schedule.layers(t) for t in times)
        assert watched.cache.written[layer].sum(dim=1).tolist() == [expected] * 3
        assert bool(watched.cache.layers[layer][:, :, expected:].any()) is False


def test_a_budget_that_rises_again_is_caught_by_the_checked_cache(
    tiny_transformer, watch, make_method, make_prompts, drive, monkeypatch
):
    transformer = tiny_transformer("an OPT", num_layers=LAYERS)
    method = make_method("skipdecode", transformer.shape, **FALLING)
    monkeypatch.setattr(Schedule, "budget", lambda self, t: 3 if t < 4 else 4)
    with pytest.raises(AssertionError, match=r"layer 3: .*unwritten"):
        drive(method, watch(transformer).model, make_prompts(PROMPTS), NEW)
    unchecked = watch(transformer, checked_cache=False)
    drive(method, unchecked.model, make_prompts(PROMPTS), NEW)
    assert type(unchecked.cache) is KVCache


def test_no_warm_up_layer_leaves_the_first_one_out_too(
    transformer, watch, make_method, make_prompts, make_batch, drive
):
    settings = FALLING | {"warmup_layers": 0, "min_layers": 1, "max_layers": 4}
    method = make_method("skipdecode", transformer.shape, **settings)
    watched = watch(transformer)
    rows = make_prompts([length + NEW for length in PROMPTS], seed=6)
    prompts = [row[:length] for row, length in zip(rows, PROMPTS, strict=True)]
    forced = Forced([row[length:] for row, length in zip(rows, PROMPTS, strict=True)])
    drive(method, watched.model, prompts, NEW, forced)
    assert watched.layers[0] == [2, 3, 4, 5]
    assert watched.layers[-1] == [5]
    found = torch.cat(watched.logits, dim=1)
    with torch.no_grad():
        batch = make_batch(rows, PROMPTS)
        expected = transformer.head(
            scheduled_pass(transformer, batch, method.schedule, from_prompt=True)
        )
    for row, length in enumerate(PROMPTS):
        wanted = expected[row, length - 1 : length - 1 + NEW]
        torch.testing.assert_close(found[row], wanted, atol=TOLERANCE, rtol=0)
