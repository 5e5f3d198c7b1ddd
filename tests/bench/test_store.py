"""Records come back as they were written, whatever stops the writer; a run has one writer."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import InputError
from bench.meters.clock import Timing
from bench.schema import SCHEMA_VERSION, BatchRecord, Header, Leg, Start
from bench.store import Attempt, attempts, listed, next_attempt
from methods.engine.ledger import Sums

ROOT = Path(__file__).resolve().parents[2]
METHOD = Leg(
    ids=[[5, 6, 2], [7]],
    texts=["Café ß “”\u2028\n\r", ""],
    layers=[[4, 2, 3], [4]],
    statistics={"bleu": [[3.0, 4.5], [0.0, 0.1]]},
    scores={"bleu": [1 / 3, None]},
    timings=[Timing(0.1, 1e-5), Timing(0.2, 0.30000000000000004)],
    rounds=3,
    prompt_executed=Sums(1, 2, 3, 4, 5, 6),
    decode_executed=Sums(7, 8, 9, 10, 11, 12),
    decode_required=Sums(attended_pairs=2**60),
    drafted=[4, 0],
    accepted=[3, 0],
)
RECORD = BatchRecord(
    index=0,
    example_ids=["a", "b"],
    prompt_tokens=[9, 11],
    legs={"method": METHOD, "baseline": replace(METHOD, timings=[], drafted=None, accepted=None)},
    order=[["method", "baseline"], ["baseline", "method"]],
)
START = Start(
    schema_version=SCHEMA_VERSION,
    run_id="0a1b",
    attempt=1,
    identity={"seed": 0},
    config={"method": {"name": "dense"}},
    columns={"run_id": "0a1b", "seed": 0, "setting": ""},
    shapes={"method": {"num_layers": 4}},
    provenance={"git_dirty": None},
    started_at="2026-01-01T00:00:00+00:00",
)
HEADER = Header(SCHEMA_VERSION, {"tokens": 12, "speedup": None}, 1, "2026-01-01T00:01:00+00:00")


@pytest.fixture
def attempt(tmp_path):
    """The first attempt at a run that was just claimed."""
    first = next_attempt(tmp_path, "0a1b", rerun=False)
    with first.claim():
        yield first


def _finish(attempt):
    with attempt.claim():
        attempt.write_start(replace(START, attempt=attempt.number))
        attempt.append(RECORD)
        attempt.write_header(HEADER)


def test_records_come_back_equal(attempt):
    attempt.write_start(START)
    second = replace(RECORD, index=1)
    attempt.append(RECORD)
    attempt.append(second)
    attempt.write_header(HEADER)
    assert attempt.start() == START
    assert attempt.batches() == [RECORD, second]
    assert attempt.header() == HEADER


def test_a_record_is_on_disk_once_append_returns(attempt):
    attempt.append(RECORD)
    # Read by its name: what another program sees now, with the writer alive.
    lines = (attempt.folder / "batches.jsonl").read_bytes().split(b"\n")
    assert len(lines) == 2
    assert json.loads(lines[0])["example_ids"] == ["a", "b"]
    assert lines[1] == b""


def test_nothing_is_there_before_anything_is_written(tmp_path):
    first = next_attempt(tmp_path, "0a1b", rerun=False)
    assert (first.number, first.start(), first.header(), first.batches()) == (1, None, None, [])
    assert attempts(tmp_path, "0a1b") == []
    assert not first.folder.exists()


@pytest.mark.parametrize("at", ["the middle", "a character", "the line break"])
def test_a_torn_last_line_is_left_out_and_cut_on_the_next_claim(tmp_path, at):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    with attempt.claim():
        attempt.append(RECORD)
        attempt.append(replace(RECORD, index=1))
    path = attempt.folder / "batches.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    inside = whole.index("é".encode(), first) + 1
    end = {"the middle": first + 40, "a character": inside, "the line break": len(whole) - 1}[at]
    path.write_bytes(whole[:end])
    assert attempt.batches() == [RECORD]
    with attempt.claim():
        assert path.read_bytes() == whole[:first]
        attempt.append(replace(RECORD, index=1))
    assert path.read_bytes() == whole


def test_the_header_makes_a_run_done(attempt):
    attempt.write_start(START)
    attempt.append(RECORD)
    assert attempt.status() == "running"
    attempt.write_header(HEADER)
    assert attempt.status() == "done"


def test_a_header_whose_writer_was_killed_is_none(attempt):
    (attempt.folder / "header.part").write_text('{"schema_version": 1, "colu', encoding="utf-8")
    assert attempt.header() is None
    assert attempt.status() != "done"
    attempt.write_header(HEADER)
    assert attempt.header() == HEADER
    assert not (attempt.folder / "header.part").exists()


def test_a_run_is_running_while_its_lock_is_held_and_stopped_afterwards(tmp_path):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    with attempt.claim():
        assert attempt.status() == "running"
        # Looking takes no lock that would be seen by the next one who looks.
        assert attempt.status() == "running"
    assert attempt.status() == "stopped"


def test_a_second_claim_in_the_same_process_is_refused(attempt):
    with pytest.raises(InputError, match="made by another process"):
        attempt.claim()
    assert attempt.status() == "running"


def test_a_second_claim_in_another_process_is_refused_until_the_first_one_ends(tmp_path):
    code = (
        "import sys; from pathlib import Path; from bench.store import Attempt\n"
        "lock = Attempt(Path(sys.argv[1])).claim(); print('held', flush=True); sys.stdin.read()"
    )
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    command = [sys.executable, "-c", code, str(attempt.folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            assert attempt.status() == "running"
            with pytest.raises(InputError, match="made by another process"):
                attempt.claim()
        finally:
            other.kill()
    # Killed, not closed: the lock is gone with the process all the same.
    assert attempt.status() == "stopped"
    with attempt.claim():
        assert attempt.status() == "running"


def test_a_failure_is_noted_and_the_next_claim_clears_it(tmp_path):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    with attempt.claim():
        attempt.append(RECORD)
        attempt.write_failure("Traceback: out of memory")
    assert attempt.status() == "failed"
    with attempt.claim():
        assert attempt.status() == "running"
        assert attempt.batches() == [RECORD]
    assert attempt.status() == "stopped"


@pytest.mark.parametrize("rerun", [False, True])
def test_an_attempt_that_is_not_done_is_gone_on_with(tmp_path, rerun):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    attempt.claim().close()
    assert next_attempt(tmp_path, "0a1b", rerun=rerun) == attempt


def test_a_done_run_gets_a_further_attempt_on_rerun_alone(tmp_path):
    first = next_attempt(tmp_path, "0a1b", rerun=False)
    _finish(first)
    assert next_attempt(tmp_path, "0a1b", rerun=False) == first
    second = next_attempt(tmp_path, "0a1b", rerun=True)
    assert second.number == 2
    second.claim().close()
    assert next_attempt(tmp_path, "0a1b", rerun=True) == second
    assert first.header() == HEADER


def test_attempts_are_in_order_of_their_numbers(tmp_path):
    for number in (10, 9, 1):
        Attempt(tmp_path / "0a1b" / str(number)).claim().close()
    (tmp_path / "0a1b" / "2nd-copy").mkdir()
    assert [attempt.number for attempt in attempts(tmp_path, "0a1b")] == [1, 9, 10]


def test_the_newest_complete_attempt_of_every_run_is_listed(tmp_path):
    for run, number, done in [("b", 1, True), ("b", 2, True), ("b", 3, False), ("a", 2, False)]:
        attempt = Attempt(tmp_path / run / str(number))
        if done:
            _finish(attempt)
        else:
            attempt.claim().close()
    (tmp_path / "no-run").mkdir()
    (tmp_path / "README.md").write_text("", encoding="utf-8")
    found = [(attempt.folder.parent.name, attempt.number) for attempt in listed(tmp_path)]
    assert found == [("a", 2), ("b", 2)]


def test_a_folder_above_the_results_lists_nothing_instead_of_failing(tmp_path):
    # Run ids are hexadecimal: some begin with a digit, as attempts do.
    Attempt(tmp_path / "runs" / "0a1b" / "1").claim().close()
    assert list(listed(tmp_path)) == []


def test_a_results_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="no results folder"):
        list(listed(tmp_path / "nowhere"))


@pytest.mark.parametrize(("name", "record"), [("start", START), ("header", HEADER)])
def test_a_record_of_a_newer_schema_is_refused(attempt, name, record):
    newer = replace(record, schema_version=SCHEMA_VERSION + 1)
    getattr(attempt, f"write_{name}")(newer)
    with pytest.raises(InputError, match=f"schema {SCHEMA_VERSION + 1}") as refused:
        getattr(attempt, name)()
    assert refused.value.allowed == f"schema up to {SCHEMA_VERSION}"


def test_a_results_folder_that_cannot_be_written_is_refused(tmp_path):
    # Below a regular file: refused for root too.
    (tmp_path / "file").write_text("", encoding="utf-8")
    attempt = next_attempt(tmp_path / "file", "0a1b", rerun=False)
    with pytest.raises(InputError, match="Cannot write results") as refused:
        attempt.claim()
    assert refused.value.where == "results_dir"
    assert str(attempt.folder) in str(refused.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_the_status_of_a_run_that_may_only_be_read_is_known(tmp_path):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    attempt.claim().close()
    (attempt.folder / "lock").chmod(0o444)
    assert attempt.status() == "stopped"
