"""Actions that do not run: what they print, and that they write nothing."""

import re
from types import SimpleNamespace

import pytest

from bench import actions, hub, usage
from bench.config import ROOT
from bench.errors import InputError
from bench.memory_estimate import estimate
from methods.engine.shape import Shape, complete_fields
from methods.registry import method_names

COMMIT = "0123456789abcdef0123456789abcdef01234567"
QUICK = ("gpu=cpu", "task.limit=2", "meter.repeats=1", "meter.warmups=0", "decode.max_new_tokens=2")


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory):
    """An environment in which loading torch or transformers ends the process."""
    folder = tmp_path_factory.mktemp("poison")
    for name in ("torch", "transformers"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name} was loaded')\n")
    return {"PYTHONPATH": str(folder)}


def statuses(text):
    return re.findall(r"│ (new|done|stopped|failed|running|same run as above) +│", text)


# ---- help and list ----


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_ours_and_loads_no_torch(flag, call, no_torch):
    ended = call(flag, **no_torch)
    assert (ended.code, ended.err) == (0, "")
    for word in ("usage: python -m bench +method=NAME", "prefetch", "-m ", "skipdecode", "opt1.3b"):
        assert word in ended.out
    assert max(map(len, ended.out.splitlines())) <= 100


def test_hydras_own_help_is_still_there(call):
    ended = call("--hydra-help")
    assert ended.code == 0
    assert "== Configuration groups ==" in ended.out


@pytest.mark.parametrize("flag", [("-c", "job"), ("--cfg", "job")])
def test_the_whole_configuration_can_be_shown(flag, call, no_torch):
    ended = call("+method=skipdecode", "seed=7", *flag, **no_torch)
    assert ended.code == 0, ended.err
    assert "preset: 2x" in ended.out
    assert "seed: 7" in ended.out


def test_help_and_list_name_every_choice():
    page, listing = usage.page(), usage.listing()
    assert set(method_names()) == set(usage.choices("method"))
    groups = usage.groups()
    assert groups[0] == "method"
    assert "hydra" not in groups
    for group in groups:
        assert usage.choices(group)
        for name in usage.choices(group):
            assert name in page.replace(",", " ").split()
            assert re.search(rf"^  {re.escape(name)} +\S", listing, re.MULTILINE)


def test_list_needs_no_method_and_no_torch(call, no_torch, tmp_path):
    ended = call("action=list", f"results_dir={tmp_path / 'runs'}", **no_torch)
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"dense +The dense baseline: every layer for every token", ended.out)
    assert list(tmp_path.iterdir()) == []


# ---- plan ----


def test_a_plan_shows_what_is_done_and_what_is_new(call, no_torch, tmp_path):
    given = ("+method=dense", *QUICK, f"results_dir={tmp_path / 'runs'}")
    planned = call(*given, "action=plan", **no_torch)
    assert planned.code == 0, planned.err
    assert statuses(planned.out) == ["new"]
    assert list(tmp_path.iterdir()) == []
    assert call(*given).code == 0
    [run_id] = [path.name for path in (tmp_path / "runs").iterdir()]
    assert run_id in planned.out
    again = call(*given, "seed=0,1,1", "action=plan", "-m", **no_torch)
    assert again.code == 0, again.err
    assert statuses(again.out) == ["done", "new", "same run as above"]
    assert again.out.startswith("3 jobs: 1 done, 1 new, 1 same run as above")
    assert "seed=1" in again.out
    # What all jobs share is left out.
    assert "task.limit" not in again.out


def test_a_plan_needs_a_method(call, no_torch, tmp_path):
    ended = call("action=plan", f"results_dir={tmp_path}", **no_torch)
    assert ended.code == 2
    assert "needs a method" in ended.err


def test_a_thousand_runs_are_planned_within_seconds(call, no_torch, tmp_path):
    given = ("+method=dense,skipdecode", "seed=range(0,500)", f"results_dir={tmp_path / 'runs'}")
    ended = call(*given, "action=plan", "-m", **no_torch)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("1000 jobs: 1000 new")
    assert len(set(re.findall(r"│ ([0-9a-f]{12}) │", ended.out))) == 1000


# ---- check ----


def test_a_check_tells_run_settings_lengths_and_memory(call, tmp_path):
    given = ("+method=skipdecode", *QUICK, f"results_dir={tmp_path / 'runs'}")
    ended = call(*given, "action=check")
    assert ended.code == 0, ended.err
    for word in ("skipdecode on tiny, demo", "max_layers=8", "examples  2, longest", "K/V cache"):
        assert word in ended.out
    assert list(tmp_path.iterdir()) == []


