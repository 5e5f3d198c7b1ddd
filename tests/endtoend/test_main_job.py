"""The main job as a user does it: train, run, run again, be killed, and read the records."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NUM_LAYERS, NEW_TOKENS = 4, 16
EXAMPLES, BATCH = 16, 4
MODEL = (
    "model=scratch",
    "gpu=cpu",
    f"model.shape.num_layers={NUM_LAYERS}",
    "model.shape.width=32",
    "model.shape.num_heads=2",
    "model.shape.ffn_width=64",
    "model.shape.vocab_size=512",
    "task.train_pairs=400",
)
RUN = (
    f"task.limit={EXAMPLES}",
    f"decode.max_new_tokens={NEW_TOKENS}",
    f"meter.batch_size={BATCH}",
    "meter.warmups=0",
    "meter.repeats=2",
)


def start(module, *arguments):
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(module, *arguments):
    """Output of a process that must end well."""
    process = start(module, *arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out, err


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A dense model, and one trained from it for SkipDecode."""
    folder = tmp_path_factory.mktemp("checkpoints")
    recipe = ("train.batch_size=16", "train.warmup_steps=2", "train.lr=1e-2")
    given = (*MODEL, *recipe, f"results_dir={folder / 'runs'}")
    dense, own = folder / "dense", folder / "skipdecode"
    call("bench.train", "+method=dense", *given, "train.steps=40", f"train.output={dense}")
    more = ("train.steps=3", f"model.checkpoint={dense}", f"train.output={own}")
    call("bench.train", "+method=skipdecode", *given, *more)
    return {"dense": dense, "skipdecode": own}


@pytest.fixture(scope="module")
def command(checkpoints):
    """``command(method, results_dir, *overrides)``: arguments of a run."""

    def make(method, results_dir, *overrides, weights=None):
        folder = checkpoints[weights or method]
        where = (f"model.checkpoint={folder}", f"results_dir={results_dir}")
        return (f"+method={method}", *MODEL, *RUN, *where, *overrides)

    return make


@pytest.fixture(scope="module")
def first(command, tmp_path_factory):
    """The first run of SkipDecode: where, what it printed."""
    results = tmp_path_factory.mktemp("results")
    return results, *call("bench", *command("skipdecode", results))


def only_attempt(results, number=1):
    [folder] = results.glob(f"*/{number}")
    return folder


