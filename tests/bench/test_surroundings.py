"""What makes a time doubtful is told, with what helps; what does not is not."""

import pytest

from bench import surroundings
from bench.surroundings import CpuTicks, warnings

CLEAN = {
    "git_dirty": False,
    "device": "cpu",
    "threads": 4,
    "cpu_affinity": 4,
    "logical_cpus": 4,
    "cpu_quota_cores": None,
    "cpu_clock": {"governor": "performance", "driver": "acpi-cpufreq"},
    "environment": {},
    "neighbours": {"cpu_cores": 0.1, "gpu_processes": []},
}
ON_GPU = {"device": "cuda:0"}


def busy(cores):
    return {"neighbours": {"cpu_cores": cores, "gpu_processes": None}}


def setting(**environment):
    return {"environment": environment}


def clocked(governor, driver):
    return {"cpu_clock": {"governor": governor, "driver": driver}}


@pytest.fixture
def plant(tmp_path):
    """``plant(path, text)``: a file below a root of its own; gives the root."""

    def make(path="", text=""):
        if path:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return make


DOUBTFUL = {
    "a whole core taken": (busy(1.0), "Other processes use 1.0 of the 4 CPUs", "--exclusive"),
    "half of a small share taken": (
        busy(1.5) | {"cpu_affinity": 64, "threads": 2},
        "Other processes use 1.5 of the 64 CPUs",
        "wait for them",
    ),
    "one CPU, taken, beside a GPU": (
        busy(0.9) | ON_GPU | {"cpu_affinity": 1},
        "Other processes use 0.9 of the 1 CPUs",
        "--exclusive",
    ),
    "somebody on the GPU": (
        ON_GPU | {"neighbours": {"cpu_cores": 0.0, "gpu_processes": [{"pid": 71}, {"pid": 9}]}},
        "pid 71, 9",
        "CUDA_VISIBLE_DEVICES",
    ),
    "fewer CPUs than threads": (
        {"cpu_affinity": 2},
        "4 threads share 2 CPUs by this process's CPU affinity",
        "OMP_NUM_THREADS=2",
    ),
    "a quota below the threads": (
        {"cpu_quota_cores": 1.5},
        "4 threads share 1.5 CPUs by this process's CPU quota",
        "OMP_NUM_THREADS=1",
    ),
    "a binding to fewer CPUs than the task asked for": (
        setting(SLURM_CPU_BIND="quiet,mask_cpu:0x1", SLURM_CPUS_PER_TASK="8"),
        "leaves this run 4 of 8 CPUs",
        "--cpu-bind=none",
    ),
    "sleeping threads": (
        setting(OMP_WAIT_POLICY="passive"),
        "OMP_WAIT_POLICY=PASSIVE",
        "unset it",
    ),
    "launches that block": (
        ON_GPU | setting(CUDA_LAUNCH_BLOCKING="1"),
        "CUDA_LAUNCH_BLOCKING=1",
        "unset it",
    ),
    "the lowest clock": (clocked("powersave", "acpi-cpufreq"), "powersave", "set performance"),
    "changed code": ({"git_dirty": True}, "does not say what ran", "commit"),
}
HARMLESS = {
    "nothing known": dict.fromkeys(CLEAN),
    "others on CPUs that we do not need": busy(6.0) | {"cpu_affinity": 64, "threads": 16},
    "less than half a core": busy(0.4),
    "others with room for the thread that feeds a GPU": busy(2.0) | ON_GPU,
    "more threads than CPUs beside a GPU": ON_GPU | {"cpu_quota_cores": 2.0},
    "a binding that gives what was asked": setting(SLURM_CPU_BIND="x", SLURM_CPUS_PER_TASK="4"),
    "a binding of an unknown size": setting(SLURM_CPU_BIND="x", SLURM_CPUS_PER_TASK="many"),
    "a sleeping single thread": setting(OMP_WAIT_POLICY="PASSIVE") | {"threads": 1},
    "threads that sleep beside a GPU": setting(OMP_WAIT_POLICY="PASSIVE") | ON_GPU,
    "blocking launches on an unknown device": setting(CUDA_LAUNCH_BLOCKING="1") | {"device": None},
    "blocking launches without a GPU": setting(CUDA_LAUNCH_BLOCKING="1"),
    "blocking launches turned off": setting(CUDA_LAUNCH_BLOCKING="0") | ON_GPU,
    "a powersave that scales with load": clocked("powersave", "intel_pstate"),
}


def test_a_clean_machine_gives_no_warning():
    assert warnings(CLEAN) == []
    assert warnings({}) == []


