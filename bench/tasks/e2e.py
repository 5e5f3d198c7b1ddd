"""E2E NLG: restaurant facts (a meaning representation, MR) to an English text.

Apart, because it is one task. Rows come from the challenge's CSV files in ``task.data_dir`` or,
without it, from the hub; both give the same rows. Evaluation has one example per distinct MR with
all its references (duplicates kept, as in the challenge), not one per row, which would weigh an MR
by how often it was described. Not here: facts to check, since the texts were written freely and
hold no exact wordings; the challenge's own METEOR, NIST and CIDEr.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import InputError
from bench.tasks.contract import Example, Pair, Split

_FILES: Mapping[Split, str] = {
    "train": "trainset.csv",
    "validation": "devset.csv",
    "test": "testset_w_refs.csv",
}
_OLD_NAMES = {"meaning_representation": "mr", "human_reference": "ref"}
_COLUMNS = ("mr", "ref")
_WHERE = "task.data_dir"

Row = tuple[str, str]  # MR, reference


@dataclass(frozen=True, slots=True)
class Params:
    """Where the rows come from.

    Attributes:
        data_dir: folder of the challenge's three CSV files; None for the hub.
        hub_id: data set on the Hugging Face hub, used without ``data_dir``.
        hub_revision: commit or branch of it; None for its newest.
    """

    data_dir: str | None = None
    hub_id: str = "tuetschek/e2e_nlg"
    hub_revision: str | None = None


class Task:
    """The E2E data set; an example's id is the row (0-based) in which its MR comes first."""

    scores: tuple[str, ...] = ("bleu", "rouge_l")
    calibration_score: str | None = "rouge_l"

    def __init__(self, params: Params) -> None:
        self._params = params

    def examples(self, split: Split) -> Sequence[Example]:
        """One example per distinct MR, in the order of first occurrence."""
        groups: dict[str, tuple[int, list[str]]] = {}
        for index, (mr, reference) in enumerate(self._rows(split)):
            groups.setdefault(mr, (index, []))[1].append(reference)
        return [
            Example(id=str(index), prompt=_prompt(mr), references=tuple(references))
            for mr, (index, references) in groups.items()
        ]

    def training_pairs(self) -> Sequence[Pair]:
        """One pair per row; runs of white space in a target become one space."""
        return [Pair(_prompt(mr), " ".join(ref.split())) for mr, ref in self._rows("train")]

    def _rows(self, split: Split) -> list[Row]:
        params = self._params
        if params.data_dir is None:
            return _read_hub(params.hub_id, params.hub_revision, split)
        return _read_csv(Path(params.data_dir).expanduser(), _FILES[split])


def _prompt(mr: str) -> str:
    return f"{mr}\n"


def _read_csv(folder: Path, file_name: str) -> list[Row]:
    if not folder.is_dir():
        raise InputError(
            "Cannot read E2E: no such folder",
            got=folder,
            allowed=f"a folder with {', '.join(_FILES.values())}",
            where=_WHERE,
        )
    path = folder / file_name
    if not path.is_file():
        raise InputError(
            f"Cannot read E2E: the folder has no file {file_name}",
            got=folder,
            allowed=f"a folder with {', '.join(_FILES.values())}",
            where=_WHERE,
        )
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # a line break may be quoted
            reader = csv.DictReader(file, strict=True)
            columns = tuple(reader.fieldnames or ())
            return _checked(columns, reader, source=str(path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            "Cannot read E2E: the file is not UTF-8 CSV",
            got=f"{path}: {error}",
            allowed="the challenge's file as it was published (RFC 4180)",
            where=_WHERE,
        ) from error


def _read_hub(hub_id: str, revision: str | None, split: Split) -> list[Row]:
    # Here and not above: slow to import, and not needed by whoever has the files.
    import datasets

    try:
        table = datasets.load_dataset(hub_id, revision=revision, split=split)
    except (OSError, RuntimeError, ValueError) as error:
        # OSError: no network, no such data set; RuntimeError: only a loading script there;
        # ValueError: no such revision or split.
        raise InputError(
            "Cannot load E2E: the hub cannot be reached or does not give this data set",
            got=f"{hub_id}, split {split}: {type(error).__name__}: {error}",
            allowed=f"a reachable hub, or a folder with {', '.join(_FILES.values())}",
            where=f"{_WHERE} (a local folder), task.hub_id, task.hub_revision",
        ) from error
    return _checked(tuple(table.column_names), table, source=f"{hub_id}, split {split}")


def _checked(
    columns: Sequence[str], records: Iterable[Mapping[str, str | None]], source: str
) -> list[Row]:
    """Brings old column names to today's and refuses what is not whole."""
    found = {_OLD_NAMES.get(column, column): column for column in columns}
    if not set(_COLUMNS) <= set(found):
        raise InputError(
            "Cannot read E2E: a column is missing",
            got=f"{source}: {', '.join(columns) or 'no header'}",
            allowed=f"{' and '.join(_COLUMNS)}, or {' and '.join(_OLD_NAMES)}",
            where=_WHERE,
        )
    rows: list[Row] = []
    for number, record in enumerate(records, start=1):
        mr, reference = (record[found[column]] for column in _COLUMNS)
        if not mr or not reference:
            raise InputError(
                "Cannot read E2E: a row lacks its MR or its reference",
                got=f"{source}: row {number}",
                allowed="two filled fields in every row",
                where=_WHERE,
            )
        rows.append((mr, reference))
    if not rows:
        raise InputError(
            "Cannot read E2E: there are no rows",
            got=source,
            allowed="at least one row below the header",
            where=_WHERE,
        )
    return rows
