"""Each fault is found and told with what mends it; the mending works; nothing is changed before."""

import errno
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench import doctor
from bench.errors import InputError
from bench.schema import SCHEMA_VERSION, BatchRecord, Header, Start
from bench.store import Attempt

ROOT = Path(__file__).resolve().parents[2]
NOW = "2026-01-01T00:00:00+00:00"


def _start(run_id="a0", number=1, version=SCHEMA_VERSION):
    return Start(version, run_id, number, {}, {}, {}, {}, NOW)


def _record(index):
    return BatchRecord(index, ["é"], [1], {}, [])


def _header(batches=3, version=SCHEMA_VERSION):
    return Header(version, {}, batches, NOW)


def _store(results, run_id="a0", number=1, *, done=True):
    attempt = Attempt(results / run_id / str(number))
    with attempt.claim():
        attempt.write_start(_start(run_id, number))
        for index in range(3):
            attempt.append(_record(index))
        if done:
            attempt.write_header(_header())
    return attempt


@pytest.fixture(params=[True, False], ids=["done", "stopped"])
def attempt(tmp_path, request):
    """An attempt in a folder whose name must be quoted."""
    return _store(tmp_path / "my results", done=request.param)


def _results(attempt):
    return attempt.folder.parent.parent


def _found(attempt):
    """What the doctor finds, as (path below the run, wrong)."""
    run = attempt.folder.parent
    return [
        (each.path.relative_to(run).as_posix(), each.wrong)
        for each in doctor.examine(_results(attempt))
    ]


def _mend(attempt):
    """Does what the one finding says: its commands up to the words, then the same command."""
    (finding,) = doctor.examine(_results(attempt))
    command = finding.mend.rpartition("run the same command again, or ")[2].split(", ")[0]
    assert shlex.split(command)[0] in {"rm", "truncate"}
    subprocess.run(command, shell=True, check=True)
    if "run the same command again" in finding.mend:
        with attempt.claim():
            if attempt.start() is None:
                attempt.write_start(_start())
            for index in range(len(attempt.batches()), 3):
                attempt.append(_record(index))
            attempt.write_header(_header())
        assert [record.index for record in attempt.batches()] == [0, 1, 2]


def test_nothing_is_wrong_with_what_the_suite_wrote(tmp_path, capsys):
    _store(tmp_path, "a0", 1)
    _store(tmp_path, "a0", 2)
    _store(tmp_path, "b0", done=False)
    failed = _store(tmp_path, "c0", done=False)
    failed.write_failure("Traceback")
    assert doctor.examine(tmp_path) == []
    assert doctor.show(tmp_path) == 0
    assert capsys.readouterr().out == "nothing is wrong with these records\n"


def test_findings_are_printed_with_path_fault_and_mending_and_end_with_1(attempt, capsys):
    path = attempt.folder / "header.part"
    path.write_text("{", encoding="utf-8")
    assert doctor.show(_results(attempt)) == 1
    assert capsys.readouterr().out == (
        f"{path}\n  wrong: was left by a process that was killed\n"
        f"  mend:  rm '{path}'\n1 found; nothing was changed\n"
    )


def test_a_results_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="no results folder"):
        doctor.examine(tmp_path / "nowhere")


def test_what_a_process_is_at_work_on_is_left_alone(tmp_path):
    attempt = Attempt(tmp_path / "a0" / "1")
    with attempt.claim():
        (attempt.folder / "batches.jsonl").write_bytes(b'{"ind')
        (attempt.folder / "header.part").write_bytes(b"")
        assert doctor.examine(tmp_path) == []
    assert len(doctor.examine(tmp_path)) == 3


def test_a_torn_last_line_is_found_and_mended(attempt):
    path = attempt.folder / "batches.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert _found(attempt) == [
        ("1/batches.jsonl", "its last line is torn, and left out where it is read")
    ]
    _mend(attempt)
    assert path.read_bytes() == whole
    assert _found(attempt) == []


def test_a_damaged_line_is_found_and_the_run_goes_on_from_the_line_before(attempt):
    path = attempt.folder / "batches.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\x85\r{no record}\n" + lines[2])
    ((where, wrong),) = _found(attempt)
    assert where == "1/batches.jsonl"
    assert wrong.startswith("line 2 is damaged: ")
    _mend(attempt)
    assert attempt.status() == "done"
    assert path.read_bytes() == b"".join(lines)
    assert _found(attempt) == []


def test_a_damaged_header_is_found_and_computed_anew(tmp_path):
    attempt = _store(tmp_path)
    (attempt.folder / "header.json").write_text('{"schema', encoding="utf-8")
    ((where, wrong),) = _found(attempt)
    assert (where, wrong.split(":")[0]) == ("1/header.json", "is damaged")
    _mend(attempt)
    assert attempt.header() == _header()
    assert _found(attempt) == []


@pytest.mark.parametrize("there", [0, 2, 4])
def test_a_header_that_is_of_other_batches_than_there_are_is_found(tmp_path, there):
    attempt = _store(tmp_path)
    path = attempt.folder / "batches.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    more = [line.replace(b'"index": 0', b'"index": 3') for line in lines[:1]]
    path.write_bytes(b"".join((lines + more)[:there]))
    assert _found(attempt) == [("1/header.json", f"is of 3 batches; {there} are there")]
    if there < 3:
        _mend(attempt)
        assert _found(attempt) == []


