"""Rows of a data set: forms of files, names of splits and fields, ids, and what is refused."""

import gzip
import json
import sys
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from bench import rows
from bench.errors import InputError

LAYOUT = rows.Layout(
    title="Pairs",
    form=".csv",
    files={"train": ("pairs_train", "*_train"), "test": ("pairs_test", "test-*")},
    columns={"ask": ("question",), "say": (), "name": ()},
    optional=("name",),
    id_column="name",
    config="plain",
    hub_splits={"test": "held_out"},
)
RECORDS = [{"question": 'a "lone quote', "say": "x,\ty"}, {"question": "é", "say": "z"}]


def _read(folder, split="test"):
    return rows.read(LAYOUT, rows.Place(data_dir=str(folder)), split)


def _csv():
    return 'question,say\r\n"a ""lone quote","x,\ty"\r\né,z\r\n'.encode()


def _jsonl():
    return "\n".join(json.dumps(record, ensure_ascii=False) for record in RECORDS).encode() + b"\n"


WRITTEN = {
    ".csv": _csv(),
    ".csv.gz": gzip.compress(_csv()),
    ".tsv": b'question\tsay\na "lone quote\tx,y\n\xc3\xa9\tz\n',
    ".json": json.dumps(RECORDS).encode(),
    ".jsonl": _jsonl(),
    ".jsonl.gz": gzip.compress(_jsonl()),
}


@pytest.mark.parametrize("ending", WRITTEN)
def test_every_form_gives_the_same_rows_under_our_names(tmp_path, ending):
    (tmp_path / f"pairs_test{ending}").write_bytes(WRITTEN[ending])
    found = _read(tmp_path)
    assert [row["ask"] for row in found] == ['a "lone quote', "é"]
    assert [row["say"].replace("\t", "") for row in found] == ["x,y", "z"]
    assert [row["id"] for row in found] == ["0", "1"]
    assert found[1] == {"ask": "é", "say": "z", "name": None, "id": "1"}


def test_parquet_gives_the_same_rows_from_the_hubs_own_folders(tmp_path):
    for folder in ("data", "plain"):
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / "test-00000-of-00001.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path)
        assert [row["ask"] for row in _read(tmp_path)] == ['a "lone quote', "é"]
        path.unlink()


def test_several_files_of_a_split_are_read_in_the_order_of_their_names(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}_train.csv").write_text(f"ask,say\n{name}1,x\n{name}2,x\n")
    found = _read(tmp_path, "train")
    assert [(row["id"], row["ask"]) for row in found] == [
        *(("0", "a1"), ("1", "a2"), ("2", "b1"), ("3", "b2"))
    ]


def test_a_name_in_the_rows_is_their_id(tmp_path):
    (tmp_path / "pairs_test.csv").write_text("ask,say,name\na,b,first\nc,d,second\n")
    assert [row["id"] for row in _read(tmp_path)] == ["first", "second"]


def test_the_files_hash_changes_with_what_is_in_them(tmp_path):
    path = tmp_path / "pairs_test.csv"
    path.write_text("ask,say\na,b\n")
    before = _read(tmp_path).file_hash
    assert _read(tmp_path).file_hash == before
    path.write_text("ask,say\na,bb\n")
    assert _read(tmp_path).file_hash != before


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({}, r"no file pairs_test\.csv", id="no file"),
        pytest.param({"pairs_test.csv": "ask,say\n"}, "no rows", id="header alone"),
        pytest.param({"pairs_test.csv": "ask,tell\na,b\n"}, "ask, tell", id="no column"),
        pytest.param({"pairs_test.csv": "ask,say\na,b\nc\n"}, "row 2", id="short row"),
        pytest.param({"pairs_test.csv": "ask,say\na,\n"}, "lacks say", id="empty field"),
        pytest.param({"pairs_test.csv": 'ask,say\na,"b\n'}, "not UTF-8 CSV", id="open quote"),
        pytest.param({"pairs_test.jsonl": "{"}, "not UTF-8 JSONL", id="half an object"),
        pytest.param({"pairs_test.jsonl": "[1]"}, "no JSON object", id="no object"),
        pytest.param({"pairs_test.parquet": "x"}, "not UTF-8 PARQUET", id="no parquet"),
        pytest.param({"pairs_test.csv.gz": "x"}, "not UTF-8 CSV", id="no gzip"),
        pytest.param(
            {"pairs_test.csv": "ask,say\na,b\n", "pairs_test.tsv": "ask\tsay\na\tb\n"},
            "several forms",
            id="two forms",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_key(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        list(_read(tmp_path))
    assert caught.value.where == "task.data_dir"


def test_a_split_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such split") as caught:
        _read(tmp_path, "validation")
    assert (caught.value.allowed, caught.value.where) == ("train, test", "task.split")


class _Table(list):
    column_names = ("question", "say")


def test_the_hub_is_asked_by_its_own_names(monkeypatch):
    asked = []

    def load_dataset(*where, **which):
        asked.append((where, which))
        return _Table(RECORDS)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    place = rows.Place(hub_id="owner/pairs", hub_revision="abc")
    assert rows.read(LAYOUT, place, "test")[-1]["ask"] == "é"
    assert asked == [(("owner/pairs", "plain"), {"revision": "abc", "split": "held_out"})]


def test_with_neither_folder_nor_hub_the_files_are_named():
    with pytest.raises(InputError, match="not on the hub") as caught:
        rows.read(LAYOUT, rows.Place(), "test")
    assert "pairs_train.csv, pairs_test.csv" in caught.value.allowed
    assert caught.value.where == "task.data_dir"
