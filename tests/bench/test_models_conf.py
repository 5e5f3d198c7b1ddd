"""The model configs say what was published: sizes to the unit, and where each comes from."""

import pytest
from omegaconf import OmegaConf

from bench.config import ROOT, ModelConfig
from methods.layerskip.params import resolve

FOLDER = ROOT / "conf" / "model"
# Parameters (a tied embedding counted once), bytes of keys and values a token takes in 16 bits,
# positions, rotary base, first token, end token.
PUBLISHED = {
    "codellama-34b": (33_743_970_304, 196_608, 16384, 1e6, 1, 2),
    "codellama-7b": (6_738_546_688, 524_288, 16384, 1e6, 1, 2),
    "layerskip-codellama-34b": (33_743_970_304, 196_608, 16384, 1e6, 1, 2),
    "layerskip-codellama-7b": (6_738_546_688, 524_288, 16384, 1e6, 1, 2),
    "layerskip-llama2-13b": (13_015_864_320, 819_200, 4096, 1e4, 1, 2),
    "layerskip-llama2-70b": (68_976_648_192, 327_680, 4096, 1e4, 1, 2),
    "layerskip-llama2-7b": (6_738_415_616, 524_288, 4096, 1e4, 1, 2),
    "layerskip-llama3-8b": (8_030_261_248, 131_072, 8192, 5e5, 128000, 128001),
    "layerskip-llama3.2-1b": (1_235_814_400, 32_768, 131072, 5e5, 128000, 128001),
    "llama2-13b": (13_015_864_320, 819_200, 4096, 1e4, 1, 2),
    "llama2-70b": (68_976_648_192, 327_680, 4096, 1e4, 1, 2),
    "llama2-7b": (6_738_415_616, 524_288, 4096, 1e4, 1, 2),
    "llama3-8b": (8_030_261_248, 131_072, 8192, 5e5, 128000, 128001),
    "llama3.2-1b": (1_235_814_400, 32_768, 131072, 5e5, 128000, 128001),
    "opt1.3b": (1_315_758_080, 196_608, 2048, None, 2, 2),
    "opt125m": (125_239_296, 36_864, 2048, None, 2, 2),
    "opt13b": (12_853_473_280, 819_200, 2048, None, 2, 2),
    "opt2.7b": (2_651_596_800, 327_680, 2048, None, 2, 2),
    "opt350m": (331_196_416, 98_304, 2048, None, 2, 2),
    "opt6.7b": (6_658_473_984, 524_288, 2048, None, 2, 2),
    "qwen2.5-0.5b": (494_032_768, 12_288, 32768, 1e6, 151643, 151643),
    "qwen2.5-1.5b": (1_543_714_304, 28_672, 131072, 1e6, 151643, 151643),
    "smollm2-135m": (134_515_008, 23_040, 8192, 1e5, 0, 0),
    "smollm2-360m": (361_821_120, 40_960, 8192, 1e5, 0, 0),
}
# Checkpoint -> the model it was trained on from.
CONTINUED = {name: name.removeprefix("layerskip-") for name in PUBLISHED if "layerskip" in name}
LICENCES = {
    "opt": "OPT-175B licence (non-commercial research)",
    "llama2": "Llama 2 Community",
    "llama3-": "Llama 3 Community",
    "llama3.2": "Llama 3.2 Community",
    "codellama": "Llama 2 Community",
    "layerskip": "FAIR Noncommercial Research",
    "qwen2.5": "Apache-2.0",
    "smollm2": "Apache-2.0",
}
GATED = ("meta-llama/", "facebook/layerskip-")
LLAMA_3_2_SCALING = (32.0, 1.0, 4.0, 8192)


def _config(name):
    values = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"), resolve=True)
    return ModelConfig(**values)


def _head(name):
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return " ".join(line.removeprefix("#").strip() for line in lines[:end])


def test_the_table_names_every_config_of_a_published_model():
    names = [path.stem for path in FOLDER.glob("*.yaml")]
    assert {name for name in names if _config(name).hub_id is not None} == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_fields_give_the_published_sizes_to_the_unit(name):
    shape = _config(name).configured_shape()
    kv_bytes = 2 * shape.num_layers * shape.kv_width * 2
    found = (shape.num_parameters, kv_bytes, shape.max_positions, shape.rope_theta)
    assert (*found, shape.bos_token_id, *shape.eos_token_ids) == PUBLISHED[name]
    assert shape.pad_token_id == (1 if shape.family == "opt" else None)
    assert (shape.head_dim * shape.num_heads, shape.norm_eps) == (
        shape.width,
        1e-6 if shape.family == "qwen2" else 1e-5,
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_rotary_positions_are_scaled_in_llama_3_2_only(name):
    scaling = _config(name).configured_shape().rope_scaling
    found = scaling and tuple(getattr(scaling, field) for field in scaling.__slots__)
    assert found == (LLAMA_3_2_SCALING if "llama3.2" in name else None)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_head_tells_size_source_licence_and_how_to_run(name):
    config, head = _config(name), _head(name)
    assert config.name == name
    assert f"({PUBLISHED[name][0]:,} parameters)" in head
    assert f" {config.hub_id}" in head
    (licence,) = (text for start, text in LICENCES.items() if name.startswith(start))
    assert f"Licence: {licence}." in head
    assert "Run: python -m bench +method=" in head
    assert head.count(f"model={name} ") >= 1
    assert ("accept the licence on its page" in head) == config.hub_id.startswith(GATED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_continued_checkpoint_names_its_original_of_equal_shape_as_baseline(name):
    config = _config(name)
    assert config.baseline == CONTINUED.get(name)
    if config.baseline is not None:
        assert "Recollection, not confirmed:" in _head(name)
        assert config.configured_shape() == _config(config.baseline).configured_shape()


def test_hydra_composes_a_continued_checkpoint(configured):
    model = configured("+method=dense", "model=layerskip-llama3.2-1b").model
    assert (model.baseline, model.hub_id) == ("llama3.2-1b", "facebook/layerskip-llama3.2-1B")


@pytest.mark.parametrize("name", sorted(set(CONTINUED) - {"layerskip-codellama-34b"}))
def test_a_layerskip_checkpoint_carries_what_its_paper_drafted_with(name, configured):
    config = configured("+method=layerskip", f"model={name}")
    rows = config.model.published
    assert "default" in rows
    for task, settings in rows.items():
        assert set(settings) == {"exit_layer", "num_speculations"}
        shape = config.model.configured_shape()
        found = resolve(config.method.params, shape, {"published": settings})
        assert (found.exit_layer, found.num_speculations) == tuple(settings.values()), task


def test_a_setting_of_the_methods_own_wins_over_the_published_one(configured):
    config = configured("+method=layerskip", "model=layerskip-llama2-7b", "method.exit_layer=5")
    known = {"published": config.model.published["default"]}
    found = resolve(config.method.params, config.model.configured_shape(), known)
    assert (found.exit_layer, found.num_speculations) == (5, 6)