def test_a_header_without_any_batches_is_found(tmp_path):
    attempt = _store(tmp_path)
    (attempt.folder / "batches.jsonl").unlink()
    assert _found(attempt) == [("1/header.json", "is of 3 batches; 0 are there")]


@pytest.mark.parametrize("damaged", [True, False])
def test_a_start_that_is_gone_is_never_written_anew_under_what_was_measured(attempt, damaged):
    path = attempt.folder / "start.json"
    if damaged:
        path.write_text("{", encoding="utf-8")
    else:
        path.unlink()
    (finding,) = doctor.examine(_results(attempt))
    assert finding.path == path
    assert finding.wrong.startswith("is damaged: " if damaged else "is missing")
    delete = f"rm -r '{attempt.folder}', then run the same command again"
    assert finding.mend == f"bring it back from a copy; else {delete}"


def test_an_attempt_that_ended_before_its_start_was_written_is_found(tmp_path):
    attempt = Attempt(tmp_path / "a0" / "1")
    attempt.claim().close()
    (finding,) = doctor.examine(tmp_path)
    assert finding.path == attempt.folder / "start.json"
    assert finding.mend.startswith("run the same command again")


def test_attempts_with_a_gap_are_found(tmp_path):
    for number in (2, 5):
        _store(tmp_path, number=number)
    (finding,) = doctor.examine(tmp_path)
    assert finding.path == tmp_path / "a0"
    assert finding.wrong == "attempt 1, 3, 4 is missing before attempt 5"


def test_an_attempt_that_was_copied_is_found(tmp_path):
    attempt = _store(tmp_path)
    attempt.folder.parent.rename(tmp_path / "a0-old")
    (finding,) = doctor.examine(tmp_path)
    assert finding.path == tmp_path / "a0-old" / "1"
    assert finding.wrong == "holds attempt 1 at run a0: it was copied or renamed"


def test_a_failure_beside_a_header_is_found_and_mended(tmp_path):
    attempt = _store(tmp_path)
    attempt.write_failure("Traceback")
    assert _found(attempt) == [("1/failure.txt", "says that a run failed which is complete")]
    _mend(attempt)
    assert _found(attempt) == []


@pytest.mark.parametrize("name", ["start", "header"])
def test_a_newer_record_is_told_and_no_mending_but_an_update(tmp_path, name):
    attempt = _store(tmp_path)
    newer = {"start": _start(version=2), "header": _header(version=2)}[name]
    getattr(attempt, f"write_{name}")(newer)
    # To this code they look damaged; they are not.
    (attempt.folder / "batches.jsonl").write_bytes(b'{"batch": 0}\n')
    (finding,) = doctor.examine(tmp_path)
    assert "newer skipbench" in finding.wrong
    assert finding.mend == "update skipbench"


def test_foreign_files_and_folders_are_found_wherever_they_are(tmp_path):
    attempt = _store(tmp_path)
    for path in (tmp_path, attempt.folder.parent, attempt.folder):
        (path / "notes.txt").write_text("", encoding="utf-8")
        (path / "zz-copy").mkdir()
    found = [
        each.path.relative_to(tmp_path).as_posix()
        for each in doctor.examine(tmp_path)
        if each.wrong == "is not of this suite, and not read"
    ]
    assert found == ["a0/notes.txt", "a0/zz-copy", "a0/1/notes.txt", "a0/1/zz-copy", "notes.txt"]
    (without_attempt,) = [each for each in doctor.examine(tmp_path) if "no attempt" in each.wrong]
    assert without_attempt.path == tmp_path / "zz-copy"


@pytest.mark.parametrize("level", ["run", "attempt"])
def test_a_folder_that_cannot_be_read_is_found_and_the_others_are_examined(
    tmp_path, monkeypatch, level
):
    first = _store(tmp_path, "a0")
    (_store(tmp_path, "b0").folder / "header.part").write_bytes(b"")
    closed = {"run": first.folder.parent, "attempt": first.folder}[level]
    scandir = os.scandir

    def refuse(path):
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    unreadable, other = doctor.examine(tmp_path)
    assert unreadable.path == closed
    assert unreadable.wrong == f"Cannot read results: {closed}: Permission denied"
    assert unreadable.mend == f"chmod -R u+rwX {closed}"
    assert other.path == tmp_path / "b0" / "1" / "header.part"


def test_examining_changes_nothing(attempt):
    folder = attempt.folder
    (folder / "batches.jsonl").write_bytes(b"{}\n{")
    (folder / "start.json").write_bytes(b"")
    (folder / "header.part").write_bytes(b"x")

    def state():
        return {
            path: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            for path in sorted(_results(attempt).rglob("*"))
        }

    before = state()
    assert len(doctor.examine(_results(attempt))) == 3
    assert state() == before


def test_the_doctor_needs_no_torch():
    code = "import sys, bench.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
