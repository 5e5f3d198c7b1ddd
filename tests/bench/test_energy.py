"""Energy is a counter's difference over a window that is long enough, or not known; never 0."""

from types import SimpleNamespace

import pytest

from bench.meters import clock, energy
from bench.meters.device import CpuDevice

RANGE_UJ = 262_143_328_850


class Scripted:
    """A counter that gives what it was told to."""

    name = "scripted"

    def __init__(self, *readings):
        self.readings = list(readings)

    def read_joules(self):
        return self.readings.pop(0)


@pytest.fixture
def each_pass_takes(monkeypatch):
    """``each_pass_takes(seconds)``: by the clock; the work is done."""

    def make(seconds):
        def elapsed(device, work):
            work()
            return seconds

        monkeypatch.setattr(clock, "elapsed", elapsed)

    return make


@pytest.fixture
def powercap(tmp_path):
    """Two packages; below and beside them what would be counted twice."""

    def domain(folder, name, microjoules):
        path = tmp_path / folder
        path.mkdir()
        (path / "name").write_text(f"{name}\n")
        (path / "energy_uj").write_text(f"{microjoules}\n")
        (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")

    domain("intel-rapl:0", "package-0", 5_000_000)
    domain("intel-rapl:0:0", "core", 1_000_000)
    domain("intel-rapl:0:1", "dram", 1_000_000)
    domain("intel-rapl:1", "package-1", 7_000_000)
    domain("intel-rapl:2", "psys", 90_000_000)
    domain("intel-rapl-mmio:0", "package-0", 5_000_000)
    return tmp_path


def use(powercap, folder, microjoules):
    """Lets a domain's counter stand at a value."""
    (powercap / folder / "energy_uj").write_text(f"{microjoules}\n")


class NVMLError(Exception):
    pass


def nvml(*, starts=True, counts=True, millijoules=(4_000, 9_500)):
    """The module as far as it is used, with one GPU."""
    readings = iter(millijoules)

    def refuse(*_):
        raise NVMLError

    def handle(uuid):
        return uuid if uuid == "GPU-1" else refuse()

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=(lambda: None) if starts else refuse,
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetTotalEnergyConsumption=(lambda _: next(readings)) if counts else refuse,
    )


def test_passes_are_repeated_until_the_window_is_long_enough(each_pass_takes):
    each_pass_takes(0.5)
    done = []
    found = energy.measure(lambda: done.append(1), Scripted(10.0, 70.0), CpuDevice())
    assert found == energy.Energy(joules=60.0, seconds=2.0, passes=4, counter="scripted")
    assert len(done) == 4
    assert found.joules_per_pass == 15.0
    assert found.watts == 30.0


def test_work_longer_than_the_window_is_done_once(each_pass_takes):
    each_pass_takes(9.0)
    found = energy.measure(lambda: None, Scripted(0.0, 1.0), CpuDevice())
    assert (found.passes, found.seconds) == (1, 9.0)


def test_even_without_a_window_the_work_is_done_once(each_pass_takes):
    each_pass_takes(0.25)
    found = energy.measure(lambda: None, Scripted(0.0, 1.0), CpuDevice(), min_window_s=0.0)
    assert found.passes == 1


@pytest.mark.parametrize(
    "readings",
    [(5.0, 5.0), (5.0, 4.0), (5.0, None), (None, 5.0)],
    ids=["stands still", "goes back", "fails at the end", "fails at the start"],
)
def test_a_counter_that_does_not_advance_gives_none(each_pass_takes, readings):
    each_pass_takes(3.0)
    assert energy.measure(lambda: None, Scripted(*readings), CpuDevice()) is None


def test_without_a_counter_nothing_is_run_for_energy():
    done = []
    assert energy.measure(lambda: done.append(1), None, CpuDevice()) is None
    assert done == []


def test_elapsed_waits_for_the_device_on_both_sides(monkeypatch):
    seen = []
    device = SimpleNamespace(synchronise=lambda: seen.append("wait"))
    times = iter([10.0, 12.5])
    fake = SimpleNamespace(perf_counter=lambda: seen.append("read") or next(times))
    monkeypatch.setattr(clock, "time", fake)
    assert clock.elapsed(device, lambda: seen.append("work")) == 2.5
    assert seen == ["wait", "read", "work", "wait", "read"]


def test_packages_alone_are_counted(powercap):
    counter = energy.find("cpu", powercap=powercap)
    assert counter.name == "rapl"
    assert counter.read_joules() == 0.0
    use(powercap, "intel-rapl:0", 5_500_000)
    use(powercap, "intel-rapl:1", 8_000_000)
    use(powercap, "intel-rapl:0:0", 900_000_000)
    use(powercap, "intel-rapl:2", 900_000_000)
    assert counter.read_joules() == pytest.approx(1.5)


def test_a_counter_that_starts_again_is_followed_each_time(powercap):
    counter = energy.find("cpu", powercap=powercap)
    for _ in range(2):
        use(powercap, "intel-rapl:0", RANGE_UJ - 1_000_000)
        before = counter.read_joules()
        use(powercap, "intel-rapl:0", 2_000_000)
        assert counter.read_joules() - before == pytest.approx(3.0)


def test_a_counter_that_starts_again_at_an_unknown_range_is_not_known(powercap):
    counter = energy.find("cpu", powercap=powercap)
    (powercap / "intel-rapl:0" / "max_energy_range_uj").unlink()
    use(powercap, "intel-rapl:0", 1)
    assert counter.read_joules() is None


@pytest.mark.parametrize("lost", ["intel-rapl:0", "intel-rapl:1"])
def test_one_package_that_may_not_be_read_leaves_no_counter(powercap, lost):
    path = powercap / lost / "energy_uj"
    path.unlink()
    # A folder cannot be read by root either.
    path.mkdir()
    assert energy.find("cpu", powercap=powercap) is None


def test_a_package_that_can_no_longer_be_read_is_not_counted_as_nothing(powercap):
    counter = energy.find("cpu", powercap=powercap)
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert counter.read_joules() is None


def test_a_cpu_without_packages_has_no_counter(tmp_path):
    assert energy.find("cpu", powercap=tmp_path) is None
    assert energy.find("cpu", powercap=tmp_path / "missing") is None


def test_a_gpu_counts_millijoules():
    counter = energy.find("cuda", uuid="GPU-1", nvml=nvml(millijoules=(1, 4_000, 9_500)))
    assert counter.name == "nvml"
    assert [counter.read_joules(), counter.read_joules()] == [4.0, 9.5]


@pytest.mark.parametrize(
    ("uuid", "library"),
    [
        ("GPU-1", None),
        ("GPU-1", nvml(starts=False)),
        ("GPU-2", nvml()),
        (None, nvml()),
        ("GPU-1", nvml(counts=False)),
    ],
    ids=["no package", "no driver", "unknown to the driver", "unnamed", "too old to count"],
)
def test_a_gpu_without_a_counter_has_none_and_never_the_cpus(powercap, uuid, library):
    assert energy.find("cuda", uuid=uuid, nvml=library, powercap=powercap) is None


def test_a_gpu_that_stops_to_answer_gives_none(each_pass_takes):
    library = nvml()
    counter = energy.find("cuda", uuid="GPU-1", nvml=library)

    def fall_off():
        library.nvmlDeviceGetTotalEnergyConsumption = nvml(
            counts=False
        ).nvmlDeviceGetTotalEnergyConsumption

    each_pass_takes(3.0)
    assert energy.measure(fall_off, counter, CpuDevice()) is None
