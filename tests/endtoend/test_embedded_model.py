"""The embedded model is what it promises to be: small, trained per method, and good at its task."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from safetensors import safe_open

from bench import companion, store
from bench.config import ROOT, from_mapping
from bench.fingerprint import fingerprint
from bench.run import run
from methods.engine.confidence import CLASSIFIER_FILE
from methods.registry import find_params, method_names

VARIANTS = ("dense", "skipdecode", "calm", "layerskip")
TINY = ROOT / "bench" / "embedded" / "tiny"


def compared(results_dir, method, *overrides):
    """The table row of a run on the first 64 inputs, timed once."""
    given = [f"results_dir={results_dir}", "task.limit=64", "meter.repeats=1", "meter.warmups=0"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        raw = compose("config", [f"+method={method}", "verbosity=quiet", *given, *overrides])
    defaults = OmegaConf.load(ROOT / "conf" / "method" / f"{method}.yaml")
    config = from_mapping(
        OmegaConf.to_container(raw, resolve=True), OmegaConf.to_container(defaults)
    )
    return run(config).header().columns


@pytest.fixture(scope="module")
def results_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def skipdecode(results_dir):
    return compared(results_dir, "skipdecode")


def test_every_method_that_trains_has_a_variant():
    variants = OmegaConf.load(ROOT / "conf" / "model" / "tiny.yaml").variants
    assert {Path(folder).name for folder in variants.values()} == set(VARIANTS)
    assert all((ROOT / folder / "model.safetensors").exists() for folder in variants.values())
    training = {name for name in method_names() if find_params(name).ABILITIES.trains}
    assert training >= set(VARIANTS)
    assert training <= set(variants)


def test_the_exit_classifier_is_of_the_weights_beside_it():
    folder = TINY / "calm"
    known = companion.about(folder / CLASSIFIER_FILE)
    assert known["fingerprint"] == fingerprint(folder, [folder / "model.safetensors"])
    assert known["task"] == "demo"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_small_and_in_bfloat16(variant):
    path = TINY / variant / "model.safetensors"
    assert path.stat().st_size <= 6_000_000
    with safe_open(str(path), framework="pt") as reader:
        slices = [reader.get_slice(name) for name in reader.keys()]  # noqa: SIM118  # no mapping
    assert {part.get_dtype() for part in slices} == {"BF16"}
    config = json.loads((TINY / variant / "config.json").read_text())
    assert config["num_hidden_layers"] >= 12
    assert config["max_position_embeddings"] == 2048


def test_skipdecode_was_trained_from_the_dense_variant():
    about = json.loads((TINY / "skipdecode" / "skipbench.json").read_text())
    assert about["base"]["folder"] == "../dense"
    assert about["settings"]["max_layers"] == 8
    assert about["settings"]["min_layers"] == 4


def test_skipdecode_loses_at_most_two_points_of_bleu(skipdecode):
    assert skipdecode["dense.bleu"] > 85
    assert skipdecode["diff.bleu"] >= -2
    assert skipdecode["score.slot_error_rate"] <= 0.01
    assert skipdecode["layers_per_token"] < 7


def test_dense_alone_scores_what_it_scores_beside_a_method(results_dir, skipdecode):
    dense = compared(results_dir, "dense")
    assert dense["score.bleu"] == dense["dense.bleu"] == skipdecode["dense.bleu"]
    assert dense["speedup"] is None


def test_settings_other_than_the_trained_ones_are_marked(results_dir):
    other = compared(results_dir, "skipdecode", "method.preset=4x", "task.limit=8")
    assert other["setting"].startswith("preset=4x;trained_for=")
    assert "preset:2x" in other["setting"]


def test_every_run_is_in_the_store(results_dir, skipdecode):
    assert skipdecode["run_id"] in {found.folder.parent.name for found in store.listed(results_dir)}