SIZES = {
    "family": "opt",
    "num_layers": 2,
    "width": 8,
    "num_heads": 2,
    "ffn_width": 16,
    "vocab_size": 50,
    "max_positions": 32,
}


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_the_memory_of_a_run_by_hand(dtype, size):
    shape = Shape(**complete_fields(SIZES))
    found = estimate([shape], dtype=dtype, packed=False, rows=3, positions=10)
    assert found.weights_bytes == shape.num_parameters * size
    # Layers x keys and values x width x rows x positions.
    assert found.cache_bytes == 2 * 2 * 8 * 3 * 10 * size
    assert found.packed_copies_bytes == 0
    assert found.total_bytes == found.weights_bytes + found.cache_bytes


def test_two_models_are_held_at_once_and_one_cache():
    shape = Shape(**complete_fields(SIZES))
    one = estimate([shape], dtype="float32", packed=True, rows=1, positions=4)
    two = estimate([shape, shape], dtype="float32", packed=True, rows=1, positions=4)
    # k and v of each layer, and the tied embedding as a head.
    assert one.packed_copies_bytes == (2 * 8 * 16 + 50 * 8) * 4
    assert two.weights_bytes == 2 * one.weights_bytes
    assert two.packed_copies_bytes == 2 * one.packed_copies_bytes
    assert two.cache_bytes == one.cache_bytes


def test_a_run_that_does_not_fit_is_refused():
    from bench.checking import check_memory

    shape = Shape(**complete_fields(SIZES))
    needed = estimate([shape], dtype="float32", packed=False, rows=1, positions=4)
    check_memory(needed, needed.total_bytes)
    check_memory(needed, None)
    with pytest.raises(InputError, match=r"does not fit into memory[\s\S]*weights"):
        check_memory(needed, needed.total_bytes - 1)


# ---- prefetch and pin ----


def test_prefetch_says_what_is_here(call, no_torch, tmp_path):
    ended = call("action=prefetch", f"results_dir={tmp_path / 'runs'}", **no_torch)
    assert ended.code == 0, ended.err
    assert re.search(r"weights: \S+/tiny/dense \(\d+ MB\)", ended.out)
    assert "data: 512 examples of demo, validation" in ended.out
    assert list(tmp_path.iterdir()) == []


def test_pinning_keeps_all_other_lines():
    path = ROOT / "conf" / "model" / "opt125m.yaml"
    text = path.read_text()
    assert "revision" not in text
    once = actions.pinned(text, COMMIT)
    added = f"hub_id: facebook/opt-125m\nrevision: {COMMIT}\n"
    assert once == text.replace("hub_id: facebook/opt-125m\n", added)
    other = COMMIT[::-1]
    assert actions.pinned(once, other) == once.replace(COMMIT, other)


class Hub:
    """A hub that knows one commit, or cannot be reached."""

    def __init__(self, commit):
        self.commit = commit

    def model_info(self, hub_id, *, revision, timeout):
        if self.commit is None:
            raise OSError("no network")
        return SimpleNamespace(sha=self.commit)


@pytest.fixture
def pinning(monkeypatch, tmp_path, configured):
    """``pinning(commit, cached)``: the model's file after a pin."""
    folder = tmp_path / "conf" / "model"
    folder.mkdir(parents=True)
    name = "opt125m.yaml"
    (folder / name).write_text((ROOT / "conf" / "model" / name).read_text())
    config = configured("+method=dense", "model=opt125m")
    monkeypatch.setattr(actions, "ROOT", tmp_path)

    def make(commit, cached=None):
        monkeypatch.setattr(actions, "HfApi", lambda: Hub(commit))
        monkeypatch.setattr(hub, "commit_of", lambda hub_id, revision: cached)
        actions.pin(config)
        return (folder / name).read_text()

    return make


def test_a_pin_is_the_hubs_commit(pinning):
    assert f"\nrevision: {COMMIT}\n" in pinning(COMMIT)


def test_without_network_a_pin_is_the_cached_commit(pinning):
    assert f"\nrevision: {COMMIT}\n" in pinning(None, cached=COMMIT)


def test_without_network_and_copy_a_pin_is_refused(pinning):
    with pytest.raises(InputError, match=r"Cannot ask the hub[\s\S]*no network"):
        pinning(None)


# ---- training ----


def test_training_does_nothing_else(call, no_torch, tmp_path):
    given = ("+method=dense", "action=plan", f"results_dir={tmp_path}")
    ended = call(*given, module="bench.train", **no_torch)
    assert ended.code == 2
    assert "bench.train only trains" in ended.err
