"""The E2E task, on a small file with the traps of the real ones."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.errors import InputError
from bench.tasks import e2e

TRAPS = (
    "mr,ref\r\n"
    '"name[Mill], area[riverside]",The Mill is by the river.\r\n'
    '"name[Café Sun], priceRange[£20-25]","Café Sun costs  £20,\r\nor more."\r\n'
    '"name[Mill], area[riverside]",The Mill is by the river.\r\n'
    '"name[Mill], area[riverside]","Go to ""Mill""."\r\n'
)


def _task(folder: Path, text: str = TRAPS) -> e2e.Task:
    for name in ("trainset.csv", "devset.csv", "testset_w_refs.csv"):
        (folder / name).write_bytes(text.encode())
    return e2e.Task(e2e.Params(data_dir=str(folder)))


def test_equal_mrs_become_one_example_with_all_references(tmp_path):
    mill, cafe = _task(tmp_path).examples("validation")
    assert mill.id == "0"
    assert mill.prompt == "name[Mill], area[riverside]\n"
    assert mill.references == (
        "The Mill is by the river.",
        "The Mill is by the river.",
        'Go to "Mill".',
    )
    assert cafe.id == "1"
    assert cafe.prompt == "name[Café Sun], priceRange[£20-25]\n"
    assert cafe.references == ("Café Sun costs  £20,\r\nor more.",)
    assert mill.facts is None


def test_every_row_becomes_a_training_pair_with_single_spaces(tmp_path):
    pairs = _task(tmp_path).training_pairs()
    assert [pair.target for pair in pairs] == [
        "The Mill is by the river.",
        "Café Sun costs £20, or more.",
        "The Mill is by the river.",
        'Go to "Mill".',
    ]
    assert pairs[1].prompt == "name[Café Sun], priceRange[£20-25]\n"


def test_each_split_reads_its_own_file(tmp_path):
    for name, mr in (("trainset", "a"), ("devset", "b"), ("testset_w_refs", "c")):
        (tmp_path / f"{name}.csv").write_text(f"mr,ref\n{mr},text\n", encoding="utf-8")
    task = e2e.Task(e2e.Params(data_dir=str(tmp_path)))
    prompts = [task.examples(split)[0].prompt for split in ("train", "validation", "test")]
    assert prompts == ["a\n", "b\n", "c\n"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "no header", id="empty file"),
        pytest.param("mr,ref\r\n", "no rows", id="header alone"),
        pytest.param("mr,text\r\na,b\r\n", "mr, text", id="no reference column"),
        pytest.param("mr,ref\r\na,b\r\nc\r\n", "row 2", id="row without a reference"),
        pytest.param('mr,ref\r\na,"b\r\n', "not UTF-8 CSV", id="open quote"),
    ],
)
def test_broken_file_is_refused_with_the_key(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        _task(tmp_path, text).examples("test")
    assert caught.value.where == "task.data_dir"


def test_file_in_another_encoding_is_refused(tmp_path):
    task = _task(tmp_path)
    (tmp_path / "devset.csv").write_bytes("mr,ref\na,£5\n".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8 CSV"):
        task.examples("validation")


def test_missing_folder_and_missing_file_are_refused_with_the_key(tmp_path):
    nowhere = e2e.Task(e2e.Params(data_dir=str(tmp_path / "nowhere")))
    with pytest.raises(InputError, match="no such folder") as caught:
        nowhere.training_pairs()
    assert caught.value.where == "task.data_dir"
    with pytest.raises(InputError, match=r"no file trainset\.csv"):
        e2e.Task(e2e.Params(data_dir=str(tmp_path))).training_pairs()


class _Table(list[dict[str, str]]):
    column_names = ("meaning_representation", "human_reference")


def _fake_hub(monkeypatch: pytest.MonkeyPatch, load_dataset: object) -> None:
    fake = SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", fake)


def test_hub_rows_with_old_field_names_are_read(monkeypatch):
    asked = []

    def load_dataset(hub_id, revision, split):
        asked.append((hub_id, revision, split))
        return _Table([{"meaning_representation": "name[Mill]", "human_reference": "Mill."}])

    _fake_hub(monkeypatch, load_dataset)
    (example,) = e2e.Task(e2e.Params(hub_revision="abc")).examples("test")
    assert (example.prompt, example.references) == ("name[Mill]\n", ("Mill.",))
    assert asked == [("tuetschek/e2e_nlg", "abc", "test")]


def test_unreachable_hub_is_refused_and_the_folder_named(monkeypatch):
    def load_dataset(hub_id, revision, split):
        raise ConnectionError("no route")

    _fake_hub(monkeypatch, load_dataset)
    with pytest.raises(InputError, match="hub cannot be reached") as caught:
        e2e.Task(e2e.Params()).examples("test")
    assert "task.data_dir" in caught.value.where
    assert "ConnectionError: no route" in str(caught.value)


def test_the_record_tells_rows_from_distinct_inputs(tmp_path):
    task = _task(tmp_path)
    task.examples("validation")
    about = task.about("validation")
    assert (about["rows"], about["distinct_prompts"]) == (4, 2)
    assert about["source"] == str(tmp_path / "devset.csv")
    assert about["file_hash"].startswith("sha256:")
