"""Models of the transformers library: opened from a folder or from our weights, and left alone."""

import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from methods.engine import checkpoint, hf
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.families import UnsupportedError
from methods.engine.files import CheckpointError

PLAIN = Options(packed=False)
NEW = 6


@pytest.fixture
def folder(shape_name, tiny_transformer, tmp_path):
    checkpoint.save(tiny_transformer(shape_name), tmp_path)
    return tmp_path


def generated(model, prompts, **named):
    request = hf.Request.of(prompts, NEW, (), model.shape)
    widths = []
    with torch.inference_mode():
        ids = model.generate(request, widths.append, **named)
    return ids, widths


def test_a_folder_and_its_weights_in_memory_make_one_model(folder, make_prompts, capfd):
    opened = hf.from_folder(folder, PLAIN)
    made = hf.from_transformer(checkpoint.load(folder), PLAIN)
    assert opened.shape == made.shape
    first, second = (model.model.state_dict() for model in (opened, made))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    prompts = Prompts.of(make_prompts([5, 3]))
    assert torch.equal(generated(opened, prompts)[0], generated(made, prompts)[0])
    # Neither bars nor warnings of the library's.
    assert capfd.readouterr() == ("", "")


def test_it_has_the_dtype_that_is_asked_for_and_the_attention_that_users_get(folder):
    model = hf.from_folder(folder, Options(dtype=torch.bfloat16, packed=False))
    assert {each.dtype for each in model.model.parameters()} == {torch.bfloat16}
    assert model.model.config._attn_implementation == "sdpa"
    assert not model.model.training


def test_each_step_is_told_of_with_the_columns_that_are_there(folder, make_prompts):
    ids, widths = generated(hf.from_folder(folder, PLAIN), Prompts.of(make_prompts([5, 3])))
    assert widths == list(range(6, 6 + NEW))
    assert ids.shape == (2, 5 + NEW)


def test_a_tensor_that_the_library_would_make_up_is_refused(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "layers.1." in name)
    save_file({k: v for k, v in tensors.items() if k != name}, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"1 tensors are not there.*{name}"):
        hf.from_folder(folder, PLAIN)


def test_a_damaged_file_is_refused(folder):
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError):
        hf.from_folder(folder, PLAIN)


def test_an_architecture_that_the_suite_does_not_have_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    with pytest.raises(UnsupportedError, match="GPT2LMHeadModel"):
        hf.from_folder(tmp_path, PLAIN)


def test_the_librarys_log_and_bars_are_as_they_were(folder, make_prompts):
    logger = logging.getLogger("transformers.generation.utils")
    before = (list(logger.filters), logger.level, hf.library_logging.is_progress_bar_enabled())
    model = hf.from_folder(folder, PLAIN)
    generated(model, Prompts.of(make_prompts([5])))
    request = hf.Request.of(Prompts.of([[2, 5]]), NEW, (), model.shape)
    with pytest.raises(ZeroDivisionError):
        model.generate(request, lambda width: width / 0)
    assert before == (logger.filters, logger.level, hf.library_logging.is_progress_bar_enabled())
