"""Files of rows by their endings: CSV (RFC 4180), TSV (no quoting), JSON, JSON lines, parquet.

Apart, because what a file's form demands of its reader has nothing to do with what its columns
mean. All but parquet also as .gz. Not here: which files make a split (``rows.py``).
"""

import csv
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

# What a damaged file, or one in another form, makes the readers raise.
FAULTS = (UnicodeDecodeError, csv.Error, ValueError, OSError, EOFError)
Read = tuple[Sequence[str], Sequence[Mapping[str, Any]]]


def read(path: Path) -> Read:
    """Names of the columns, and the rows, of a file with one of ``ENDINGS``.

    Raises:
        UnicodeDecodeError, csv.Error, ValueError, OSError, EOFError: for a file that is none.
    """
    reader = next(each for ending, each in _READERS.items() if path.name.endswith(ending))
    return reader(path)


def form(path: Path) -> str:
    """What the ending says it is, for messages."""
    return path.name.removesuffix(".gz").rpartition(".")[2].upper()


def _opened(path: Path, encoding: str = "utf-8-sig") -> IO[str]:
    # A line break may stand within a quoted field: newline="" leaves it to the reader.
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def _csv(path: Path) -> Read:
    with _opened(path) as file:
        reader = csv.DictReader(file, strict=True)
        return tuple(reader.fieldnames or ()), list(reader)


def _tsv(path: Path) -> Read:
    with _opened(path) as file:
        # A lone quote is a character like others here.
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
        return tuple(reader.fieldnames or ()), list(reader)


def _json(path: Path) -> Read:
    """One document: a list of rows, or an object, which then is the only row."""
    with _opened(path) as file:
        whole = json.load(file)
    return _named(whole if isinstance(whole, list) else [whole])


def _jsonl(path: Path) -> Read:
    with _opened(path) as file:
        return _named([json.loads(line) for line in file if line.strip()])


def _named(records: Sequence[Any]) -> Read:
    if not all(isinstance(record, dict) for record in records):
        raise ValueError("a row is no JSON object")
    return tuple(dict.fromkeys(name for record in records for name in record)), records


def _parquet(path: Path) -> Read:
    # Here and not above: slow to import, and needed for this form alone.
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    return tuple(table.column_names), table.to_pylist()


_READERS: Mapping[str, Callable[[Path], Read]] = {
    ".csv": _csv,
    ".csv.gz": _csv,
    ".tsv": _tsv,
    ".tsv.gz": _tsv,
    ".json": _json,
    ".json.gz": _json,
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".parquet": _parquet,
}

ENDINGS = tuple(_READERS)
