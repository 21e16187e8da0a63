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


def get_method(method: str | Method, **fields: object) -> Method:
    """A method by name with some of its fields changed, or the object itself."""
    if isinstance(method, Method):
        return dataclasses.replace(method, **fields) if fields else method
    check_fields(method, fields)
    return METHODS[method].cls(**fields)


def check_fields(method: str, fields: Mapping[str, object]) -> None:
    """Refuse fields that the method doesn't have, naming those it has."""
    known = [field.name for field in dataclasses.fields(METHODS[method].cls)]
    for name in fields:
        if name not in known:
            raise ValueError(f"{method} has no field {name!r}; its fields: {', '.join(known) or 'none'}")


def list_methods() -> list[MethodInfo]:
    """Every registered method."""
    return list(METHODS.values())
