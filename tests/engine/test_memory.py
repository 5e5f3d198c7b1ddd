"""Weights are held once: while they are read, and while they are brought into inference form.

Anonymous memory is what counts: mapped pages of the files can be dropped at any time.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.checkpoint import tensor_names
from methods.engine.families import config_of_shape
from methods.engine.inference import InferenceModel
from methods.engine.shape import Shape, complete_fields
from methods.engine.transformer import Transformer

ROOT = Path(__file__).resolve().parents[2]
# Times the weights: what may be held, and what a probe that sees them must find.
BOUND, SEEN = 1.25, 0.95
SMALL = {"num_layers": 10, "width": 768, "num_heads": 12, "ffn_width": 3072, "vocab_size": 5024}
LARGE = {"num_layers": 12, "width": 2048, "num_heads": 32, "ffn_width": 8192, "vocab_size": 10048}
FORMS = {
    "bin": ("pytorch_model-{:05}-of-{:05}.bin", "pytorch_model.bin.index.json"),
    "safetensors": ("model-{:05}-of-{:05}.safetensors", "model.safetensors.index.json"),
}
SHARDS = 2

# Prints what the process held before, at most and at the end, in bytes of anonymous memory.
PROBE = """
import re, sys, threading
from pathlib import Path
import torch
from methods.engine import checkpoint
from methods.engine.bound import Options
from methods.engine.inference import InferenceModel

def held():
    status = open("/proc/self/status").read()
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", status)[1])

folder, stored, wanted, consume = sys.argv[1:]
read_as = getattr(torch, stored)
sys.setswitchinterval(0.0005)
ended, seen = threading.Event(), []
def watch():
    while not ended.wait(0.001):
        seen.append(held())
watcher = threading.Thread(target=watch)
# The first tensors without data load some hundred modules of torch: no weights, and loaded once.
torch.nn.Linear(1, 1, device="meta"), torch.nn.Embedding(1, 1, device="meta")
before = held()
watcher.start()
model = checkpoint.load(Path(folder), read_as)
if wanted != "none":
    options = Options(dtype=getattr(torch, wanted), packed=False)
    model = InferenceModel(model, options, consume=consume == "yes")
ended.set()
watcher.join()
after = held()
print(before, max(seen), after)
"""


@pytest.fixture
def measured(tmp_path):
    """``measured(sizes, form, ...)``: bytes of the weights, of the peak and of the end."""

    def make(sizes, form, *, read_as="bfloat16", bind_as="none", consume=False):
        shape, folder = _shape(sizes), tmp_path / form
        _write(shape, folder, form)
        arguments = [str(folder), read_as, bind_as, "yes" if consume else "no"]
        done = subprocess.run(
            [sys.executable, "-c", PROBE, *arguments],
            cwd=ROOT,
            env={"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            capture_output=True,
            text=True,
            check=False,
        )
        shutil.rmtree(folder)
        assert done.returncode == 0, done.stderr
        before, peak, after = map(int, done.stdout.split())
        return shape.num_parameters, peak - before, after - before

    return make


def _shape(sizes):
    return Shape(
        **complete_fields({"family": "opt", "max_positions": 2048, "eos_token_ids": (2,)} | sizes)
    )


def _write(shape, folder, form):
    """A checkpoint in bfloat16, shard by shard; the values do not matter."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of_shape(shape, "bfloat16")))
    sizes = _sizes(shape)
    pattern, index = FORMS[form]
    where = {}
    names = list(sizes)
    for shard in range(SHARDS):
        file = pattern.format(shard + 1, SHARDS)
        held = names[shard * len(names) // SHARDS : (shard + 1) * len(names) // SHARDS]
        tensors = {name: torch.ones(sizes[name], dtype=torch.bfloat16) for name in held}
        (torch.save if form == "bin" else save_file)(tensors, folder / file)
        where |= dict.fromkeys(held, file)
    (folder / index).write_text(json.dumps({"weight_map": where}))


def _sizes(shape):
    """Stored name -> size; all matrices of an OPT's attention are square."""
    with torch.device("meta"):
        model = Transformer(shape)
    sizes = {}
    for ours, theirs in tensor_names(shape):
        height, *rest = model.get_parameter(ours).shape
        sizes |= dict.fromkeys(theirs, (height // len(theirs), *rest))
    return sizes


@pytest.mark.parametrize("form", FORMS)
def test_reading_holds_no_weight_twice(measured, form):
    weights, peak, _ = measured(SMALL, form)
    assert 140e6 < 2 * weights < 170e6
    assert SEEN * 2 * weights <= peak <= BOUND * 2 * weights


def test_reading_into_a_wider_dtype_holds_the_wide_weights_only(measured):
    weights, peak, _ = measured(SMALL, "bin", read_as="float32")
    assert SEEN * 4 * weights <= peak <= BOUND * 4 * weights


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_reading_a_gigabyte_holds_no_weight_twice(measured, form):
    weights, peak, _ = measured(LARGE, form)
    assert 2 * weights >= 1e9
    assert SEEN * 2 * weights <= peak <= BOUND * 2 * weights


def test_a_consumed_transformer_goes_as_its_copy_comes(measured):
    weights, peak, after = measured(
        SMALL, "safetensors", read_as="float32", bind_as="bfloat16", consume=True
    )
    assert peak <= 1.1 * 4 * weights
    assert after <= 1.1 * 2 * weights


def test_a_transformer_that_is_not_consumed_stays(tiny_transformer, make_prompts, shape_name):
    transformer = tiny_transformer(shape_name)
    before = {name: tensor.clone() for name, tensor in transformer.state_dict().items()}
    InferenceModel(transformer, Options(packed=False))
    after = transformer.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_consuming_changes_no_number(tiny_transformer, shape_name, prefilled, dtype, packed):
    rows = [[2, 5, 9, 11], [2, 7]]
    kept, _, expected = prefilled(tiny_transformer(shape_name), rows, 4, dtype=dtype, packed=packed)
    transformer = tiny_transformer(shape_name)
    options = Options(dtype=dtype, packed=packed, checked_cache=True)
    model = InferenceModel(transformer, options, consume=True)
    assert sum(parameter.numel() for parameter in transformer.parameters()) == 0
    prompts = Prompts.of(rows)
    x = model.prefill(prompts, model.new_cache(prompts, 4))
    assert torch.equal(model.head(x), kept.head(expected))
