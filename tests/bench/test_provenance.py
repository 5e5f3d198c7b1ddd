"""What is recorded of a machine, from planted files; unknown is None."""

import json
import os
import subprocess

import pytest
import torch

from bench import host, provenance
from bench.schema import Segment
from bench.surroundings import warnings


@pytest.fixture
def plant(tmp_path):
    """``plant(path, text)``: a file below a root of its own; gives the root."""

    def make(path="", text=""):
        if path:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return make


QUOTAS = {
    "version 2": (
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000"},
        1.5,
    ),
    "version 2, limited above": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
            "sys/fs/cgroup/a/cpu.max": "200000 100000",
        },
        2.0,
    ),
    "version 2, no limit": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"},
        None,
    ),
    "version 1, seen from a container": (
        {
            "proc/self/cgroup": "4:memory:/other\n3:cpuset:/\n2:cpu,cpuacct:/docker/7\n",
            "sys/fs/cgroup/cpu/other/cpu.cfs_quota_us": "10000",
            "sys/fs/cgroup/cpu/other/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        0.5,
    ),
    "version 1, no limit": (
        {
            "proc/self/cgroup": "1:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        None,
    ),
    "an empty period": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100 0"}, None),
    "a strange line": ({"proc/self/cgroup": "strange\n"}, None),
    "no control groups": ({}, None),
}


@pytest.mark.parametrize(("files", "cores"), QUOTAS.values(), ids=QUOTAS)
def test_the_tightest_quota_of_the_control_groups_counts(plant, files, cores):
    for path, text in files.items():
        plant(path, f"{text}\n")
    assert host.cpu_quota_cores(plant()) == cores


def test_the_clock_is_of_the_cpu_that_is_used(plant):
    for name, text in {
        "cur_freq": "2100000",
        "max_freq": "3500000",
        "governor": "performance",
    }.items():
        plant(f"sys/devices/system/cpu/cpu3/cpufreq/scaling_{name}", f"{text}\n")
    assert host.cpu_clock(3, plant()) == {
        "current_mhz": 2100.0,
        "max_mhz": 3500.0,
        "governor": "performance",
        "driver": None,
    }


def test_without_frequency_files_the_clock_is_the_one_that_cpuinfo_shows(plant):
    root = plant("proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 2596.134\n")
    assert host.cpu_clock(0, root)["current_mhz"] == 2596.134


def test_a_machine_that_shows_nothing_has_no_clock(tmp_path):
    assert set(host.cpu_clock(0, tmp_path).values()) == {None}


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((3,), "3"), ((8, 0, 1, 3, 2), "0-3,8"), ((0, 2, 3), "0,2-3")],
)
def test_sets_of_cpus_are_written_as_the_kernel_does(numbers, text):
    assert host.compressed(numbers) == text


def test_only_variables_that_bear_on_speed_and_are_set_are_recorded():
    environment = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_AFFINITY": "compact",
        "SLURM_CPU_BIND": "quiet",
        "SLURM_JOB_ID": "7",
        "PYTORCH_CUDA_ALLOC_CONF": "x",
        "LD_PRELOAD": "libjemalloc.so",
        "CUDA_HOME": "/opt",
        "HF_TOKEN": "secret",
        "WANDB_API_KEY": "secret",
    }
    kept = provenance.bearing_on_speed(environment)
    assert sorted(kept) == sorted(set(environment) - {"CUDA_HOME", "HF_TOKEN", "WANDB_API_KEY"})


@pytest.fixture
def driver_tool(monkeypatch):
    """``driver_tool(out, code)``: what nvidia-smi prints; the list of what it was asked."""
    asked = []

    def make(out, code=0):
        def answer(command, **_):
            asked.append(command)
            return subprocess.CompletedProcess(command, code, stdout=out)

        monkeypatch.setattr(provenance.shutil, "which", lambda name: f"/bin/{name}")
        monkeypatch.setattr(provenance.subprocess, "run", answer)
        return asked

    return make


STATE = "1980, 1980, 2619, 2619, 700.00, Enabled, Disabled, [N/A], 31\n"


def test_one_question_gives_the_state_of_our_gpu_alone(driver_tool):
    asked = driver_tool(STATE)
    assert provenance._gpu_state("GPU-1") == {
        "sm_clock_mhz": 1980.0,
        "sm_max_clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
        "memory_max_clock_mhz": 2619.0,
        "power_limit_w": 700.0,
        "persistence_mode": True,
        "ecc": False,
        "mig": None,
        "temperature_c": 31.0,
    }
    [command] = asked
    assert command[:3] == ["nvidia-smi", "-i", "GPU-1"]


@pytest.mark.parametrize(("out", "code"), [("", 0), ("1, 2\n", 0), (STATE, 9)])
def test_a_driver_tool_that_does_not_answer_leaves_the_gpu_state_unknown(driver_tool, out, code):
    driver_tool(out, code)
    assert provenance._gpu_state("GPU-1") is None


def test_without_a_gpu_its_tool_is_not_asked(driver_tool):
    asked = driver_tool("")
    assert provenance._gpu_state(None) is None
    assert asked == []


def test_a_segment_finds_its_hardware_and_the_record_is_plain_data():
    found = provenance.collect(torch.device("cpu"))
    assert json.loads(json.dumps(found)) == found
    assert Segment(found, "").hardware == ("cpu", None, None, found["cpu_model"])
    assert found["threads"] == torch.get_num_threads()
    assert found["neighbours"]["gpu_processes"] is None
    assert isinstance(warnings(found), list)


def test_a_system_that_binds_no_process_is_recorded_all_the_same(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    found = provenance.collect(torch.device("cpu"))
    assert found["cpu_affinity"] is None
    assert found["neighbours"]["cpu_cores"] is None
