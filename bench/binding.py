"""Mappings to frozen dataclasses, strictly: unknown keys, wrong types, gaps are faults.

Apart from ``config.py``, which says what may be configured; this module only knows dataclasses. All
faults of a mapping are gathered, each with its full key. Not here: omegaconf.
"""

import difflib
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from bench.errors import InputError

T = TypeVar("T")


def bind(kind: type[T], values: Mapping[str, Any], key: str, faults: list[InputError]) -> T | None:
    """Makes a dataclass of a mapping.

    Args:
        kind: a dataclass of plain values, optional values, literals, tuples, mappings, dataclasses.
        values: its fields.
        key: full key of the mapping, for messages; empty for the whole.
        faults: gets one entry for each fault.

    Returns:
        The object, or None if there was a fault.
    """
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(cast(Any, kind))}
    prefix = f"{key}." if key else ""
    before = len(faults)
    faults += [unknown(f"{prefix}{name}", known) for name in others(values, known)]
    bound: dict[str, Any] = {}
    for name, field in known.items():
        if name in values:
            bound[name] = _value(hints[name], values[name], f"{prefix}{name}", faults)
        elif field.default is MISSING and field.default_factory is MISSING:
            faults.append(
                InputError(
                    f"Setting {prefix}{name} is missing",
                    got="nothing",
                    allowed=_words(hints[name]),
                    where=f"{prefix}{name}",
                )
            )
    return None if len(faults) > before else kind(**bound)


def unknown(key: str, known: Iterable[str]) -> InputError:
    """The refusal of a full key whose last part is none of the known names."""
    name, names = key.rpartition(".")[2], list(known)
    near = difflib.get_close_matches(name, names)
    allowed = (", ".join(names) or "none") + (f" (near: {', '.join(near)})" if near else "")
    return InputError(f"Unknown setting {key}", got=name, allowed=allowed, where=key)


def others(values: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """Keys that are none of the known names, sorted."""
    return sorted(values.keys() - set(known), key=str)


def _value(kind: Any, value: Any, key: str, faults: list[InputError]) -> Any:  # noqa: ANN401  # any type
    """``value`` as ``kind``, or None with a fault."""
    whole, origin = kind, get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        options = [option for option in get_args(kind) if option is not type(None)]
        for kind in options:
            tried: list[InputError] = []
            found = _value(kind, value, key, tried)
            if not tried:
                return found
        # The fault of a single option may lie further in, and says so itself.
        within = len(options) == 1 and tried[0].where != key
        faults += tried if within else [_wrong(whole, value, key)]
        return None
    if is_dataclass(kind) and isinstance(value, Mapping):
        return bind(cast(type[Any], kind), value, key, faults)
    if origin is Literal and value in get_args(kind) and isinstance(value, str):
        return value
    if origin is tuple and isinstance(value, list | tuple):
        item = get_args(kind)[0]
        return tuple(_value(item, entry, f"{key}[{i}]", faults) for i, entry in enumerate(value))
    if origin is not None and isinstance(value, Mapping) and issubclass(origin, Mapping):
        return dict(value)
    if _fits(kind, value):
        return float(value) if kind is float else value
    faults.append(_wrong(whole, value, key))
    return None


def _wrong(kind: Any, value: object, key: str) -> InputError:  # noqa: ANN401  # any type
    return InputError(
        f"Setting {key} has a wrong value", got=repr(value), allowed=_words(kind), where=key
    )


def _fits(kind: Any, value: Any) -> bool:  # noqa: ANN401  # any type
    """Whether a plain value is of a plain type; an int is a float, a bool is no number."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return kind in (str, bool) and isinstance(value, kind)


def _words(kind: Any) -> str:  # noqa: ANN401  # any type
    """A type in a user's words."""
    plain = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    origin, options = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if o is type(None) else _words(o) for o in options)
    if origin is Literal:
        return ", ".join(map(str, options))
    if origin is tuple:
        return f"a list of: {_words(options[0])}"
    return plain.get(kind, "a group of settings")