def records(attempt):
    lines = (attempt / "batches.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def columns(attempt):
    return json.loads((attempt / "header.json").read_text(encoding="utf-8"))["columns"]


def ids_of(attempt, leg):
    return [row for record in records(attempt) for row in record["legs"][leg]["ids"]]


def test_the_first_run_prints_a_table_with_dense_beside(first):
    results, out, err = first
    assert "skipdecode on scratch, demo, batch 4, cpu float32" in out
    heads = next(line for line in out.splitlines() if "dense" in line)
    assert heads.index("skipdecode") < heads.index("dense") < heads.index("difference")
    for label in ("bleu", "rouge_l", "slot_error_rate", "decode tokens/s", "x faster", "examples"):
        assert label in out
    assert f"records: {only_attempt(results)}" in out
    assert f"{EXAMPLES // BATCH}/{EXAMPLES // BATCH}" in err


def test_the_second_run_says_done_and_runs_nothing(first, command):
    results, out, _ = first
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*") if path.is_file()}
    again_out, again_err = call("bench", *command("skipdecode", results))
    assert f"already done: {only_attempt(results)}" in again_err
    assert "rerun=true" in again_err
    assert again_out == out
    after = {path: path.stat().st_mtime_ns for path in results.rglob("*") if path.is_file()}
    assert {path.name for path in before} == {
        *("start.json", "segments.jsonl", "batches.jsonl", "header.json"),
        *("lock", "log.txt"),
    }
    assert after == before


def test_records_hold_every_example_once_with_all_that_was_measured(first):
    batches = records(only_attempt(first[0]))
    assert [batch["index"] for batch in batches] == list(range(EXAMPLES // BATCH))
    seen = [name for batch in batches for name in batch["example_ids"]]
    assert seen == [str(index) for index in range(EXAMPLES)]
    for batch in batches:
        assert set(batch["legs"]) == {"method", "baseline"}
        assert [sorted(order) for order in batch["order"]] == [["baseline", "method"]] * 2
        # The leg that goes first changes from pass to pass.
        assert batch["order"][0] != batch["order"][1]
        for leg in batch["legs"].values():
            for name in ("ids", "texts", "layers"):
                assert len(leg[name]) == BATCH
            assert list(map(len, leg["ids"])) == list(map(len, leg["layers"]))
            assert set(leg["scores"]) == {"bleu", "rouge_l", "slot_error_rate"}
            assert all(len(values) == BATCH for values in leg["scores"].values())
            assert len(leg["timings"]) == 2
            assert all(t["ttft_s"] > 0 and t["decode_s"] > 0 for t in leg["timings"])
    # A leg begins as often as the other.
    begins = [order[0] for batch in batches for order in batch["order"]]
    assert begins.count("method") == begins.count("baseline")


def test_records_count_the_work_that_was_done(first):
    for batch in records(only_attempt(first[0])):
        prompts = batch["prompt_tokens"]
        for name, leg in batch["legs"].items():
            longest = max(map(len, leg["ids"]))
            assert leg["rounds"] == longest <= NEW_TOKENS
            per_position = leg["prompt_executed"]["attention_positions"] / NUM_LAYERS
            assert per_position == BATCH * max(prompts)
            kept = sum(sum(row[1:]) for row in leg["layers"])
            assert leg["decode_required"]["mlp_positions"] == kept
            assert leg["decode_executed"]["mlp_positions"] >= kept
            assert leg["decode_executed"]["head_positions"] == BATCH * (longest - 1)
            depths = {depth for row in leg["layers"] for depth in row[1:]}
            assert depths == {NUM_LAYERS} if name == "baseline" else max(depths) < NUM_LAYERS
            assert {row[0] for row in leg["layers"]} == {NUM_LAYERS}


def test_columns_are_those_of_the_records(first):
    attempt = only_attempt(first[0])
    row, legs = columns(attempt), [batch["legs"]["method"] for batch in records(attempt)]
    assert (row["status"], row["attempt"], row["examples"]) == ("done", 1, EXAMPLES)
    assert row["tokens"] == sum(len(ids) for leg in legs for ids in leg["ids"])
    assert row["layers_per_token"] < NUM_LAYERS
    assert 0 < row["flops_executed_ratio"] < 1
    assert 0 < row["flops_required_ratio"] < 1
    assert row["speedup"] > 0
    # Fewer than five timed batches tell no interval.
    assert row["speedup_low"] is row["speedup_high"] is None
    assert row["identical_to_dense"] is None


def test_the_baseline_is_the_dense_model_that_the_weights_came_from(first, command, tmp_path):
    paired = only_attempt(first[0])
    out, _ = call("bench", *command("dense", tmp_path))
    alone = only_attempt(tmp_path)
    assert "difference" not in out
    assert ids_of(alone, "method") == ids_of(paired, "baseline")
    assert ids_of(alone, "method") != ids_of(paired, "method")
    mine, theirs = columns(alone), columns(paired)
    assert mine["score.bleu"] == mine["dense.bleu"] == theirs["dense.bleu"]
    assert mine["score.rouge_l"] == theirs["dense.rouge_l"]
    assert mine["score.bleu"] > 0
    assert mine["speedup"] is None


def test_fixed_length_keeps_exactly_as_many_tokens_in_every_row(command, tmp_path):
    limit = 7
    fixed = ("decode=fixed", f"decode.max_new_tokens={limit}", "meter.repeats=1")
    call("bench", *command("skipdecode", tmp_path, *fixed))
    attempt = only_attempt(tmp_path)
    for leg in ("method", "baseline"):
        assert [len(ids) for ids in ids_of(attempt, leg)] == [limit] * EXAMPLES
    assert columns(attempt)["length"] == "fixed"
    assert columns(attempt)["tokens"] == EXAMPLES * limit


def test_dense_against_itself_is_identical(command, tmp_path):
    call("bench", *command("dense", tmp_path, "meter.baseline=dense"))
    attempt = only_attempt(tmp_path)
    row = columns(attempt)
    assert row["identical_to_dense"] == 1.0
    assert row["diff.bleu"] == 0.0
    assert row["flops_executed_ratio"] == row["flops_required_ratio"] == 1.0
    # The same work twice; wide, for the machine is shared.
    assert 0.2 < row["speedup"] < 5
    assert ids_of(attempt, "method") == ids_of(attempt, "baseline")


def whole_lines(results):
    found = list(results.glob("*/1/batches.jsonl"))
    return found[0].read_bytes().count(b"\n") if found else 0


def killed_after(lines, results, arguments):
    """Kills a run as soon as that many records are whole."""
    process = start("bench", *arguments)
    try:
        for _ in range(6000):
            if whole_lines(results) >= lines or process.poll() is not None:
                break
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err


def test_a_killed_run_goes_on_and_a_rerun_is_another_attempt(command, tmp_path):
    # Slow enough to be killed in the middle.
    arguments = command("skipdecode", tmp_path, "meter.repeats=12")
    killed_after(2, tmp_path, arguments)
    attempt = only_attempt(tmp_path)
    before = (attempt / "batches.jsonl").read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    assert 2 <= before.count(b"\n") < EXAMPLES // BATCH
    assert not (attempt / "header.json").exists()
    # As if it had been killed while it wrote.
    with (attempt / "batches.jsonl").open("ab") as file:
        file.write(b'{"index": 3, "example_ids": ["1')

    out, err = call("bench", *arguments)
    assert "already done" not in err
    assert f"records: {attempt}" in out
    assert (attempt / "batches.jsonl").read_bytes().startswith(before)
    batches = records(attempt)
    assert [batch["index"] for batch in batches] == list(range(EXAMPLES // BATCH))
    seen = [name for batch in batches for name in batch["example_ids"]]
    assert seen == [str(index) for index in range(EXAMPLES)]
    assert columns(attempt)["examples"] == EXAMPLES

    call("bench", *arguments, "rerun=true")
    second = only_attempt(tmp_path, 2)
    assert second.parent == attempt.parent
    assert columns(second)["attempt"] == 2
    assert columns(second)["run_id"] == columns(attempt)["run_id"]
    for leg in ("method", "baseline"):
        assert ids_of(second, leg) == ids_of(attempt, leg)
