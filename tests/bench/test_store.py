"""Records come back as they were written, whatever stops the writer; a run has one writer."""

import errno
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import InputError
from bench.meters.clock import Timing
from bench.meters.energy import Energy
from bench.schema import (
    SCHEMA_VERSION,
    BatchRecord,
    Difference,
    Header,
    Leg,
    Speculation,
    Start,
)
from bench.store import Attempt, attempts, listed, next_attempt
from methods.engine.ledger import Sums, Traffic

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
    speculation=Speculation(2, 4, 3, [1, 1, 1, 1], [1, 1, 1, 0]),
    decode_traffic=Traffic(1, 2, 3, 4, 5, 6, 7),
    warmups=[Timing(1.5, 2.5)],
    round_s=[0.1, 0.2],
    energy=Energy(3.5, 2.0, 4, "nvml"),
)
RECORD = BatchRecord(
    index=0,
    example_ids=["a", "b"],
    prompt_tokens=[9, 11],
    legs={"method": METHOD, "baseline": replace(METHOD, timings=[], speculation=None)},
    order=[["method", "baseline"], ["baseline", "method"]],
    differences=[Difference("b", 3, 1e-5)],
)
START = Start(
    schema_version=SCHEMA_VERSION,
    run_id="0a1b",
    attempt=1,
    identity={"seed": 0},
    config={"method": {"name": "dense"}},
    columns={"run_id": "0a1b", "seed": 0, "setting": ""},
    shapes={"method": {"num_layers": 4}},
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
            with pytest.raises(InputError, match="made by another process") as refused:
                attempt.claim()
            told = f"{attempt.folder}: pid {other.pid} on {platform.node()} since 2"
            assert refused.value.got.startswith(told)
        finally:
            other.kill()
    # Killed, not closed: the lock is gone with the process all the same.
    assert attempt.status() == "stopped"
    with attempt.claim():
        assert attempt.status() == "running"


def test_a_lock_whose_holder_has_not_said_who_it_is_refuses_all_the_same(tmp_path):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    with attempt.claim():
        (attempt.folder / "lock").write_text("", encoding="utf-8")
        with pytest.raises(InputError, match="a process that has not said which"):
            attempt.claim()


def test_the_lock_says_who_holds_it_now_and_not_who_did(tmp_path):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    attempt.folder.mkdir(parents=True)
    (attempt.folder / "lock").write_text('{"pid": 1, "host": "gone"}' * 9, encoding="utf-8")
    assert attempt.status() == "stopped"
    with attempt.claim():
        held = json.loads((attempt.folder / "lock").read_text(encoding="utf-8"))
    assert (held["pid"], held["host"]) == (os.getpid(), platform.node())


def test_one_who_only_looks_at_a_lock_does_not_turn_a_run_away(tmp_path, monkeypatch):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    attempt.claim().close()
    with ExitStack() as looking:
        file = looking.enter_context((attempt.folder / "lock").open(encoding="utf-8"))
        fcntl.flock(file, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: looking.close())
        with attempt.claim():
            assert attempt.status() == "running"


def test_a_file_system_without_locks_is_refused_in_four_parts(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(InputError, match="No locks available"):
        next_attempt(tmp_path, "0a1b", rerun=False).claim()


def test_an_attempt_that_another_process_completed_meanwhile_is_not_written_again(tmp_path):
    # Both chose the attempt while it was not done; the other one was quicker.
    chosen = next_attempt(tmp_path, "0a1b", rerun=False)
    _finish(Attempt(chosen.folder))
    with pytest.raises(InputError, match="completed by another process"):
        chosen.claim()
    assert chosen.header() == HEADER
    # Nor does the refused one keep the lock.
    (chosen.folder / "header.json").unlink()
    chosen.claim().close()


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


SWEEP = """
import sys
from dataclasses import replace
from pathlib import Path
from bench.errors import InputError
from bench.schema import BatchRecord, Header, Start
from bench.store import next_attempt

results, *runs = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for run in runs:
    attempt = next_attempt(Path(results), run, rerun=False)
    try:
        lock = attempt.claim()
    except InputError:
        print("refused", flush=True)
        continue
    with lock:
        print("held", flush=True)
        attempt.write_start(Start(1, run, 1, {}, {}, {}, {}, "2026-01-01T00:00:00+00:00"))
        for index in range(5):
            attempt.append(BatchRecord(index, [run], [1], {}, []))
        sys.stdin.readline()
        attempt.write_header(Header(1, {"run_id": run}, 5, "2026-01-01T00:00:00+00:00"))
"""


@pytest.fixture
def sweeps(tmp_path):
    """``sweeps(runs, runs)``: two processes that start these at once; what each one said."""
    with ExitStack() as stack:

        def start_both(*both):
            pipe = subprocess.PIPE
            processes = []
            for names in both:
                command = [sys.executable, "-c", SWEEP, str(tmp_path), *names]
                process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
                stack.callback(process.wait)
                stack.callback(process.kill)
                processes.append(process)
            assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
            first = [process.stdout.readline().strip() for process in processes]
            rest = [process.communicate("\n" * len(both[0]))[0].split() for process in processes]
            assert [process.returncode for process in processes] == [0, 0]
            return [[word, *more] for word, more in zip(first, rest, strict=True)]

        yield start_both


def test_two_sweeps_started_at_once_lose_nothing(tmp_path, sweeps):
    assert sweeps(["a0", "a1"], ["b0", "b1"]) == [["held", "held"]] * 2
    found = {attempt.folder.parent.name: attempt for attempt in listed(tmp_path)}
    assert list(found) == ["a0", "a1", "b0", "b1"]
    for run, attempt in found.items():
        assert attempt.header().columns == {"run_id": run}
        assert attempt.start().run_id == run
        assert [record.index for record in attempt.batches()] == [0, 1, 2, 3, 4]


def test_one_run_started_twice_at_once_is_made_by_one_process(tmp_path, sweeps):
    assert sorted(sweeps(["a0"], ["a0"])) == [["held"], ["refused"]]
    (attempt,) = attempts(tmp_path, "a0")
    assert attempt.status() == "done"
    assert [record.index for record in attempt.batches()] == [0, 1, 2, 3, 4]


def test_a_clock_that_jumps_changes_neither_order_nor_status(tmp_path):
    for number, at in [(1, "2031"), (2, "1970"), (3, "2026")]:
        attempt = Attempt(tmp_path / "0a1b" / str(number))
        late = f"{at}-01-01T00:00:00+00:00"
        with attempt.claim():
            attempt.write_start(replace(START, attempt=number, started_at=late))
            if number < 3:
                # Ended before it started, says the clock.
                attempt.write_header(replace(HEADER, ended_at="1969-01-01T00:00:00+00:00"))
        os.utime(attempt.folder, (0, 4e9 - number))
    assert [attempt.number for attempt in listed(tmp_path)] == [2]
    assert [attempt.number for attempt in listed(tmp_path, every=True)] == [1, 2, 3]
    assert [attempt.status() for attempt in attempts(tmp_path, "0a1b")] == [
        "done",
        "done",
        "stopped",
    ]
    assert next_attempt(tmp_path, "0a1b", rerun=True).number == 3


def test_all_attempts_are_listed_on_request(tmp_path):
    for run, number in [("b", 2), ("b", 10), ("a", 1)]:
        Attempt(tmp_path / run / str(number)).claim().close()
    found = [
        (attempt.folder.parent.name, attempt.number) for attempt in listed(tmp_path, every=True)
    ]
    assert found == [("a", 1), ("b", 2), ("b", 10)]


def test_what_is_named_like_an_attempt_and_is_none_is_not_listed(tmp_path):
    Attempt(tmp_path / "0a1b" / "2").claim().close()
    for name in ("02", "0", "2.old"):
        (tmp_path / "0a1b" / name).mkdir()
    (tmp_path / "0a1b" / "3").write_text("", encoding="utf-8")
    assert [attempt.number for attempt in attempts(tmp_path, "0a1b")] == [2]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"schema_version": 1, "colu', "Unterminated string"),
        ("", "Expecting value"),
        ('{"columns": {}}', "no 'schema_version' in it"),
        ('{"schema_version": 1}', "no 'columns' in it"),
        ('{"schema_version": 1, "columns": {}}', "missing"),
        ('{"schema_version": 1, "columns": {}, "warp": 9}', "warp"),
        ('{"schema_version": 1, "columns": 7}', "no object"),
        ('{"schema_version": "1", "columns": {}}', "not supported between"),
        ("[]", "list"),
        ("null", "NoneType"),
        ("\0" * 64, ""),
    ],
)
@pytest.mark.parametrize("name", ["start", "header"])
def test_a_damaged_record_is_refused_with_its_file_and_the_way_to_mend(attempt, name, text, told):
    path = attempt.folder / f"{name}.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="The record is damaged") as refused:
        getattr(attempt, name)()
    assert refused.value.got.startswith(f"{path}: ")
    assert told in refused.value.got
    results_dir = attempt.folder.parent.parent
    assert refused.value.where == f"python -m bench action=doctor results_dir={results_dir}"


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[1, 2]", b"17", b'{"index": 1}', b"\xff\xfe", b"\0" * 9]
)
def test_a_line_that_is_no_record_is_refused_with_its_number(attempt, line):
    attempt.append(RECORD)
    path = attempt.folder / "batches.jsonl"
    with path.open("ab") as file:
        file.write(line + b"\n")
    attempt.append(replace(RECORD, index=2))
    with pytest.raises(InputError, match="The record is damaged") as refused:
        attempt.batches()
    assert refused.value.got.startswith(f"{path}:2: ")
    assert "action=doctor" in refused.value.where
    # Listing reads no batch.
    assert attempt.status() == "running"
    assert [each.status() for each in listed(attempt.folder.parent.parent)] == ["running"]


