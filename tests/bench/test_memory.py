"""The peak of a leg is a leg's own, or not known."""

import pytest
import torch

from bench.meters.memory import PeakRss, cache_bytes
from methods.engine.cache import KVCache, Prompts

STATUS = "Name:\tpython\nVmPeak:\t  900000 kB\nVmHWM:\t   61916 kB\nVmRSS:\t   10712 kB\n"


@pytest.fixture
def process(tmp_path):
    """The kernel's files of a process: status, clear_refs."""
    status, clear_refs = tmp_path / "status", tmp_path / "clear_refs"
    status.write_text(STATUS)
    clear_refs.write_text("")
    return status, clear_refs


def test_the_high_water_mark_is_read_in_bytes(process):
    peak = PeakRss(*process)
    assert peak.reset()
    assert peak.read() == 61916 * 1024


def test_a_reset_writes_what_the_kernel_takes_for_the_mark(process):
    PeakRss(*process).reset()
    assert process[1].read_text() == "5"


def test_without_a_reset_the_peak_of_the_whole_life_is_not_given(process):
    assert PeakRss(*process).read() is None


def test_a_system_without_the_file_gets_none_and_no_file(process):
    process[1].unlink()
    peak = PeakRss(*process)
    assert not peak.reset()
    assert peak.read() is None
    assert not process[1].exists()


def test_a_reset_that_is_not_permitted_undoes_an_earlier_one(process):
    status, clear_refs = process
    peak = PeakRss(status, clear_refs)
    assert peak.reset()
    clear_refs.unlink()
    # Writing to a folder fails for root too.
    clear_refs.mkdir()
    assert not peak.reset()
    assert peak.read() is None


@pytest.mark.parametrize(
    "text",
    ["", "VmRSS:\t10712 kB\n", "VmHWM:\n", "VmHWM:\tmuch kB\n"],
    ids=["an empty file", "no such line", "no number", "no decimal number"],
)
def test_a_status_without_the_mark_is_not_known(process, text):
    process[0].write_text(text)
    peak = PeakRss(*process)
    peak.reset()
    assert peak.read() is None


def test_a_status_that_is_gone_is_not_known(process):
    peak = PeakRss(*process)
    peak.reset()
    process[0].unlink()
    assert peak.read() is None


def test_on_this_system_a_peak_follows_what_was_touched_since_the_reset():
    peak = PeakRss()
    if not peak.reset():
        pytest.skip("the high-water mark cannot be reset here")
    before, size = peak.read(), 64 << 20
    held = b"x" * size
    during = peak.read()
    del held
    assert during >= before + size * 0.9
    # Freed, and so no part of the next leg's peak.
    peak.reset()
    assert peak.read() <= during - size * 0.5


def test_the_bytes_of_a_cache_are_its_keys_and_values(tiny_shape):
    shape = tiny_shape("a Llama with grouped heads")
    prompts = Prompts.of([[1, 2, 3], [4]])
    cache = KVCache(shape, prompts, new_tokens=5, dtype=torch.bfloat16)
    # Two rows of 3 + 5 slots and the one that nobody sees, keys and values, 2 bytes each.
    values = shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim * 2 * (3 + 5 + 1)
    assert cache_bytes(cache.layers) == 2 * values
