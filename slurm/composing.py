"""Composes the jobs of a sweep, most of them without Hydra: it takes tens of milliseconds a job.

Jobs that choose the same files differ in single values only. So Hydra composes each choice once,
with the lists and mappings that are set beside it, and a plain ``key=value`` is set on a copy of
the outcome. Whatever is not plainly that (deletions, references, keys that meet a group) is
composed by Hydra as ever; a test compares both. Not here: what a configuration means.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, flag_override

_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MISSING = "???"
# The same for all jobs.
_OF_ENVIRONMENT = "${oc.env:"


@dataclass(frozen=True, slots=True)
class _Setting:
    """A plain value for a key."""

    path: tuple[str, ...]
    value: Any


class Composer:
    """The jobs of one sweep.

    Args:
        loader: Hydra's, with the search path of the command.
        master: the configuration that Hydra composed for the sweep as a whole.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self._loader, self._master = loader, master
        self._groups = frozenset(loader.list_groups(""))
        parser = OverridesParser.create(config_loader=loader)
        self._parsed = cache(lambda text: parser.parse_override(text))
        self._base = cache(self._composed_base)

    def compose(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The configuration of a job as plain nested dicts, references resolved.

        Raises:
            HydraException: and others of Hydra and omegaconf, for what cannot be composed.
        """
        found = [self._setting(text) for text in overrides]
        others = [text for text, each in zip(overrides, found, strict=True) if each is None]
        settings = [each for each in found if each is not None]
        base = None
        if all(self._is_free(self._parsed(text), settings) for text in others):
            base = self._base(tuple(others))
        if base is not None:
            values = copy.deepcopy(base)
            if all(_set(values, each) for each in settings):
                return values
        return self.compose_slowly(overrides)

    def compose_slowly(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The same by Hydra alone."""
        return _plain(self._load(overrides), resolve=True)

    def _load(self, overrides: Sequence[str]) -> DictConfig:
        config: DictConfig = self._loader.load_sweep_config(self._master, list(overrides))
        HydraConfig.instance().set_config(config)
        with flag_override(config, ["struct", "readonly"], [False, False]):
            del config["hydra"]
        return config

    def _composed_base(self, others: tuple[str, ...]) -> dict[str, Any] | None:
        """What all but plain values compose to; None if any value of it refers to another."""
        loaded = self._load(others)
        refers = _refers(_plain(loaded, resolve=False))
        return None if refers else _plain(loaded, resolve=True)

    def _setting(self, text: str) -> _Setting | None:
        """A forced setting of a scalar; None for everything else."""
        override = self._parsed(text)
        key = override.key_or_group
        if not override.is_force_add() or override.package is not None or not _KEY.fullmatch(key):
            return None
        value = override.value()
        scalar = value is None or isinstance(value, bool | int | float | str)
        if key.startswith("hydra.") or not scalar or _refers(value):
            return None
        return _Setting(tuple(key.split(".")), value)

    def _is_free(self, override: Override, settings: Sequence[_Setting]) -> bool:
        """Whether an override may come before plain settings, wherever it was written.

        So may a choice of files, what is Hydra's own, and a list or mapping that none of them is
        within or above.
        """
        key = override.key_or_group
        if override.is_delete():
            return False
        if not override.is_force_add():
            return key in self._groups or key.startswith(("hydra.", "hydra/"))
        if override.package is not None or not isinstance(override.value(), list | dict):
            return False
        path = tuple(key.split("."))
        return not any(path[: len(each.path)] == each.path[: len(path)] for each in settings)


def _plain(config: DictConfig, *, resolve: bool) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(config, resolve=resolve)
    return dict(values)


def _refers(value: object) -> bool:
    """Whether a value, or any within it, is a reference to another that an override may change."""
    if isinstance(value, dict):
        return any(_refers(each) for each in value.values())
    if isinstance(value, list):
        return any(_refers(each) for each in value)
    return isinstance(value, str) and "${" in value.replace(_OF_ENVIRONMENT, "")


def _set(values: dict[str, Any], setting: _Setting) -> bool:
    """Sets a value in place; False where it would meet a group or a list, or is no value."""
    *above, last = setting.path
    at: Any = values
    for name in above:
        at = at.setdefault(name, {})
        if not isinstance(at, dict):
            return False
    if isinstance(at.get(last), dict | list) or setting.value == _MISSING:
        return False
    at[last] = setting.value
    return True
