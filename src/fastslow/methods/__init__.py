"""Methods: how a gradient passes the binarizer. One published method, one entry of the registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..registry import Registry
from .base import Driver as Driver
from .base import Method as Method
from .base import Slot as Slot
from .catalogue import ROWS
from .catalogue import MethodInfo as MethodInfo

METHODS: Registry[MethodInfo] = Registry("method")
for _row in ROWS:
    METHODS.add(_row.name, _row)


def register_method(
    cls: type[Method], *, family: str, paper: str, summary: str, formula: str = "", cost: str = "", choose: str = ""
) -> None:
    """Make a method known by its name, for :func:`fastslow.binarize_` and the command line."""
    METHODS.add(cls.name, MethodInfo(cls.name, family, paper, summary, cls, formula, cost, choose))


_TYPES = {"int": (int, "a whole number"), "float": (int | float, "a number"), "bool": (bool, "True or False")}


def get_method(method: str | Method, **fields: object) -> Method:
    """A method by name with some of its fields changed, or the object itself.

    Examples:
        >>> get_method("fsg", beta=0.5).beta
        0.5
        >>> get_method("ste", beta=0.5)
        Traceback (most recent call last):
        ValueError: ste has no field 'beta'; its fields: none
    """
    if isinstance(method, Method):
        if method.name in METHODS:  # one of your own needn't be
            check_fields(method.name, fields)
        return dataclasses.replace(method, **fields) if fields else method
    check_fields(method, fields)
    return METHODS[method].cls(**fields)


def check_fields(method: str, fields: Mapping[str, object]) -> None:
    """Refuse fields that the method doesn't have, naming those it has, and values of the wrong type."""
    known = {field.name: str(field.type) for field in dataclasses.fields(METHODS[method].cls)}
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"{method} has no field {name!r}; its fields: {', '.join(known) or 'none'}")
        classes, what = _TYPES.get(known[name], (str | int | float | None, "a number or a word"))
        if not isinstance(value, classes) or (isinstance(value, bool) and known[name] in ("int", "float")):
            raise ValueError(f"{name}={value!r}: the field {name!r} of {method} takes {what}")
        if known[name] == "float" and not abs(value) < 3e38:  # pyright: ignore[reportArgumentType]
            raise ValueError(f"{name}={value!r}: the field {name!r} of {method} takes a number that a float32 can hold")
        if known[name] == "int" and not (0 if name == "seed" else -(2**63)) <= value < 2**63:  # pyright: ignore[reportOperatorIssue]
            raise ValueError(f"{name}={value!r}: give a whole number below 2**63{', from 0 on' * (name == 'seed')}")


def list_methods() -> list[MethodInfo]:
    """Every registered method."""
    return list(METHODS.values())
