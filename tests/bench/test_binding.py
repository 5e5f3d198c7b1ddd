"""Binding of plain mappings to dataclasses, type by type."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, Literal

import pytest

from bench.binding import bind


@dataclass(frozen=True, slots=True)
class Inner:
    depth: int


@dataclass(frozen=True, slots=True)
class Settings:
    count: int = 1
    rate: float = 1.0
    name: str = "a"
    on: bool = False
    choice: Literal["x", "y"] = "x"
    maybe: int | None = None
    several: tuple[int, ...] = ()
    inner: Inner = field(default_factory=lambda: Inner(1))
    free: Mapping[str, Any] = field(default_factory=dict)
    perhaps: Inner | None = None


def bound(values, kind=Settings):
    faults = []
    return bind(kind, values, "top", faults), faults


def test_fields_left_out_take_their_defaults():
    assert bound({}) == (Settings(), [])


FITS = [
    ("count", 3, 3),
    ("rate", 2, 2.0),
    ("rate", 0.5, 0.5),
    ("on", True, True),
    ("choice", "y", "y"),
    ("maybe", None, None),
    ("maybe", 4, 4),
    ("several", [1, 2], (1, 2)),
    ("several", (), ()),
    ("inner", {"depth": 3}, Inner(3)),
    ("free", {"any": [1]}, {"any": [1]}),
    ("perhaps", None, None),
    ("perhaps", {"depth": 2}, Inner(2)),
]


@pytest.mark.parametrize(("name", "value", "expected"), FITS)
def test_a_value_that_fits_is_taken(name, value, expected):
    settings, faults = bound({name: value})
    assert faults == []
    assert getattr(settings, name) == expected
    assert type(getattr(settings, name)) is type(expected)


REFUSED = [
    ("count", 4.7, "a whole number"),
    ("count", 4.0, "a whole number"),
    ("count", True, "a whole number"),
    ("count", "3", "a whole number"),
    ("count", None, "a whole number"),
    ("rate", False, "a number"),
    ("rate", "1e-3", "a number"),
    ("name", 3, "a text"),
    ("on", 1, "true or false"),
    ("on", "true", "true or false"),
    ("choice", "z", "x, y"),
    ("choice", None, "x, y"),
    ("maybe", "none", "a whole number or null"),
    ("several", 3, "a list of: a whole number"),
    ("several", "12", "a list of: a whole number"),
    ("inner", 3, "a group of settings"),
    ("free", 3, "a group of settings"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), REFUSED)
def test_a_value_of_another_type_is_refused_in_a_users_words(name, value, allowed):
    settings, [fault] = bound({name: value})
    assert settings is None
    assert (fault.where, fault.got, fault.allowed) == (f"top.{name}", repr(value), allowed)


def test_a_fault_in_a_list_names_its_place():
    settings, [fault] = bound({"several": [1, True, 3]})
    assert settings is None
    assert fault.where == "top.several[1]"


def test_a_fault_in_an_inner_group_has_the_full_key():
    settings, faults = bound({"inner": {"depht": 3}})
    assert settings is None
    assert [fault.where for fault in faults] == ["top.inner.depht", "top.inner.depth"]
    assert "near: depth" in faults[0].allowed
    assert faults[1].got == "nothing"


def test_faults_are_told_in_a_fixed_order():
    _, faults = bound({"zeta": 1, "alpha": 1, "count": "x", "beta": 1})
    assert [fault.got for fault in faults] == ["alpha", "beta", "zeta", "'x'"]


def test_a_group_without_settings_says_so():
    @dataclass(frozen=True, slots=True)
    class Nothing:
        """No settings."""

    _, [fault] = bound({"x": 1}, Nothing)
    assert fault.allowed == "none"


def test_what_is_bound_cannot_be_changed():
    settings, _ = bound({})
    with pytest.raises(FrozenInstanceError):
        settings.count = 2