def _no_room(code):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_takes_no_more_is_told_and_nothing_is_lost(attempt, monkeypatch, call, code):
    attempt.append(RECORD)
    path = attempt.folder / "batches.jsonl"
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, call, _no_room(code))
        with pytest.raises(InputError, match="Cannot write results") as refused:
            attempt.append(replace(RECORD, index=1))
    assert refused.value.got == f"{path}: {os.strerror(code)}"
    assert "what was recorded before is whole, and the same command goes on" in str(refused.value)
    assert path.read_bytes() == before
    attempt.append(replace(RECORD, index=1))
    assert [record.index for record in attempt.batches()] == [0, 1]


@pytest.mark.parametrize("cut", ["at once", "by the next process"])
def test_a_line_that_only_partly_fits_is_cut(tmp_path, monkeypatch, cut):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    path = attempt.folder / "batches.jsonl"
    write, room = os.write, [150]

    def write_what_fits(descriptor, data):
        if not room:
            _no_room(errno.ENOSPC)()
        return write(descriptor, data[: room.pop()])

    with attempt.claim():
        attempt.append(RECORD)
        before = path.read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write_what_fits)
            if cut == "by the next process":
                patched.setattr(os, "ftruncate", _no_room(errno.EIO))
            with pytest.raises(InputError, match="No space left"):
                attempt.append(replace(RECORD, index=1))
        assert len(path.read_bytes()) == len(before) + (0 if cut == "at once" else 150)
        assert attempt.batches() == [RECORD]
    with attempt.claim():
        assert path.read_bytes() == before


