"""Jobs of a sweep composed the quick way are what Hydra makes of them, and seldom made by it."""

import json
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from slurm.composing import Composer

CONF = Path(__file__).resolve().parents[2] / "conf"
JOBS = {
    "a choice": ("+method=dense",),
    "choices and values": ("+method=skipdecode", "task=e2e", "++seed=3", "++meter.batch_size=1"),
    "no plus": ("method=dense", "++seed=0"),
    "the same key twice": ("+method=dense", "++seed=1", "++seed=2"),
    "a key that is new": ("+method=dense", "++nosuch=1", "++model.shape.new=0.5", "++a.b.c=x"),
    "null, true, text, numbers": (
        "+method=skipdecode",
        "++method.preset=null",
        "++rerun=true",
        "++results_dir='a b, c'",
        "++train.lr=1e-4",
        "++method.power=1.0",
        "++task.limit=007",
    ),
    "an empty text": ("+method=dense", "++results_dir="),
    "a value in place of a group": ("+method=dense", "++model.shape=3"),
    "a key below a value": ("+method=dense", "++seed.deep=3"),
    "a key below nothing": ("+method=dense", "++model.variants.dense=x", "++task.limit.deep=3"),
    "a list": ("+method=dense", "++model.shape.eos_token_ids=[1,2]"),
    "a list by its place": ("+method=dense", "++model.shape.eos_token_ids.0=7"),
    "a list beside values": ("+method=dense", "++seed=4", "++launch.setup=[a, b]", "++rerun=true"),
    "a list, then a part of it": ("+method=dense", "++launch.setup=[a]", "++launch.setup.0=b"),
    "a value, then a list there": ("+method=dense", "++launch.python=x", "++launch.python=[y]"),
    "a part of a mapping, then it": (
        "+method=dense",
        "++launch.slurm.extra.hold=1",
        "++launch.slurm.extra={hold: 2, x: 3}",
    ),
    "a mapping, then a part of it": (
        "+method=dense",
        "++launch.slurm.extra={hold: 2, x: 3}",
        "++launch.slurm.extra.hold=1",
    ),
    "a list with a reference": ("+method=dense", "++launch.setup=['${seed}']", "++seed=4"),
    "a group": ("+method=dense", "++meter={repeats: 9}"),
    "a reference": ("+method=dense", "++results_dir=${model.name}/${seed}", "++seed=4"),
    "a missing value": ("+method=dense", "++results_dir=???"),
    "a deletion": ("+method=dense", "~seed", "++seed=5"),
    "an addition": ("+method=dense", "+nosuch=1", "++nosuch=2"),
    "a setting of Hydra's": ("+method=dense", "hydra.job.name=other", "++seed=1"),
    "a study": ("study=shapes", "method=dense", "model=opt1.3b", "++seed=1"),
    "no method": ("++seed=1",),
}


@pytest.fixture
def composer():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", overrides=[], run_mode=RunMode.MULTIRUN)
        yield Composer(loader, master)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_what_hydra_composes(name, composer):
    quick, slow = composer.compose(JOBS[name]), composer.compose_slowly(JOBS[name])
    # With the order of keys, and 1 apart from 1.0 and true.
    assert json.dumps(quick) == json.dumps(slow)


def test_jobs_do_not_share_their_values(composer):
    first = composer.compose(("+method=dense", "++model.shape.width=8"))
    second = composer.compose(("+method=dense",))
    assert first["model"]["shape"]["width"] == 8
    assert second["model"]["shape"]["width"] != 8


def test_hydra_composes_each_choice_once(composer, monkeypatch):
    made = []
    load = composer._loader.load_sweep_config
    monkeypatch.setattr(
        composer._loader, "load_sweep_config", lambda *given: made.append(given[1]) or load(*given)
    )
    for method in ("dense", "skipdecode"):
        for seed in range(50):
            overrides = (f"+method={method}", "++launch.setup=[a]", f"++seed={seed}")
            assert composer.compose(overrides)["seed"] == seed
    setup = "++launch.setup=[a]"
    assert made == [["+method=dense", setup], ["+method=skipdecode", setup]]
