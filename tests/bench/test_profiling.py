"""Measuring a device: the arithmetic, by a clock that is scripted, and what is written where."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from bench import gpus, profiling
from bench.binding import bind
from bench.errors import InputError
from bench.gpus import GpuConfig, PeakFlops
from bench.meters import clock

HOST = torch.device("cpu")
MODEL = "Some CPU (R) @ 2.00GHz"
SOURCE = "measured by action=profile-gpu on 2026-01-31 with torch 9"
RATES = {
    "peak_flops_per_s": PeakFlops(1.25e11, None, 3.5e9),
    "read_bandwidth_bytes_per_s": 2.5e10,
    "copy_bandwidth_bytes_per_s": 2.25e10,
}


@pytest.fixture
def clocked(monkeypatch):
    """``clocked(*seconds)``: what the clock gives, one after another; the work is still done."""

    def make(*seconds):
        left = iter(seconds)

        def elapsed(device, work):
            work()
            return next(left)

        monkeypatch.setattr(profiling, "elapsed", elapsed)

    return make


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty folder of profiles, on a CPU of which nothing is known."""
    monkeypatch.setattr(gpus, "FOLDER", tmp_path)
    monkeypatch.setattr(gpus, "cpu_model", lambda: MODEL)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(profiling, "available_bytes", lambda device: None)
    yield tmp_path
    gpus._files.cache_clear()


@pytest.fixture
def measured(monkeypatch):
    """``measured(**changes)``: what measuring gives, whatever the device."""

    def make(**changes):
        def measure(subject, array_bytes, *, quiet):
            called = () if subject.called is None else (subject.called,)
            rates = {"threads": subject.threads, "source": SOURCE, **RATES, **changes}
            return GpuConfig(subject.known.name, called, **rates)

        monkeypatch.setattr(profiling, "_measure", measure)

    make()
    return make


def asked(name="cpu", **settings):
    """The part of a configuration that matters."""
    return SimpleNamespace(gpu=GpuConfig(name, **settings), verbosity="quiet")


# ---- the clock and the arithmetic ----


def test_elapsed_counts_what_the_device_does_late(monkeypatch):
    now = SimpleNamespace(host=10.0, device=10.0)

    def wait():
        now.host = max(now.host, now.device)

    def work():
        now.host += 1.0
        now.device = now.host + 5.0

    monkeypatch.setattr(clock.time, "perf_counter", lambda: now.host)
    device = SimpleNamespace(synchronise=wait)
    work()
    # What was begun before is waited for, and counts not.
    assert clock.elapsed(device, work) == 6.0


def test_a_pass_is_as_many_calls_as_fill_it_and_the_best_pass_counts(clocked):
    calls = []
    # A first call, one to size a pass by, five passes.
    clocked(9.0, 0.025, 0.5, 0.3, 0.2, 0.4, 0.6)
    assert profiling._best_s(HOST, lambda: calls.append(1)) == 0.2 / 4
    assert len(calls) == 1 + 1 + 5 * 4


def test_a_copy_counts_what_is_read_and_what_is_written(clocked):
    clocked(*[1.0] * 7, *[4.0] * 7)
    assert profiling._bandwidths(HOST, 4096) == (4096 / 1.0, 2 * 4096 / 4.0)


def test_the_peak_is_that_of_the_size_that_does_best(monkeypatch):
    monkeypatch.setattr(profiling, "_SIZES", (2, 4, 8))
    seconds = iter([1e-3, 2e-3, 32e-3])
    monkeypatch.setattr(profiling, "_best_s", lambda device, work: next(seconds))
    assert profiling._peak(HOST, torch.float32, 2**20) == 2 * 4**3 / 2e-3


def test_no_size_is_tried_that_takes_long_or_does_not_fit(monkeypatch):
    monkeypatch.setattr(profiling, "_SIZES", (2, 4, 8))
    slow = iter([0.01, 0.07])
    monkeypatch.setattr(profiling, "_best_s", lambda device, work: next(slow))
    assert profiling._peak(HOST, torch.float32, 2**20) == 2 * 4**3 / 0.07
    fast = iter([0.01, 0.01])
    monkeypatch.setattr(profiling, "_best_s", lambda device, work: next(fast))
    # Three matrices of 8 x 8 need 768 bytes.
    assert profiling._peak(HOST, torch.float32, 767) == 2 * 4**3 / 0.01


def test_a_dtype_that_is_not_to_be_had_is_not_known_and_other_faults_are_faults(monkeypatch):
    outcomes = iter([RuntimeError("not implemented"), 0.01, RuntimeError("broken")])

    def best(device, work):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(profiling, "_SIZES", (2, 4))
    monkeypatch.setattr(profiling, "_best_s", best)
    assert profiling._peak(HOST, torch.float16, 2**20) is None
    with pytest.raises(RuntimeError, match="broken"):
        profiling._peak(HOST, torch.float16, 2**20)


MIB = 2**20
ROOM = [(None, 1024), (64 * 1024 * MIB, 1024), (3072 * MIB, 1024), (3000 * MIB, 1000)]


@pytest.mark.parametrize(("available", "expected"), [*ROOM, (768 * MIB, 256)])
def test_arrays_are_as_large_as_three_of_them_fit(available, expected):
    assert profiling._array_bytes(available) == expected * MIB


def test_too_little_memory_is_refused():
    with pytest.raises(InputError) as caught:
        profiling._array_bytes(767 * MIB)
    assert caught.value.got == "767 MiB"
    assert caught.value.allowed == "768 MiB, better 3,072"


