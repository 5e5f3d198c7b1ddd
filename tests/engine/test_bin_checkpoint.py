"""Checkpoints as ``.bin`` and in shards: one set of files, exact bits, damage told by file."""

import json
import pickle
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from methods.engine import checkpoint, files
from methods.engine.files import CheckpointError

OPT = "an OPT"
LLAMA = "a Llama with grouped heads"
BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def saved(tiny_transformer, tmp_path):
    """``saved(name)``: a folder with a tiny model in it, as one safetensors file."""

    def make(name):
        folder = tmp_path / "checkpoint"
        checkpoint.save(tiny_transformer(name), folder)
        return folder

    return make


@pytest.fixture
def pickled(saved):
    """``pickled(name, shards)``: a folder with a tiny model in it, as ``.bin`` files only."""

    def make(name, shards=1):
        folder = saved(name)
        _pickle(folder, load_file(folder / SAFE), shards)
        (folder / SAFE).unlink()
        return folder

    return make


def _pickle(folder, tensors, shards=1):
    """Tensors as OPT's authors publish them: one ``.bin``, or several with an index."""
    if shards == 1:
        torch.save(tensors, folder / BIN)
        return
    where = {}
    for shard in range(shards):
        file = f"pytorch_model-{shard + 1:05}-of-{shards:05}.bin"
        held = sorted(tensors)[shard::shards]
        torch.save({name: tensors[name] for name in held}, folder / file)
        where |= dict.fromkeys(held, file)
    (folder / BIN_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def _same_state(one, other):
    assert one.keys() == other.keys()
    unlike = [
        name
        for name in one
        if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])
    ]
    assert unlike == []


def _zeros_like(folder):
    return {name: torch.zeros_like(t) for name, t in load_file(folder / SAFE).items()}


@pytest.mark.parametrize("shards", [1, 3], ids=["one file", "shards"])
def test_pickled_weights_are_read_to_the_bit(shape_name, pickled, tiny_transformer, shards):
    loaded = checkpoint.load(pickled(shape_name, shards))
    _same_state(loaded.state_dict(), tiny_transformer(shape_name).state_dict())


def test_pickled_weights_are_cast_while_reading(pickled, tiny_transformer):
    loaded = checkpoint.load(pickled(OPT, 2), torch.bfloat16)
    _same_state(loaded.state_dict(), tiny_transformer(OPT).to(torch.bfloat16).state_dict())


def test_what_transformers_pickles_is_read_to_the_bit(pair, tmp_path):
    """With a tied head stored beside the embedding, as its state has it."""
    torch.save(pair.reference.state_dict(), tmp_path / BIN)
    pair.reference.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = [type(pair.reference).__name__]
    (tmp_path / "config.json").write_text(json.dumps(config))
    _same_state(checkpoint.load(tmp_path).state_dict(), pair.ours.state_dict())


def test_transformers_shards_are_read_to_the_bit(pair, tmp_path):
    pair.reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(files.weight_files(tmp_path)) > 2
    _same_state(checkpoint.load(tmp_path).state_dict(), pair.ours.state_dict())


def test_names_of_the_first_opt_files_are_read(pickled, tiny_transformer):
    folder = pickled(OPT)
    tensors = torch.load(folder / BIN)
    short = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    assert all(name.startswith("decoder.") for name in short)
    copy = short["decoder.embed_tokens.weight"].clone()
    torch.save(short | {"lm_head.weight": copy}, folder / BIN)
    _same_state(checkpoint.load(folder).state_dict(), tiny_transformer(OPT).state_dict())


def test_safetensors_are_read_where_pickled_weights_lie_beside_them(saved, tiny_transformer):
    folder = saved(OPT)
    for shards in (1, 2):
        _pickle(folder, _zeros_like(folder), shards)
    _same_state(checkpoint.load(folder).state_dict(), tiny_transformer(OPT).state_dict())
    assert files.weight_files(folder) == [folder / SAFE]


def test_weights_stored_again_under_other_names_are_not_read(saved, tiny_transformer):
    folder = saved(LLAMA)
    save_file(_zeros_like(folder), folder / "consolidated.safetensors")
    (folder / "training_args.bin").write_bytes(b"of no concern")
    _same_state(checkpoint.load(folder).state_dict(), tiny_transformer(LLAMA).state_dict())


