"""Fingerprint: one hash of all that is read from a checkpoint folder.

Apart, because hashing gigabytes takes minutes and is done once: file hashes are kept by path, size
and time of change. Free of torch. Not here: what a fingerprint is part of (``identity.py``).
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

# Beside the weights, these bear on the numbers.
_SMALL_FILES = ("config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")
_CHUNK_BYTES = 1 << 22
_KEPT = Path.home() / ".cache" / "skipbench" / "file-hashes.json"


def fingerprint(folder: Path, weight_files: Iterable[Path]) -> str:
    """Hash of the names and hashes of the weight files and the small files beside them."""
    small = [folder / name for name in _SMALL_FILES if (folder / name).exists()]
    kept = _load()
    known = dict(kept)
    total = hashlib.sha256()
    for path in sorted({*weight_files, *small}):
        total.update(f"{path.name}:{_hash(path, kept)}\n".encode())
    if kept != known:
        _keep(kept)
    return f"sha256:{total.hexdigest()[:32]}"


def _hash(path: Path, kept: dict[str, str]) -> str:
    """The hash of a file, from ``kept`` if it has not changed; adds it there."""
    about = path.stat()
    key = f"{path.resolve()}|{about.st_size}|{about.st_mtime_ns}"
    if key not in kept:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        kept[key] = digest.hexdigest()
    return kept[key]


def _load() -> dict[str, str]:
    """Known hashes; a lost or damaged file only costs time."""
    try:
        loaded: dict[str, str] = json.loads(_KEPT.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded


def _keep(hashes: dict[str, str]) -> None:
    """Replaces the file in one step; a home that cannot be written is no fault."""
    part = _KEPT.with_suffix(".part")
    try:
        _KEPT.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(hashes), encoding="utf-8")
        part.replace(_KEPT)
    except OSError:
        return