def test_a_small_measurement_gives_every_rate_of_this_machine(monkeypatch, folder):
    monkeypatch.setattr(profiling, "_SIZES", (8, 16))
    monkeypatch.setattr(profiling, "_PASS_S", 0.0)
    subject = profiling._subject(GpuConfig("cpu"))
    found = profiling._measure(subject, 64 * 1024, quiet=True)
    rates = [value for _, value in gpus._rates(found)]
    assert len(rates) == 5
    assert min(rates) > 0
    assert found.source.startswith("measured by action=profile-gpu on 20")
    assert found.source.endswith("arrays of 0 MiB only")


# ---- what is written ----


def loaded(path):
    faults = []
    profile = bind(GpuConfig, OmegaConf.to_container(OmegaConf.load(path)), "gpu", faults)
    assert faults == []
    return profile


def test_a_written_profile_binds_to_what_was_measured(tmp_path):
    profile = GpuConfig("cpu", (MODEL,), threads=3, memory_bytes=None, source=SOURCE, **RATES)
    path = tmp_path / "x.yaml"
    path.write_text(profiling.text(profile, "cpu-x-3t"))
    assert loaded(path) == profile
    head = path.read_text().splitlines()[:2]
    assert head[0] == f"# {MODEL} with 3 threads, measured on one machine."
    assert head[1].startswith("# Run: python -m bench")
    assert "gpu=cpu-x-3t" in head[1]


def test_a_measured_cpu_is_found_again_for_its_number_of_threads(folder, measured, capsys):
    profiling.profile(asked("auto"))
    [path] = folder.iterdir()
    assert path.name == "cpu-some-cpu-r-2.00ghz-3t.yaml"
    out = capsys.readouterr().out
    assert str(path) in out
    assert "read, GB/s                   25.0\n" in out
    assert "bfloat16, GFLOP/s       not known\n" in out
    gpus._files.cache_clear()
    assert gpus.rates_for(GpuConfig("cpu"), 3).read_bandwidth_bytes_per_s == 2.5e10
    assert not gpus.has_rates(gpus.rates_for(GpuConfig("cpu"), 2))


def test_measured_anew_a_cpu_is_compared_and_its_file_replaced(folder, measured, capsys):
    profiling.profile(asked())
    gpus._files.cache_clear()
    capsys.readouterr()
    measured(read_bandwidth_bytes_per_s=3e10)
    profiling.profile(asked())
    [path] = folder.iterdir()
    assert loaded(path).read_bandwidth_bytes_per_s == 3e10
    assert "30.0   (profile: 25.0, so 120% of it)" in capsys.readouterr().out


def test_rates_of_a_data_sheet_are_compared_and_kept(folder, measured, monkeypatch, capsys):
    sheet = "name: big\ndevice_names: [NVIDIA Big]\nread_bandwidth_bytes_per_s: 5.0e+10\n"
    (folder / "big.yaml").write_text(f"{sheet}source: data sheet\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Big")
    profiling.profile(asked("auto"))
    assert (folder / "big.yaml").read_text() == f"{sheet}source: data sheet\n"
    assert len(list(folder.iterdir())) == 1
    out = capsys.readouterr().out
    assert "25.0   (profile: 50.0, so 50% of it)" in out
    assert "profile: data sheet\n" in out
    assert "nothing written" in out


def test_an_unknown_gpu_gets_the_profile_that_auto_will_find(folder, measured, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Strange 9")
    profiling.profile(asked("auto"))
    [path] = folder.iterdir()
    assert path.name == "nvidia-strange-9.yaml"
    gpus._files.cache_clear()
    monkeypatch.setattr(gpus, "_asked", lambda field: ["NVIDIA Strange 9"])
    found = gpus.resolve(GpuConfig("auto"))
    assert (found.name, found.threads) == ("nvidia-strange-9", None)
    assert found.peak_flops_per_s == RATES["peak_flops_per_s"]


def test_a_cpu_that_does_not_tell_its_model_is_chosen_by_the_file(
    folder, measured, monkeypatch, capsys
):
    monkeypatch.setattr(gpus, "cpu_model", lambda: None)
    monkeypatch.setattr(profiling.platform, "machine", lambda: "aarch64")
    profiling.profile(asked())
    [path] = folder.iterdir()
    assert loaded(path).device_names == ()
    assert "gpu=cpu-aarch64-3t takes it" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_told_after_the_rates(
    folder, measured, monkeypatch, capsys
):
    (folder / "file").write_text("")
    monkeypatch.setattr(gpus, "FOLDER", folder / "file")
    with pytest.raises(InputError) as caught:
        profiling.profile(asked())
    assert "Cannot write the device profile" in str(caught.value)
    assert "cpu-some-cpu-r-2.00ghz-3t.yaml" in caught.value.where
    assert "read, GB/s" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_little_memory_is_said(folder, measured, monkeypatch, capsys):
    monkeypatch.setattr(profiling, "available_bytes", lambda device: 900 * MIB)
    profiling.profile(asked())
    assert "arrays of 300 MiB only\n" in capsys.readouterr().out


def test_the_table_says_nothing_of_rates_that_are_not_known():
    measured = GpuConfig("x", ("X 9",), **RATES)
    lines = profiling.table(GpuConfig("x"), measured).splitlines()
    assert lines[0] == "X 9:"
    assert len(lines) == 6
    assert not any("profile" in line for line in lines)
    lacking = replace(measured, read_bandwidth_bytes_per_s=None)
    assert "not known   (profile: 25.0)" in profiling.table(measured, lacking)
