"""What a run's engine settings become on its device; what is not to be had is refused."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from bench import legs
from bench.config import EngineConfig
from bench.errors import InputError

PLAIN = {
    "dtype": "float32",
    "packed": "auto",
    "attention": "auto",
    "compile": False,
    "cuda_graphs": False,
    "drop_finished": False,
}


def options(device="cpu", rows=1, **settings):
    config = SimpleNamespace(
        engine=EngineConfig(**PLAIN | settings), meter=SimpleNamespace(batch_size=rows)
    )
    planned = SimpleNamespace(config=config)
    return legs._options(SimpleNamespace(planned=planned, device=torch.device(device)))


@pytest.mark.parametrize(
    ("device", "dtype", "rows", "packed", "attention"),
    [
        ("cpu", "float32", 1, True, "sdpa"),
        ("cpu", "float32", 8, True, "sdpa"),
        ("cpu", "bfloat16", 1, True, "sdpa"),
        ("cpu", "bfloat16", 8, True, "products"),
        ("cpu", "float16", 8, False, "sdpa"),
        ("cuda", "bfloat16", 8, False, "sdpa"),
    ],
)
def test_auto_takes_what_is_fastest_there(device, dtype, rows, packed, attention):
    found = options(device, rows, dtype=dtype)
    assert (found.packed, found.attention) == (packed, attention)


def test_what_is_asked_for_is_taken():
    assert options(rows=8, dtype="bfloat16", attention="sdpa").attention == "sdpa"
    assert options(attention="products").attention == "products"
    assert not options(packed="off").packed


def test_compiled_blocks_hold_plain_weights():
    found = options(compile=True)
    assert found.compiled
    assert not found.packed
    with pytest.raises(InputError, match=r"Packed weights[\s\S]*engine.compile=true"):
        options(compile=True, packed="on")


def test_a_cpu_without_a_compiler_is_told_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"no C\+\+ compiler[\s\S]*engine.compile"):
        options(compile=True)


def test_cuda_graphs_are_for_cuda_devices():
    assert options("cuda", cuda_graphs=True).cuda_graphs
    with pytest.raises(InputError, match=r"CUDA graphs[\s\S]*got:? *cpu"):
        options(cuda_graphs=True)


def test_packing_is_refused_where_there_is_no_such_kernel():
    for device, dtype in (("cuda", "float32"), ("cpu", "float16")):
        with pytest.raises(InputError, match="Packed weights are not to be had here"):
            options(device, dtype=dtype, packed="on")
