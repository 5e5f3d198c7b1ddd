"""Finds a task or a score by its name: one file of a package is one of them.

Apart, because tasks and scores are found in the same way and a list kept by hand would be a second
place to edit. Not here: what the modules found must define (``contract.py`` of each package).
"""

import difflib
import pkgutil
from importlib import import_module
from types import ModuleType

from bench.errors import InputError

_NO_CHOICES = ("contract",)


def names(package: str) -> tuple[str, ...]:
    """The names that ``find`` accepts, sorted: the package's files, but for its contract."""
    found = pkgutil.iter_modules(import_module(package).__path__)
    files = (module.name for module in found if not module.ispkg)
    return tuple(sorted(n for n in files if n not in _NO_CHOICES and not n.startswith("_")))


def find(package: str, name: str, what: str) -> ModuleType:
    """Imports the module ``name`` of a package.

    Args:
        package: dotted name, such as ``bench.tasks``.
        name: the file's stem.
        what: the noun for it, such as ``task``; stands in the refusal.

    Raises:
        InputError: the package has no such file; the text lists all names, near ones first.
    """
    choices = names(package)
    if name in choices:
        return import_module(f"{package}.{name}")
    near = difflib.get_close_matches(name, choices)
    raise InputError(
        f"There is no {what} of this name",
        got=f"{name} (near: {', '.join(near)})" if near else name,
        allowed=", ".join(choices),
        where=f"{what}; each is one file in {package.replace('.', '/')}/",
    )
