"""Device profiles: which one a device gets, which rates hold, and what is refused."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from bench import gpus, presence
from bench.config import ROOT
from bench.errors import FaultsError, InputError
from bench.gpus import GpuConfig, PeakFlops
from bench.planning import plan

CONF = ROOT / "conf" / "gpu"
OURS = sorted(path for path in CONF.glob("*.yaml") if not path.match("cpu-*"))
DATA_SHEETS = [path for path in OURS if path.stem not in ("auto", "cpu")]
MODEL = "Some CPU @ 2.00GHz"
CPU_FILE = """\
name: cpu
device_names: ["{model}"]
peak_flops_per_s: {{float32: 1.0e+11, bfloat16: null, float16: null}}
read_bandwidth_bytes_per_s: {read}
threads: {threads}
source: measured
"""
GPU_FILE = """\
name: {name}
device_names: ["{called}"]
read_bandwidth_bytes_per_s: 5.0e+11
"""


@pytest.fixture
def machine(monkeypatch):
    """``machine(*gpus, cpu)``: what the driver's tool and the system say is there."""

    def make(*devices, cpu=MODEL):
        monkeypatch.setattr(gpus, "_asked", lambda field: list(devices))
        monkeypatch.setattr(gpus, "cpu_model", lambda: cpu)

    return make


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty folder of profiles in place of ours."""
    monkeypatch.setattr(gpus, "FOLDER", tmp_path)
    return tmp_path


def write_cpu(folder, *, threads, read, model=MODEL):
    content = CPU_FILE.format(model=model, threads=threads, read=read)
    (folder / f"cpu-{threads}t-{len(model)}.yaml").write_text(content)


# ---- the files ----


def test_there_are_profiles_to_look_at():
    assert len(DATA_SHEETS) >= 9


@pytest.mark.parametrize("path", DATA_SHEETS, ids=lambda path: path.stem)
def test_a_data_sheets_profile_states_its_rates_and_their_source(path, configured):
    profile = configured("+method=dense", f"gpu={path.stem}").gpu
    assert profile.device_names
    assert profile.source
    assert profile.threads is None
    # Nobody measured a copy, and no sheet states one.
    assert profile.copy_bandwidth_bytes_per_s is None
    assert 3e11 < profile.read_bandwidth_bytes_per_s < 1e13
    peak = profile.peak_flops_per_s
    assert peak.float32 < peak.float16
    # Without sparsity: the float32 of tensor cores would be far more than a fiftieth of it.
    assert 2 <= peak.float16 / peak.float32 < 32
    assert peak.bfloat16 in (None, peak.float16)


def test_only_the_v100_has_no_bfloat16(configured):
    lacking = [
        path.stem
        for path in DATA_SHEETS
        if configured("+method=dense", f"gpu={path.stem}").gpu.peak_flops_per_s.bfloat16 is None
    ]
    assert lacking == ["v100"]


def test_no_two_profiles_hold_the_same_device():
    profiles = [each for _, each in gpus._files(CONF) if each.name != "cpu"]
    names = [name.casefold() for each in profiles for name in each.device_names]
    assert len(names) == len(set(names)) >= 9


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_a_profile_has_every_key_so_that_each_can_be_set(path):
    values = OmegaConf.to_container(OmegaConf.load(path))
    # These two have a default that fits most.
    stated = [key for key in values if key not in ("kind", "slurm")]
    assert stated == [each.name for each in fields(GpuConfig)][: len(stated)]
    assert len(stated) == len(fields(GpuConfig)) - 2
    assert list(values["peak_flops_per_s"]) == [each.name for each in fields(PeakFlops)]


# ---- what is there ----

KNOWN = [
    ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
    ("nvidia a100 80gb pcie", "a100-80gb"),
    ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
    ("NVIDIA H100 80GB HBM3", "h100"),
    ("Tesla V100-SXM2-32GB", "v100"),
    ("NVIDIA H100 PCIe", "nvidia-h100-pcie"),
    ("NVIDIA H200 NVL", "nvidia-h200-nvl"),
    ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "nvidia-a100-sxm4-80gb-mig-1g.10gb"),
]


@pytest.mark.parametrize(("called", "name"), KNOWN)
def test_auto_knows_a_device_by_its_whole_name_and_slugs_others(called, name, machine):
    machine(called, "NVIDIA L40S")
    profile = gpus.resolve(GpuConfig("auto"))
    assert profile.name == name
    assert gpus.has_rates(profile) == (not name.startswith("nvidia"))


def test_auto_is_the_cpu_where_there_is_no_gpu(machine):
    machine()
    assert gpus.resolve(GpuConfig("auto")).name == "cpu"


def test_a_device_that_was_measured_keeps_the_name_it_had_before(machine, folder):
    machine("NVIDIA Strange 9")
    before = gpus.resolve(GpuConfig("auto"))
    gpus._files.cache_clear()
    content = GPU_FILE.format(name=before.name, called="NVIDIA Strange 9")
    (folder / f"{before.name}.yaml").write_text(content)
    after = gpus.resolve(GpuConfig("auto"))
    assert (before.name, before.read_bandwidth_bytes_per_s) == ("nvidia-strange-9", None)
    assert (after.name, after.read_bandwidth_bytes_per_s) == ("nvidia-strange-9", 5e11)


def test_settings_that_are_given_win_over_the_profile_that_is_found(machine):
    machine("NVIDIA L40S")
    given = GpuConfig("auto", peak_flops_per_s=PeakFlops(bfloat16=1.0), memory_bytes=2)
    profile = gpus.resolve(given)
    assert (profile.name, profile.memory_bytes) == ("l40s", 2)
    assert profile.peak_flops_per_s == PeakFlops(91.6e12, 1.0, 362.05e12)


def test_a_named_profile_stays_as_it_is_wherever_it_is_planned(machine, configured):
    machine("NVIDIA L40S")
    given = configured("+method=dense", "gpu=h100", "gpu.read_bandwidth_bytes_per_s=3e12").gpu
    assert gpus.resolve(given) == given
    assert given.read_bandwidth_bytes_per_s == 3e12


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(value):
    with pytest.raises(FaultsError) as caught:
        gpus.resolve(GpuConfig("h100", read_bandwidth_bytes_per_s=value))
    [fault] = caught.value.faults
    assert fault.where == "gpu.read_bandwidth_bytes_per_s"


# ---- files that users add ----


def test_two_profiles_of_one_device_are_refused_by_their_files(machine, folder):
    machine("NVIDIA Strange 9")
    for name in ("one", "other"):
        (folder / f"{name}.yaml").write_text(GPU_FILE.format(name=name, called="nvidia STRANGE 9"))
    with pytest.raises(InputError, match=r"one\.yaml, other\.yaml"):
        gpus.resolve(GpuConfig("auto"))


FAULTY = {
    "no yaml": ("name: [", InputError, "Cannot read a device profile"),
    "a list": ("- 1\n", FaultsError, "name is missing"),
    "an unknown key": ("name: x\nspeed: 3\n", FaultsError, "Unknown setting gpu/mine.speed"),
    "no rate": ("name: x\nmemory_bytes: 0\n", FaultsError, "gpu/mine.memory_bytes"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_profile_is_told_with_its_file(name, machine, folder):
    content, kind, words = FAULTY[name]
    (folder / "mine.yaml").write_text(content)
    machine("NVIDIA Strange 9")
    with pytest.raises(kind, match=words):
        gpus.resolve(GpuConfig("auto"))


def test_a_profile_laid_over_another_is_for_choosing_by_name_alone(machine, folder):
    (folder / "mine.yaml").write_text("defaults: [h100]\nmemory_bytes: 5\n")
    machine("NVIDIA Strange 9")
    assert gpus.resolve(GpuConfig("auto")) == GpuConfig("nvidia-strange-9")


# ---- a CPU's rates hold for one number of threads ----


def test_a_cpus_rates_are_those_of_its_model_and_number_of_threads(machine, folder):
    machine()
    write_cpu(folder, threads=1, read="1.0e+10")
    write_cpu(folder, threads=4, read="4.0e+10")
    write_cpu(folder, threads=8, read="8.0e+10", model="Another CPU")
    cpu = gpus.resolve(GpuConfig("auto"))
    found = {threads: gpus.rates_for(cpu, threads) for threads in (1, 4, 8)}
    read = {threads: each.read_bandwidth_bytes_per_s for threads, each in found.items()}
    assert read == {1: 1e10, 4: 4e10, 8: None}
    assert {each.name for each in found.values()} == {"cpu"}
    assert found[4].threads == 4
    assert not gpus.has_rates(found[8])


def test_rates_of_another_number_of_threads_are_let_go_even_if_chosen_by_name(machine, folder):
    machine()
    write_cpu(folder, threads=1, read="1.0e+10")
    chosen = GpuConfig("cpu", (MODEL,), PeakFlops(2e11), 4e10, threads=4, source="measured")
    assert gpus.rates_for(chosen, 4) == chosen
    assert gpus.rates_for(chosen, 1).read_bandwidth_bytes_per_s == 1e10
    assert gpus.rates_for(chosen, 2) == GpuConfig("cpu", (MODEL,))


def test_rates_given_for_the_run_at_hand_win_over_the_measured(machine, folder):
    machine()
    write_cpu(folder, threads=4, read="4.0e+10")
    given = gpus.resolve(GpuConfig("cpu", read_bandwidth_bytes_per_s=9e10))
    assert gpus.rates_for(given, 4).read_bandwidth_bytes_per_s == 9e10
    assert gpus.rates_for(given, 4).peak_flops_per_s.float32 == 1e11
    assert gpus.rates_for(given, 2) == given


def test_a_gpus_rates_hold_for_any_number_of_threads(machine):
    machine("NVIDIA L40S")
    profile = gpus.resolve(GpuConfig("auto"))
    assert gpus.rates_for(profile, 1) == gpus.rates_for(profile, 64) == profile


def test_a_cpu_that_does_not_tell_its_model_has_no_measured_rates(machine, folder):
    machine(cpu=None)
    write_cpu(folder, threads=4, read="4.0e+10")
    assert gpus.rates_for(GpuConfig("cpu"), 4) == GpuConfig("cpu")


def test_the_cpus_model_is_read_where_the_system_has_it(monkeypatch, tmp_path):
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(gpus, "_CPU_FILE", path)
    path.write_text("processor\t: 0\nmodel name\t: Some CPU: 2\nprocessor\t: 1\n")
    assert gpus.cpu_model() == "Some CPU: 2"
    path.write_text("processor\t: 0\nCPU part\t: 0xd40\n")
    assert gpus.cpu_model() is None


def test_measuring_a_cpu_changes_no_run_id(configured, machine, folder):
    machine()
    config = configured("+method=dense", "gpu=cpu", "task.limit=2")
    before = plan(config).run_id
    gpus._files.cache_clear()
    write_cpu(folder, threads=2, read="4.0e+10")
    rated = replace(config, gpu=gpus.rates_for(config.gpu, 2))
    assert gpus.has_rates(rated.gpu)
    assert plan(config).run_id == plan(rated).run_id == before


# ---- what a user is told ----


def test_unknown_rates_are_told_with_the_command_that_measures_them():
    known = GpuConfig("x", read_bandwidth_bytes_per_s=1.0)
    assert gpus.unknown_rates(known) is None
    told = gpus.unknown_rates(GpuConfig("nvidia-strange-9"))
    assert "nvidia-strange-9" in told
    assert "python -m bench action=profile-gpu measures" in told
    assert "action=profile-gpu gpu=cpu" in gpus.unknown_rates(GpuConfig("cpu"))


@pytest.fixture
def cuda(monkeypatch):
    """``cuda(name)``: torch sees one GPU, of this name."""

    def make(name):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)

    return make


def test_another_gpu_than_the_profiles_is_refused_and_the_right_one_named(cuda, configured):
    cuda("NVIDIA A100-SXM4-40GB")
    profile = configured("+method=dense", "gpu=h100").gpu
    with pytest.raises(InputError) as caught:
        presence.resolve(profile)
    assert caught.value.got == "gpu=h100, on NVIDIA A100-SXM4-40GB"
    assert "gpu=a100-40gb" in caught.value.allowed
    right = configured("+method=dense", "gpu=a100-40gb").gpu
    assert presence.resolve(right).type == "cuda"


def test_a_profile_without_device_names_is_compared_with_nothing(cuda):
    cuda("NVIDIA A100-SXM4-40GB")
    assert presence.resolve(GpuConfig("nvidia-strange-9")).type == "cuda"


def test_a_measured_profile_of_another_cpu_is_refused(machine):
    machine()
    assert presence.resolve(GpuConfig("cpu", (MODEL,))).type == "cpu"
    assert presence.resolve(GpuConfig("cpu")).type == "cpu"
    with pytest.raises(InputError, match="another device"):
        presence.resolve(GpuConfig("cpu", ("Another CPU",)))


def test_the_folder_of_profiles_is_that_of_the_configuration():
    assert Path(gpus.FOLDER) == CONF
