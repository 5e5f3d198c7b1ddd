"""A run's configuration as it was submitted, in a file: what a job runs, whatever is edited later.

Apart, because it is written on a login node and read on another machine, perhaps days later. Free
of torch. Not here: running it (``submitted.py``).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import disk
from bench.config import RunConfig, from_mapping
from bench.errors import InputError


@dataclass(frozen=True, slots=True)
class FrozenRun:
    """One run, ready to be made elsewhere.

    Attributes:
        values: the configuration as composed, plain and whole; ``results_dir`` is absolute.
        changed: settings that differed from the method's file when it was submitted.
        run_id: what it was planned to be.
        attempt: which attempt at it this is.
        folder: absolute; in which relative paths of the configuration mean something.
    """

    values: Mapping[str, Any]
    changed: Mapping[str, Any]
    run_id: str
    attempt: int
    folder: str

    def config(self) -> RunConfig:
        """The configuration, checked.

        Raises:
            FaultsError: if the code has other settings by now.
        """
        config = from_mapping(self.values, {})
        return replace(config, method=replace(config.method, changed=self.changed))


def freeze(values: Mapping[str, Any], config: RunConfig, *, run_id: str, attempt: int) -> FrozenRun:
    """A run as it is now.

    Args:
        values: as composed.
        config: as bound of them.
        run_id: as planned.
        attempt: as the store numbers it.
    """
    results = str(Path(config.results_dir).absolute())
    return FrozenRun(
        values={**values, "results_dir": results},
        changed=dict(config.method.changed),
        run_id=run_id,
        attempt=attempt,
        folder=str(Path.cwd()),
    )


def write(path: Path, run: FrozenRun) -> None:
    """Writes it whole or not at all."""
    text = json.dumps(asdict(run), indent=1, ensure_ascii=False)
    disk.replace(path, (text + "\n").encode())


def read(path: Path) -> FrozenRun:
    """What was written.

    Raises:
        InputError: if it is not there, or is something else.
    """
    try:
        return FrozenRun(**json.loads(disk.content(path) or b""))
    except (TypeError, ValueError) as error:
        raise InputError(
            "Cannot read a submitted configuration",
            got=f"{path}: {error}",
            allowed="a file that a submission wrote",
            where="submit the sweep again",
        ) from error
