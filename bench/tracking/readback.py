"""Reads a ``.wandb`` file back: what W&B really holds of a run.

Apart, because wandb writes in a process of its own and does not say when a disk was full; and it
has no reader in Python any more. The format is LevelDB's log: blocks of 32 KiB; a record is cut at
their ends, each piece behind its checksum, length and kind. Not here: what should be in it.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_MAGIC = b":W&B"
_FILE_HEAD, _PIECE_HEAD = struct.Struct("<4sHB"), struct.Struct("<IHB")
_BLOCK = 1 << 15
_WHOLE, _LAST = 1, 4


@dataclass(slots=True)
class Logged:
    """One W&B run as its file has it.

    Attributes:
        run: the project, group and other names, as wandb has written them.
        config: nested.
        history: one row a logged step.
        summary: flat names.
        exit_code: None for a run that was never ended.
        preempting: whether it said that it will be taken up again.
        artifacts: name -> paths in it.
        x_axes: names, with ``*`` at their end for many -> what they are drawn over.
    """

    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    preempting: bool = False
    artifacts: dict[str, list[str]] = field(default_factory=dict)
    x_axes: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Logged:
    """A run from its file; what a killed writer has left torn at the end is left out.

    Raises:
        ValueError: for a file that is none of W&B's, or is damaged.
    """
    found = Logged()
    for data in _records(path):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # made as it loads
        record.ParseFromString(data)
        _take(found, record)
    return found


def _take(found: Logged, record: Any) -> None:  # noqa: ANN401  # generated code has no types
    kind = record.WhichOneof("record_type")
    if kind == "run":
        found.run = record.run
        found.config |= _items(record.run.config.update)
    elif kind == "config":
        found.config |= _items(record.config.update)
    elif kind == "history":
        found.history.append(_items(record.history.item))
    elif kind == "summary":
        found.summary |= _items(record.summary.update)
    elif kind == "exit":
        found.exit_code = record.exit.exit_code
    elif kind == "metric" and record.metric.step_metric:
        name = record.metric.name or record.metric.glob_name
        found.x_axes[name] = record.metric.step_metric
    elif kind == "preempting":
        found.preempting = True
    elif kind == "artifact":
        paths = [entry.path for entry in record.artifact.manifest.contents]
        found.artifacts[record.artifact.name] = paths


def _items(items: Iterable[Any]) -> dict[str, Any]:
    return {each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in items}


def _records(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    if not data:
        # Made, and not yet written to.
        return
    if data[:4] != _MAGIC:
        raise ValueError(f"{path} is no file of W&B")
    at, parts = _FILE_HEAD.size, []
    while at + _PIECE_HEAD.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _PIECE_HEAD.size:
            # Too narrow for a piece.
            at += left
            continue
        checksum, length, kind = _PIECE_HEAD.unpack_from(data, at)
        piece = data[at + _PIECE_HEAD.size : at + _PIECE_HEAD.size + length]
        if len(piece) < length:
            return
        if zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
            raise ValueError(f"{path} is damaged at byte {at}")
        at += _PIECE_HEAD.size + length
        parts.append(piece)
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
            parts = []