def test_a_full_disk_leaves_no_header_and_no_part_of_one(attempt, monkeypatch):
    attempt.append(RECORD)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _no_room(errno.ENOSPC))
        with pytest.raises(InputError, match="No space left"):
            attempt.write_header(HEADER)
    assert attempt.header() is None
    assert sorted(path.name for path in attempt.folder.iterdir()) == ["batches.jsonl", "lock"]
    assert attempt.batches() == [RECORD]


def test_a_torn_line_is_cut_on_a_disk_without_room(tmp_path, monkeypatch):
    attempt = next_attempt(tmp_path, "0a1b", rerun=False)
    with attempt.claim():
        attempt.append(RECORD)
    path = attempt.folder / "batches.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    monkeypatch.setattr(os, "fsync", _no_room(errno.ENOSPC))
    with attempt.claim():
        assert path.read_bytes() == whole


def test_a_failure_that_cannot_be_noted_hides_nothing(attempt, monkeypatch):
    monkeypatch.setattr(Path, "write_text", _no_room(errno.ENOSPC))
    attempt.write_failure("Traceback: the disk is full")
    assert attempt.status() == "running"


def test_a_results_folder_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "scandir", _no_room(errno.EACCES))
    with pytest.raises(InputError, match="Cannot read results") as refused:
        list(listed(tmp_path))
    assert refused.value.got == f"{tmp_path}: Permission denied"


def test_a_process_killed_in_the_middle_of_a_batch_leaves_the_batches_before(tmp_path):
    code = """
import sys
from pathlib import Path
from bench.schema import BatchRecord
from bench.store import next_attempt

attempt = next_attempt(Path(sys.argv[1]), "a0", rerun=False)
lock = attempt.claim()
for index in range(3):
    attempt.append(BatchRecord(index, ["a0"], [1], {}, []))
with (attempt.folder / "batches.jsonl").open("a") as file:
    file.write('{"index": 3, "exam')
print("torn", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "torn\n"
        process.send_signal(signal.SIGKILL)
    attempt = next_attempt(tmp_path, "a0", rerun=False)
    assert (attempt.number, attempt.status()) == (1, "stopped")
    with attempt.claim():
        attempt.append(BatchRecord(3, ["a0"], [1], {}, []))
    assert [record.index for record in attempt.batches()] == [0, 1, 2, 3]