def test_a_whole_file_is_read_though_an_old_index_lies_beside_it(saved, tiny_transformer):
    """As transformers does; whoever saves into a folder of shards leaves one."""
    folder = saved(OPT)
    old = {"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    (folder / SAFE_INDEX).write_text(json.dumps(old))
    _same_state(checkpoint.load(folder).state_dict(), tiny_transformer(OPT).state_dict())
    reopened = transformers.AutoModelForCausalLM.from_pretrained(folder)
    checkpoint.save(checkpoint.load(folder), folder / "ours")
    ours = transformers.AutoModelForCausalLM.from_pretrained(folder / "ours")
    _same_state(reopened.state_dict(), ours.state_dict())


def test_pickled_weights_do_not_stand_in_for_a_missing_shard_of_safetensors(saved):
    folder = saved(OPT)
    _pickle(folder, load_file(folder / SAFE))
    (folder / SAFE).unlink()
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (folder / SAFE_INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="lacks model-00001-of-00002"):
        checkpoint.load(folder)


def test_a_missing_shard_is_named(pickled):
    folder = pickled(OPT, 3)
    (folder / "pytorch_model-00002-of-00003.bin").unlink()
    with pytest.raises(CheckpointError, match=r"lacks pytorch_model-00002-of-00003\.bin$"):
        checkpoint.load(folder)


def test_a_link_to_a_lost_file_counts_as_missing(pickled):
    folder = pickled(OPT)
    (folder / BIN).unlink()
    (folder / BIN).symlink_to(folder / "lost")
    with pytest.raises(CheckpointError, match="lacks"):
        files.weight_files(folder)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": []}}'],
    ids=["broken", "a list", "no map", "no mapping", "no names"],
)
def test_a_damaged_index_is_named(pickled, text):
    folder = pickled(OPT, 2)
    (folder / BIN_INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin\.index\.json"):
        checkpoint.load(folder)


def test_an_index_leads_to_no_file_outside_the_folder(pickled):
    folder = pickled(OPT)
    shutil.move(folder / BIN, folder.parent / "outside.bin")
    (folder / BIN_INDEX).write_text(json.dumps({"weight_map": {"a": "../outside.bin"}}))
    with pytest.raises(CheckpointError, match=r"lacks \.\./outside\.bin"):
        checkpoint.load(folder)


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _legacy(path):
    torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)


class Surprise:
    """What no weights file should hold: an object of some class."""


DAMAGES = {
    "half of a file": _cut,
    "nothing": lambda path: path.write_bytes(b""),
    "a page of a web site": lambda path: path.write_text("<html>Not found</html>" * 40),
    "a pointer to another store": lambda path: path.write_text("version https://git-lfs.example\n"),
}
PICKLE_DAMAGES = {
    "the form before zip": _legacy,
    "a plain pickle": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "an object": lambda path: torch.save({"a": Surprise()}, path),
    "a list of tensors": lambda path: torch.save([torch.zeros(2)], path),
    "a name without a tensor": lambda path: torch.save({"step": 7}, path),
    "a tensor without a name": lambda path: torch.save({7: torch.zeros(2)}, path),
}


@pytest.mark.parametrize("damage", DAMAGES | PICKLE_DAMAGES)
def test_a_damaged_pickled_file_is_named(pickled, damage):
    folder = pickled(OPT, 2)
    (DAMAGES | PICKLE_DAMAGES)[damage](folder / "pytorch_model-00002-of-00002.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model-00002-of-00002\.bin .") as caught:
        checkpoint.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_safetensors_file_is_named(saved, damage):
    folder = saved(OPT)
    DAMAGES[damage](folder / SAFE)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: .") as caught:
        checkpoint.load(folder)
    assert "\n" not in str(caught.value)


def test_flipped_bytes_give_a_refusal_by_name_or_a_model_of_the_right_sizes(pickled):
    """Whatever the unpickler makes of damage: no other error, and never another shape."""
    folder = pickled(LLAMA)
    path = folder / BIN
    whole, draw = path.read_bytes(), torch.Generator().manual_seed(3)
    start = whole.index(b"data.pkl")
    for at in (start + torch.randint(0, 4000, (60,), generator=draw)).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            loaded = checkpoint.load(folder)
        except CheckpointError:
            continue
        assert sum(p.numel() for p in loaded.parameters()) == loaded.shape.num_parameters


def test_a_tensor_in_two_shards_is_refused(pickled):
    folder = pickled(OPT, 2)
    first, second = files.weight_files(folder)
    name = next(iter(torch.load(second)))
    torch.save(torch.load(first) | {name: torch.load(second)[name]}, first)
    with pytest.raises(CheckpointError, match=f"{name} is stored twice"):
        checkpoint.load(folder)


def test_parts_of_one_matrix_in_two_dtypes_are_refused(pickled):
    folder = pickled(LLAMA)
    name = "model.layers.1.self_attn.v_proj.weight"
    tensors = torch.load(folder / BIN)
    torch.save(tensors | {name: tensors[name].half()}, folder / BIN)
    with pytest.raises(CheckpointError, match=f"{name}: torch.float16"):
        checkpoint.load(folder)


def test_a_config_without_sizes_is_refused_by_its_missing_key(saved):
    folder = saved(OPT)
    config = json.loads((folder / "config.json").read_text())
    del config["ffn_dim"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config\.json lacks 'ffn_dim'"):
        files.read_shape(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json holds no mapping"):
        files.read_shape(folder)


def test_loaded_weights_do_not_change_with_their_file(pickled, tiny_transformer):
    folder = pickled(OPT)
    loaded = checkpoint.load(folder)
    with (folder / BIN).open("r+b") as file:
        file.write(b"\xff" * (folder / BIN).stat().st_size)
    _same_state(loaded.state_dict(), tiny_transformer(OPT).state_dict())
