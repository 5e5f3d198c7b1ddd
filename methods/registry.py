"""Finds a method by name; there is no list of methods anywhere.

A method is a package ``methods/<name>/``. Its settings are imported to check a config, its
decoding only to run. Apart from the contract, because looking things up is not part of what a
method is. Free of torch.
"""

import difflib
import importlib
import importlib.util
import pkgutil
from pathlib import Path
from typing import cast

from methods.contract import MethodModule, ParamsModule


class UnknownMethodError(LookupError):
    """No method of that name; ``names`` holds those there are, ``near`` those spelt alike."""

    def __init__(self, name: str) -> None:
        self.names = method_names()
        self.near = difflib.get_close_matches(name, self.names)
        super().__init__(f"no method {name!r}; methods: {', '.join(self.names)}")


def method_names() -> list[str]:
    """All methods, sorted: the packages of ``methods/`` that have settings."""
    folder = Path(__file__).parent
    names = [found.name for found in pkgutil.iter_modules([str(folder)]) if found.ispkg]
    return sorted(name for name in names if (folder / name / "params.py").exists())


def find_params(name: str) -> ParamsModule:
    """The settings module of a method; raises UnknownMethodError."""
    if name not in method_names():
        raise UnknownMethodError(name)
    return cast(ParamsModule, importlib.import_module(f"methods.{name}.params"))


def find_method(name: str) -> MethodModule:
    """The decoding module of a method (imports torch); raises UnknownMethodError."""
    if name not in method_names():
        raise UnknownMethodError(name)
    return cast(MethodModule, importlib.import_module(f"methods.{name}.method"))
