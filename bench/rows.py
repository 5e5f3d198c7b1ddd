"""Rows of a data set: from files in ``task.data_dir`` as they were published, or from the hub.

Apart, because every task with a public data set reads it in the same way: splits and fields bear
our names behind this module, whoever published them, and what cannot be read is refused in one
form. Not here: the forms of files (``row_files.py``), prompts (``bench/tasks/``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from bench import hub, row_files
from bench.errors import InputError
from bench.fingerprint import fingerprint
from bench.tasks.contract import Split

_WHERE = "task.data_dir"
# Beside the folder itself: how the hub's own repositories are laid out.
_SUBFOLDERS = (".", "data")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a data set looks like, in files and on the hub.

    Attributes:
        title: its name in messages.
        form: ending of the files as they were published.
        files: split -> names of its files without their endings, ``*`` allowed, best first.
        columns: fields that every row has -> what else they are called.
        optional: those that a row may lack; then they are None.
        may_be_empty: those that may be empty text.
        unpack: rows of a JSON document that nests them; None where there is no such form.
        id_column: a field whose value names a row; None, or where it is lacking: the row's index
            in its split, from 0.
        config: the hub's configuration, and a folder in which files may be; None without one.
        hub_splits: split -> the hub's name of it, where that is another.
    """

    title: str
    form: str
    files: Mapping[Split, tuple[str, ...]]
    columns: Mapping[str, tuple[str, ...]]
    optional: tuple[str, ...] = ()
    may_be_empty: tuple[str, ...] = ()
    unpack: Callable[[Mapping[str, Any]], list[Mapping[str, Any]]] | None = None
    id_column: str | None = None
    config: str | None = None
    hub_splits: Mapping[Split, str] = field(default_factory=dict)

    def published(self) -> str:
        """The files of all splits by their published names."""
        return ", ".join(names[0] + self.form for names in self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where rows come from; a task's ``Params`` may derive from it.

    Attributes:
        data_dir: folder of the published files; None for the hub.
        hub_id: data set on the Hugging Face hub, used without ``data_dir``; None if it has none.
        hub_revision: commit or branch of it; None for its newest.
    """

    data_dir: str | None = None
    hub_id: str | None = None
    hub_revision: str | None = None


class Rows(Sequence[Row]):
    """The rows of a split, each with its ``id`` and the layout's fields under our names.

    Args:
        layout: of the data set.
        columns: names as found.
        records: rows as found.
        source: where they were found, for messages and records.
        file_hash: of the files; None for those of the hub.
    """

    def __init__(
        self,
        layout: Layout,
        columns: Sequence[str],
        records: Sequence[Mapping[str, Any]],
        source: str,
        file_hash: str | None = None,
    ) -> None:
        self.layout, self.source, self.file_hash = layout, source, file_hash
        self._records = records
        self._found = {
            ours: next((name for name in (ours, *others) if name in columns), None)
            for ours, others in layout.columns.items()
        }
        if any(self._found[name] is None for name in layout.columns if name not in layout.optional):
            raise InputError(
                f"Cannot read {layout.title}: a column is missing",
                got=f"{source}: {', '.join(columns) or 'no header'}",
                allowed="; ".join(
                    " or ".join((ours, *others))
                    for ours, others in layout.columns.items()
                    if ours not in layout.optional
                ),
                where=_WHERE,
            )
        if not len(records):
            raise InputError(
                f"Cannot read {layout.title}: there are no rows",
                got=source,
                allowed="at least one row",
                where=_WHERE,
            )

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Reads rows; refuses those that lack a needed field."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return self._row(at, self._records[at])

    def __iter__(self) -> Iterator[Row]:
        """In order; faster than by index."""
        for at, record in enumerate(self._records):
            yield self._row(at, record)

    def _row(self, at: int, record: Mapping[str, Any]) -> Row:
        layout = self.layout
        row = {
            ours: None if name is None else record.get(name) for ours, name in self._found.items()
        }
        empty = [
            ours
            for ours, value in row.items()
            if (value is None and ours not in layout.optional)
            or (value == "" and ours not in (*layout.optional, *layout.may_be_empty))
        ]
        if empty:
            raise InputError(
                f"Cannot read {layout.title}: a row lacks {' and '.join(empty)}",
                got=f"{self.source}: row {at + 1}",
                allowed=f"every row with {', '.join(layout.columns)}",
                where=_WHERE,
            )
        name = row.get(layout.id_column) if layout.id_column is not None else None
        return {**row, "id": str(at if name is None else name)}


def read(layout: Layout, place: Place, split: Split) -> Rows:
    """The rows of a split.

    Raises:
        InputError: if there is no such split, or it cannot be read.
    """
    if split not in layout.files:
        raise InputError(
            f"{layout.title} has no such split",
            got=split,
            allowed=", ".join(layout.files),
            where="task.split",
        )
    if place.data_dir is not None:
        return _read_files(layout, Path(place.data_dir).expanduser(), split)
    return _read_hub(layout, place, split)


def _read_files(layout: Layout, folder: Path, split: Split) -> Rows:
    paths = _find(layout, folder, split)
    columns: Sequence[str] = ()
    records: list[Mapping[str, Any]] = []
    for path in paths:
        try:
            columns, found = row_files.read(path)
            if layout.unpack is not None and row_files.form(path) == "JSON":
                found = [row for document in found for row in layout.unpack(document)]
                columns = tuple(found[0]) if found else ()
        except (*row_files.FAULTS, KeyError, TypeError) as error:
            raise InputError(
                f"Cannot read {layout.title}: the file is not UTF-8 {row_files.form(path)}",
                got=f"{path}: {error}",
                allowed="the file as it was published",
                where=_WHERE,
            ) from error
        records += found
    source = ", ".join(map(str, paths))
    return Rows(layout, columns, records, source, fingerprint(folder, paths))


def _find(layout: Layout, folder: Path, split: Split) -> list[Path]:
    """The files of a split, sorted: those of the first name that has any."""
    names = layout.files[split]
    allowed = f"a folder with {layout.published()}; also as {', '.join(row_files.ENDINGS)}"
    if not folder.is_dir():
        raise InputError(
            f"Cannot read {layout.title}: no such folder",
            got=folder,
            allowed=allowed,
            where=_WHERE,
        )
    within = [*_SUBFOLDERS, *([layout.config] if layout.config else [])]
    for name in names:
        for part in within:
            by_ending = {
                ending: sorted((folder / part).glob(name + ending)) for ending in row_files.ENDINGS
            }
            found = [paths for paths in by_ending.values() if paths]
            if len(found) > 1:
                raise InputError(
                    f"Cannot read {layout.title}: the split is there in several forms",
                    got=", ".join(str(path) for paths in found for path in paths),
                    allowed="one form of it",
                    where=_WHERE,
                )
            if found:
                return found[0]
    raise InputError(
        f"Cannot read {layout.title}: the folder has no file {names[0]}{layout.form}",
        got=folder,
        allowed=allowed,
        where=_WHERE,
    )


def _read_hub(layout: Layout, place: Place, split: Split) -> Rows:
    title, hub_id = layout.title, place.hub_id
    if hub_id is None:
        raise InputError(
            f"Cannot read {title}: it is not on the hub, and no folder is given",
            got="task.data_dir=null",
            allowed=f"a folder with {layout.published()}",
            where=_WHERE,
        )
    # Here and not above: slow to import, and not needed by whoever has the files.
    import datasets

    theirs = layout.hub_splits.get(split, split)
    config = [] if layout.config is None else [layout.config]
    try:
        table = datasets.load_dataset(hub_id, *config, revision=place.hub_revision, split=theirs)
    except (*hub.FAULTS, RuntimeError, ValueError) as error:
        # OSError: no network, no such data set; RuntimeError: only a loading script there;
        # ValueError: no such revision or split.
        raise InputError(
            f"Cannot load {title}: the hub cannot be reached or does not give this data set",
            got=f"{hub_id}, split {theirs}: {type(error).__name__}: {error}",
            allowed=f"a reachable hub, or a folder with {layout.published()}",
            where=f"{_WHERE} (a local folder), task.hub_id, task.hub_revision",
        ) from error
    return Rows(layout, tuple(table.column_names), table, source=f"{hub_id}, split {theirs}")
