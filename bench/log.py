"""The log of a run: what was done when, with full tracebacks, in a file of its folder.

Apart, so that what a user sees stays short and nothing is lost. Free of torch. Not here: records.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOG = logging.getLogger("skipbench")
_FORM = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


@contextmanager
def to_file(path: Path, *, debug: bool) -> Iterator[None]:
    """Appends what is logged to a file; with ``debug`` it is shown as well."""
    handlers: list[logging.Handler] = [logging.FileHandler(path, encoding="utf-8")]
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
