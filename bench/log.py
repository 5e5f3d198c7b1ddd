"""The log of a run: what was done when, with full tracebacks, in a file of its folder.

Apart, so that what a user sees stays short and nothing is lost. Free of torch. Not here: records.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench import disk

LOG = logging.getLogger("skipbench")
_FORM = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


class _File(logging.FileHandler):
    """One that a full disk does not stop: whether the run itself can go on is for it to say."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name that is called
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def to_file(path: Path, *, debug: bool) -> Iterator[None]:
    """Appends what is logged to a file; with ``debug`` it is shown as well.

    Raises:
        InputError: if there can be no such file.
    """
    with disk.writing(path):
        handlers: list[logging.Handler] = [_File(path, encoding="utf-8")]
    if debug:
        handlers.append(logging.StreamHandler())
    level, propagate = LOG.level, LOG.propagate
    # Hydra's root handler would print every line.
    LOG.propagate = False
    LOG.setLevel(logging.DEBUG)
    for handler in handlers:
        handler.setFormatter(_FORM)
        LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.setLevel(level)
        LOG.propagate = propagate
        for handler in handlers:
            LOG.removeHandler(handler)
            handler.close()