@pytest.mark.parametrize(("planted", "said", "remedy"), DOUBTFUL.values(), ids=DOUBTFUL)
def test_what_makes_a_time_doubtful_is_told_with_its_remedy(planted, said, remedy):
    [sentence] = warnings(CLEAN | planted)
    assert said in sentence
    assert remedy in sentence.partition(": ")[2]


@pytest.mark.parametrize("planted", HARMLESS.values(), ids=HARMLESS)
def test_what_does_no_harm_is_not_told(planted):
    assert warnings(CLEAN | planted) == []


def test_a_binding_to_a_small_part_of_the_machine_is_told_where_threads_outnumber_it():
    bound = CLEAN | setting(SLURM_CPU_BIND="x") | {"logical_cpus": 64, "threads": 8}
    found = warnings(bound)
    assert any("leaves this run 4 of 64 CPUs" in sentence for sentence in found)
    assert any("8 threads share 4 CPUs" in sentence for sentence in found)
    assert warnings(bound | {"threads": 4}) == []


STAT = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 {} 0 0 {} 0 0 0 {} 5 5\ncpu1 0 0 0 9 {} 0 0 0 0 0\nintr 1\n"
# The command's name holds a space and brackets; then 11 fields, and four of its time in ticks.
OWN = "7 (a) b (c)) S 1 1 1 0 -1 0 0 0 0 0 {} 1 1 1 20 0 1 0 99 0 0\n"


def test_others_use_of_our_cpus_is_what_is_neither_idle_nor_ours(plant):
    def reading(user, idle, stolen, idle_1, own):
        plant("proc/stat", STAT.format(user, idle, stolen, idle_1))
        root = plant("proc/self/stat", OWN.format(own))
        return surroundings.cpu_ticks([0, 1], root), surroundings.cpu_ticks([1], root)

    before, before_1 = reading(100, 50, 10, 500, 7)
    assert before == CpuTicks(cpus=2, total=669, busy=110, own=10)
    # In 100 ticks CPU 0 ran 60 for us and 20 for others, and 10 went to another machine.
    after, after_1 = reading(180, 60, 20, 600, 67)
    assert surroundings.others_cores(before, after) == pytest.approx(0.3)
    # CPU 1 was idle, waiting for a disk; our own ticks elsewhere make no negative number.
    assert surroundings.others_cores(before_1, after_1) == 0.0


def test_others_use_is_not_known_without_two_readings_that_differ():
    ticks = CpuTicks(2, 100, 50, 10)
    assert surroundings.others_cores(None, ticks) is None
    assert surroundings.others_cores(ticks, None) is None
    assert surroundings.others_cores(ticks, ticks) is None


@pytest.mark.parametrize(
    ("cpus", "machine", "own"),
    [
        ([0, 9], STAT.format(1, 1, 1, 1), OWN.format(1)),
        (None, STAT.format(1, 1, 1, 1), OWN.format(1)),
        ([0], "cpu0 1 2\n", OWN.format(1)),
        ([0], "cpu0 a b c d e f g h\n", OWN.format(1)),
        ([0], STAT.format(1, 1, 1, 1), "7 (a) S x x x x x x x x x x x x x x\n"),
    ],
    ids=["a CPU that is not shown", "CPUs unknown", "too short", "no numbers", "a strange process"],
)
def test_ticks_that_cannot_be_understood_are_none(plant, cpus, machine, own):
    plant("proc/stat", machine)
    assert surroundings.cpu_ticks(cpus, plant("proc/self/stat", own)) is None


def test_ticks_are_none_where_the_system_shows_no_files(tmp_path):
    assert surroundings.cpu_ticks([0], tmp_path) is None


def other_pids(rows, *, holds_gpu=False, here=(5, 6, 7)):
    found = surroundings.other_gpu_processes(
        rows, own=5, holds_gpu=holds_gpu, is_process=lambda pid: pid in here
    )
    return None if found is None else [each["pid"] for each in found]


def test_our_own_process_on_the_gpu_is_no_neighbour():
    assert other_pids([["6", "10"], ["5", "900"], ["7", "[N/A]"]], holds_gpu=True) == [6, 7]
    assert other_pids([]) == []
    assert other_pids(None) is None


def test_in_a_container_the_smallest_unknown_process_is_ours_if_we_hold_the_gpu():
    rows = [["4001", "300"], ["4002", "9000"]]
    assert other_pids(rows, holds_gpu=True) == [4002]
    assert other_pids(rows) == [4002, 4001]


def test_memory_of_a_neighbour_is_in_bytes_or_not_known():
    found = surroundings.other_gpu_processes(
        [["6", "3"], ["7", "[N/A]"], ["no processes", "-"]],
        own=5,
        holds_gpu=False,
        is_process=lambda pid: True,
    )
    assert found == [{"pid": 6, "used_bytes": 3 << 20}, {"pid": 7, "used_bytes": None}]
