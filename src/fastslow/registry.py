"""One small registry for everything that has a name: methods, binarizers, models, data sets."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to entries in the order of registration, whose error is a sentence.

    Examples:
        >>> colours = Registry("colour")
        >>> colours.add("green", 1)
        1
        >>> colours["gren"]
        Traceback (most recent call last):
        ValueError: unknown colour 'gren'; did you mean 'green'?
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered already; choose another name")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> T:
        if name in self._entries:
            return self._entries[name]
        near = difflib.get_close_matches(str(name).lower(), self._entries, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(self._entries)}"
        raise ValueError(f"unknown {self.kind} {name!r}; {hint}")

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
