"""Checkpoints: exact both ways with transformers, and every fault of a folder refused by name."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from methods.engine import checkpoint
from methods.engine.checkpoint import CheckpointError
from methods.engine.families import UnsupportedError, shape_of_config
from methods.engine.layer import rope_frequencies
from methods.engine.shape import RopeScaling, Shape, complete_fields

OPT = "an OPT"
LLAMA = "a Llama with grouped heads"
TIED_LLAMA = "a Llama with scaled rotary positions and a tied head"
WRITTEN_KEYS = {
    "opt": (
        "hidden_size num_hidden_layers num_attention_heads ffn_dim word_embed_proj_dim "
        "do_layer_norm_before _remove_final_layer_norm activation_function enable_bias "
        "layer_norm_elementwise_affine"
    ),
    "llama": (
        "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "intermediate_size hidden_act rms_norm_eps rope_parameters attention_bias mlp_bias"
    ),
    "qwen2": (
        "hidden_size num_hidden_layers num_attention_heads num_key_value_heads "
        "intermediate_size hidden_act rms_norm_eps rope_parameters use_sliding_window"
    ),
}
COMMON_KEYS = (
    "architectures vocab_size max_position_embeddings tie_word_embeddings "
    "bos_token_id eos_token_id pad_token_id"
)


@pytest.fixture
def saved(tiny_transformer, tmp_path):
    """``saved(name)``: a folder with a tiny model in it."""

    def make(name):
        checkpoint.save(tiny_transformer(name), tmp_path)
        return tmp_path

    return make


def _edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))


def _edit_tensors(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def _same_state(one, other):
    assert one.keys() == other.keys()
    unlike = [
        name
        for name in one
        if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])
    ]
    assert unlike == []


def test_transformers_opens_what_we_save_with_equal_bits_and_config(pair, tmp_path):
    checkpoint.save(pair.ours, tmp_path)
    reopened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(reopened) is type(pair.reference)
    _same_state(reopened.state_dict(), pair.reference.state_dict())
    before, after = pair.reference.config.to_dict(), reopened.config.to_dict()
    keys = (WRITTEN_KEYS[pair.ours.shape.family] + " " + COMMON_KEYS).split()
    before["architectures"] = [type(pair.reference).__name__]
    assert {key: after.get(key) for key in keys} == {key: before.get(key) for key in keys}


def test_loading_what_was_saved_gives_the_same_shape_and_bits(
    shape_name, tiny_transformer, tmp_path
):
    model = tiny_transformer(shape_name)
    checkpoint.save(model, tmp_path)
    loaded = checkpoint.load(tmp_path)
    assert loaded.shape == model.shape
    _same_state(loaded.state_dict(), model.state_dict())


def test_a_tied_head_is_one_parameter_after_loading(saved):
    loaded = checkpoint.load(saved(OPT))
    assert loaded.head_weight is loaded.embedding.weight
    assert (
        sum(parameter.numel() for parameter in loaded.parameters()) == loaded.shape.num_parameters
    )


def test_loaded_parameters_can_be_trained(saved):
    loaded = checkpoint.load(saved(LLAMA))
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_saving_in_bfloat16_rounds_every_weight_and_says_so(tiny_transformer, tmp_path):
    model = tiny_transformer(LLAMA)
    checkpoint.save(model, tmp_path, torch.bfloat16)
    stored = checkpoint.load(tmp_path)
    _same_state(
        stored.state_dict(),
        {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()},
    )
    reopened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert reopened.dtype == torch.bfloat16


def test_loading_casts_to_the_wanted_dtype(saved, tiny_transformer):
    loaded = checkpoint.load(saved(OPT), torch.bfloat16)
    wanted = tiny_transformer(OPT).to(torch.bfloat16)
    _same_state(loaded.state_dict(), wanted.state_dict())


def test_a_missing_tensor_is_named(saved):
    folder = saved(OPT)
    _edit_tensors(folder, lambda tensors: tensors.pop("model.decoder.layers.2.fc1.bias"))
    with pytest.raises(CheckpointError, match=r"lacks 1 tensors.*layers\.2\.fc1\.bias"):
        checkpoint.load(folder)


def test_an_untied_head_may_not_be_missing(saved):
    folder = saved(LLAMA)
    _edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        checkpoint.load(folder)


def test_a_tensor_that_fits_nothing_is_named_and_not_dropped(saved):
    folder = saved(LLAMA)
    extra = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}
    _edit_tensors(folder, lambda tensors: tensors.update(extra))
    with pytest.raises(CheckpointError, match=r"fit nothing.*layers\.0\.self_attn\.q_proj\.bias"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("mlp.down_proj.weight", 32, 45),
        ("self_attn.k_proj.weight", 16, 31),
        ("self_attn.k_proj.weight", 17, 32),
        ("mlp.gate_proj.weight", 43, 32),
    ],
    ids=["a whole matrix", "the width of one part", "the height of one part", "half of the MLP"],
)
def test_a_tensor_of_another_shape_than_the_config_says_is_named(saved, name, rows, columns):
    folder, full = saved(LLAMA), f"model.layers.1.{name}"
    _edit_tensors(folder, lambda tensors: tensors.update({full: torch.zeros(rows, columns)}))
    with pytest.raises(CheckpointError, match=f"{full}.*{rows}, {columns}"):
        checkpoint.load(folder)


def test_parts_of_wrong_heights_are_refused_though_their_sum_is_right(saved):
    folder, prefix = saved(LLAMA), "model.layers.1.self_attn."
    wrong = {f"{prefix}k_proj.weight": (20, 32), f"{prefix}v_proj.weight": (12, 32)}
    _edit_tensors(
        folder,
        lambda tensors: tensors.update({n: torch.zeros(size) for n, size in wrong.items()}),
    )
    with pytest.raises(CheckpointError, match="k_proj"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        (OPT, {"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        (OPT, {"architectures": "gone"}, "architectures"),
        (OPT, {"activation_function": "gelu"}, "gelu"),
        (OPT, {"enable_bias": False}, "enable_bias"),
        (LLAMA, {"hidden_act": "gelu"}, "gelu"),
        (LLAMA, {"attention_bias": True}, "attention_bias"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias"),
        (LLAMA, {"rope_theta": "gone"}, "rope_theta"),
        (LLAMA, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
    ],
    ids=[
        "another architecture",
        "no architecture",
        "another activation in OPT",
        "OPT without biases",
        "another activation in Llama",
        "attention biases in Llama",
        "MLP biases in Llama",
        "no rotary base",
        "another rotary scaling",
        "another rotary scaling in the old form",
    ],
)
def test_what_the_engine_does_not_have_is_refused_before_weights_are_read(
    saved, name, changes, named
):
    folder = saved(name)
    _edit_config(folder, **changes)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedError, match=named) as caught:
        checkpoint.load(folder)
    assert "supported" in str(caught.value) or "names no" in str(caught.value)


def test_a_folder_without_a_config_or_weights_is_refused(saved, tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        checkpoint.load(tmp_path / "nowhere")
    folder = saved(OPT)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks model\.safetensors"):
        checkpoint.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        checkpoint.load(folder)


SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("written", "scaling"),
    [
        ({"rope_theta": 2e5}, None),
        ({"rope_theta": 2e5, "rope_scaling": None}, None),
        ({"rope_parameters": {"rope_theta": 2e5, "rope_type": "default"}}, None),
        ({"rope_theta": 2e5, "rope_scaling": SCALING | {"rope_type": "llama3"}}, SCALING),
        ({"rope_theta": 2e5, "rope_scaling": SCALING | {"type": "llama3"}}, SCALING),
        (
            {"rope_parameters": SCALING | {"rope_type": "llama3", "rope_theta": 2e5}},
            SCALING,
        ),
    ],
    ids=[
        "a base alone",
        "a base and no scaling",
        "the new form without scaling",
        "a base and a scaling",
        "a base and a scaling of the oldest form",
        "the new form with scaling",
    ],
)
def test_all_forms_of_rotary_settings_are_read_alike(saved, written, scaling):
    folder = saved(LLAMA)
    _edit_config(folder, **({"rope_theta": "gone"} | written))
    shape = checkpoint.read_shape(folder)
    expected = RopeScaling(8.0, 1.0, 4.0, 64) if scaling else None
    assert (shape.rope_theta, shape.rope_scaling) == (2e5, expected)


@pytest.mark.parametrize(
    ("written", "read"),
    [(2, (2,)), (0, (0,)), ([7, 9], (7, 9)), (None, ())],
    ids=["one end token", "end token 0", "several end tokens", "no end token"],
)
def test_end_tokens_are_read_as_a_tuple_and_written_back(saved, tmp_path, written, read):
    folder = saved(OPT)
    _edit_config(folder, eos_token_id=written)
    loaded = checkpoint.load(folder)
    assert loaded.shape.eos_token_ids == read
    checkpoint.save(loaded, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["eos_token_id"] == written


def test_old_checkpoints_without_a_final_norm_are_read_so(saved):
    folder = saved(OPT)
    _edit_config(folder, _remove_final_layer_norm=True)
    assert not checkpoint.read_shape(folder).final_norm


def test_shards_are_read_through_their_index_and_none_may_be_missing(saved, tiny_transformer):
    folder = saved(LLAMA)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    _same_state(checkpoint.load(folder).state_dict(), tiny_transformer(LLAMA).state_dict())
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks model-00002-of-00002"):
        checkpoint.load(folder)


def test_a_stored_copy_of_a_tied_head_is_left_aside(saved, tiny_transformer):
    folder = saved(TIED_LLAMA)
    copy = {"lm_head.weight": torch.zeros(61, 32)}
    _edit_tensors(folder, lambda tensors: tensors.update(copy))
    loaded = checkpoint.load(folder)
    _same_state(loaded.state_dict(), tiny_transformer(TIED_LLAMA).state_dict())


def test_stored_rotary_buffers_are_left_aside(saved, tiny_transformer):
    folder = saved(LLAMA)
    buffers = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(4) for n in range(4)}
    _edit_tensors(folder, lambda tensors: tensors.update(buffers))
    _same_state(checkpoint.load(folder).state_dict(), tiny_transformer(LLAMA).state_dict())


@pytest.mark.parametrize("name", [OPT, LLAMA], ids=["OPT", "Llama"])
def test_names_without_their_first_part_are_read_too(saved, tiny_transformer, name):
    folder = saved(name)

    def shorten(tensors):
        for full in list(tensors):
            tensors[full.removeprefix("model.")] = tensors.pop(full)

    _edit_tensors(folder, shorten)
    stored = load_file(folder / "model.safetensors")
    assert not any(full.startswith("model.") for full in stored)
    _same_state(checkpoint.load(folder).state_dict(), tiny_transformer(name).state_dict())


# Frequencies of the published models, by index: theta 5e5, 8192 positions before scaling.
ROTARY = [
    (
        128,
        8.0,
        {28: 3.211446e-03, 29: 2.166571e-03, 32: 5.248462e-04, 34: 1.785078e-04}
        | {35: 9.556212e-05, 63: 3.068926e-07},
    ),
    (128, 32.0, {29: 2.118407e-03, 32: 4.295568e-04, 35: 2.389053e-05, 63: 7.672315e-08}),
    (
        64,
        32.0,
        {15: 1.290548e-03, 16: 4.295568e-04, 17: 9.708288e-05, 18: 1.946164e-05}
        | {31: 9.418306e-08},
    ),
]


@pytest.mark.parametrize(
    ("head_dim", "factor", "values"),
    ROTARY,
    ids=["Llama 3.1 of 8B", "Llama 3.2 of 3B", "Llama 3.2 of 1B"],
)
def test_scaled_rotary_frequencies_equal_the_published_ones(head_dim, factor, values):
    unscaled = _rotary_shape(head_dim, None)
    scaled = _rotary_shape(head_dim, RopeScaling(factor, 1.0, 4.0, 8192))
    found, plain = rope_frequencies(scaled), rope_frequencies(unscaled)
    assert {i: found[i].item() for i in values} == pytest.approx(values, rel=1e-6, abs=0)
    # Fast frequencies stay, slow ones are divided, those between are blended.
    unchanged, divided = (29, 35) if head_dim == 128 else (15, 18)
    assert torch.equal(found[:unchanged], plain[:unchanged])
    torch.testing.assert_close(found[divided:], plain[divided:] / factor, atol=0, rtol=1e-6)
    between = found[unchanged:divided]
    assert (between < plain[unchanged:divided]).all()
    assert (between > plain[unchanged:divided] / factor).all()


def _rotary_shape(head_dim, scaling):
    return Shape(
        **complete_fields(
            {"family": "llama", "num_layers": 1, "width": head_dim, "num_heads": 1}
            | {"ffn_width": 1, "vocab_size": 1, "max_positions": 131072, "rope_theta": 5e5}
            | {"rope_scaling": scaling, "bos_token_id": 1, "eos_token_ids": (2,)}
        )
    )


def test_a_shape_of_a_config_is_the_one_it_was_written_from(shape_name, tiny_shape):
    from methods.engine.families import config_of_shape

    shape = tiny_shape(shape_name)
    assert shape_of_config(config_of_shape(shape, "float32")) == shape
