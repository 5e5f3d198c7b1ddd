"""One list of columns and one schema: docs/results.md says the same, and numbers have units."""

import dataclasses
import re
from pathlib import Path

import pytest

from bench import columns, schema
from bench.meters.clock import Timing
from bench.meters.energy import Energy
from methods.engine.ledger import Sums, Traffic

DOCS = Path(__file__).resolve().parents[2] / "docs" / "results.md"
RECORDS = (
    schema.Start,
    schema.Segment,
    schema.BatchRecord,
    schema.Leg,
    Timing,
    Sums,
    Traffic,
    Energy,
    schema.Speculation,
    schema.Difference,
    schema.Header,
)
# Columns that hold a name, or a number that says which and not how much.
LABELS = {
    *("run_id", "status", "method", "setting", "model", "checkpoint", "task", "gpu", "dtype"),
    *("length", "seed", "attempt"),
}
# What the end of a name says of the unit.
UNIT_OF_BEGINNING = {"speedup": "ratio"}
UNIT_OF_ENDING = {
    "_tokens_per_s": "tokens/s",
    "_bytes": "bytes",
    "_s": "s",
    "_fraction": "fraction",
    "_rate": "fraction",
    "_ratio": "ratio",
}
COUNTED = {"layers", "flops", "bytes", "tokens", "joules"}


def _tables(heading):
    """Rows of each table with this first heading cell: cells of each row, backquotes gone."""
    lines = iter(DOCS.read_text(encoding="utf-8").splitlines())
    tables = []
    for line in lines:
        if line.startswith(f"| {heading} |"):
            next(lines)
            rows = []
            for row in lines:
                if not row.startswith("|"):
                    break
                cells = [cell.strip() for cell in row.strip("|").split(" | ")]
                rows.append((cells[0].strip("` "), *cells[1:]))
            tables.append(rows)
    return tables


def _fields_of_section(name):
    text = DOCS.read_text(encoding="utf-8").split(f"### `{name}`\n", 1)[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", text.split("\n### ")[0], flags=re.MULTILINE)


def test_the_document_lists_exactly_the_columns_with_their_units_and_meanings():
    fixed, of_scores = _tables("column")
    assert fixed == [tuple(column) for column in columns.COLUMNS]
    assert of_scores == [tuple(column) for column in columns.SCORE_COLUMNS]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_document_lists_exactly_the_fields_of_each_record(record):
    assert _fields_of_section(record.__name__) == [f.name for f in dataclasses.fields(record)]


def test_the_document_has_a_section_for_every_dataclass_of_the_schema():
    held = {
        value
        for value in vars(schema).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
    }
    assert held == set(RECORDS)


def test_every_column_that_is_a_number_has_a_unit_and_no_label_has_one():
    assert {column.name for column in columns.COLUMNS if not column.unit} == LABELS


def test_the_end_of_a_columns_name_agrees_with_its_unit():
    seen = set()
    for column in columns.COLUMNS:
        for beginning, unit in UNIT_OF_BEGINNING.items():
            if column.name.startswith(beginning):
                assert (column.name, column.unit) == (column.name, unit)
        for ending, unit in UNIT_OF_ENDING.items():
            if column.name.endswith(ending) and not column.name.startswith("speedup"):
                seen.add(ending)
                assert (column.name, column.unit) == (column.name, unit)
                break
    assert seen == set(UNIT_OF_ENDING)


def test_a_number_per_token_names_what_is_counted_and_has_its_unit():
    names = [c for c in columns.COLUMNS if c.name.endswith("_per_token")]
    assert len(names) == 6
    for column in names:
        what = column.name.removeprefix("dense.").split("_")[0]
        assert what in COUNTED
        assert column.unit.lower() == what


def test_no_two_columns_have_one_name():
    names = columns.names(["bleu", "rouge_l"])
    assert len(names) == len(set(names)) == len(columns.COLUMNS) + 2 * len(columns.SCORE_COLUMNS)


def test_columns_of_scores_come_last_score_by_score():
    found = columns.names(["bleu", "rouge_l"])[len(columns.COLUMNS) :]
    assert found[:2] == ["score.bleu", "score.bleu.low"]
    assert found[8:10] == ["diff.bleu.verdict", "score.rouge_l"]
