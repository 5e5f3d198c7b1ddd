"""The check on a GPU, exercised on a CPU at a tiny shape, so that it runs once one is there."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import gpu_cases
import gpu_check
import gpu_rows
import legs
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SHAPE = legs.opt(8, 32, 4, vocab_size=101)
PLAN = gpu_check.Plan(
    torch.device("cpu"),
    shapes={"tiny": SHAPE, "small": legs.opt(8, 48, 4, vocab_size=101)},
    dtypes=(torch.float32,),
    batches=(1, 2),
    sizes=gpu_cases.Sizes(new_tokens=8, repeats=1, read_bytes=2**16),
)

PROBE = """
import json, sys
import torch, transformers.models.opt.modeling_opt, transformers.generation
before = {name.partition(".")[0] for name in sys.modules}
import gpu_check
from methods.registry import find_method
for name in ("dense", "skipdecode", "calm", "layerskip"):
    find_method(name)
after = {name.partition(".")[0] for name in sys.modules}
print(json.dumps(sorted(after - before - set(sys.stdlib_module_names))))
"""


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(gpu_cases, "VARIANTS", ({"attention": "products"},))


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_all_cases_run_and_leave_their_rows(no_compiler, tmp_path):
    path = tmp_path / "published" / "gpu_check.csv"
    assert gpu_check.check(PLAN, path) == 0
    rows = rows_of(path)
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    for part in ("transformers.generate", "skipdecode 4x / dense", "acceptance 0.8", "products"):
        assert any(part in name for name in names), part
    assert {row["device"] for row in rows} == {"cpu"}
    assert {row["torch"] for row in rows} == {torch.__version__}
    assert [row["note"] for row in rows if "failed" in row["note"]] == []
    ids = [row for row in rows if row["name"].startswith("dense's ids")]
    assert {float(row["ratio"]) for row in ids} == {1.0}
    waits = [row for row in rows if row["unit"] == "waits"]
    # A CPU has no queue to wait for: not known, not 0.
    assert {row["ratio"] for row in waits} == {""}
    assert len(waits) == 4 * len(PLAN.shapes)


def test_a_case_that_fails_is_a_row_and_costs_no_other(no_compiler, monkeypatch, tmp_path):
    def breaks(held, batches):
        raise RuntimeError("no kernel\nwith a long story")

    monkeypatch.setattr(gpu_check, "equal_ids", breaks)
    path = tmp_path / "gpu_check.csv"
    assert gpu_check.check(PLAN, path) == 1
    rows = rows_of(path)
    told = [row for row in rows if "failed" in row["note"]]
    assert [row["note"] for row in told] == ["WRONG failed: RuntimeError: no kernel"] * 2
    assert any("skipdecode 2x" in row["name"] for row in rows)


def test_cases_behind_the_limit_are_left_out_and_said_to_be(tmp_path):
    path = tmp_path / "gpu_check.csv"
    assert gpu_check.check(PLAN, path, seconds=-1.0) == 0
    rows = rows_of(path)
    assert rows
    assert all(row["note"].startswith("left out") for row in rows)
    assert all(row["ratio"] == "" for row in rows)


def test_other_ids_than_transformers_are_wrong():
    same = gpu_cases._same("ids", [[1, 2, 3, 4]], [[1, 2, 3, 4]], 0.9)
    other = gpu_cases._same("ids", [[1, 2, 3, 4]], [[1, 2, 9, 9]], 0.9)
    assert (same.values[0], same.wrong) == (1.0, False)
    assert (other.values[0], other.wrong) == (0.5, True)


def test_options_that_this_engine_or_device_lacks_are_left_out(monkeypatch):
    monkeypatch.setattr(
        gpu_cases, "VARIANTS", ({"attention": "products"}, {"cuda_graphs": True}, {"later": 1})
    )
    assert gpu_cases.variants(torch.device("cpu")) == [{"attention": "products"}]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_writes_nothing(capsys, tmp_path):
    path = tmp_path / "gpu_check.csv"
    assert gpu_check.main(["--out", str(path)]) == 2
    assert "no GPU" in capsys.readouterr().err
    assert not path.exists()


def test_the_file_in_the_repository_has_the_columns_that_the_check_writes():
    with gpu_check.FILE.open(encoding="utf-8", newline="") as file:
        first, *rows = csv.reader(file)
    assert tuple(first) == gpu_rows.COLUMNS
    assert rows


def test_it_needs_nothing_but_torch_and_transformers():
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=ROOT / "tests" / "benchmarks",
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours = {"bench", "methods", *(path.stem for path in Path(__file__).parent.glob("*.py"))}
    # Those that transformers brings, and what energy needs where it is installed.
    assert set(json.loads(done.stdout)) - ours <= {"safetensors", "tokenizers", "pynvml"}
