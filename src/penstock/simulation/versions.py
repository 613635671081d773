"""The types that simulated programs keep in their state, version by version, as a user changes them between two runs.

Every version reads what any earlier one has stored. From one to the next:

    1   gets a field with a default; the items of a list become optional
    2   loses a field, renames another and makes whole numbers floats
    3   is a record of another kind: a function migrates what the earlier ones stored
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

VERSIONS: Final = 4
Place = tuple[int, int]
"""Subtask and parallelism of the writer."""


# ---- what a function remembers of a key: how many records, and the sum of their values ----
class Past0(msgspec.Struct, frozen=True):
    count: int
    total: int
    first: int

    @classmethod
    def begin(cls, id: int) -> Past0:
        return cls(0, 0, id)

    def after(self, id: int, value: int) -> Past0:
        return Past0(self.count + 1, self.total + value, self.first)

    @property
    def figures(self) -> tuple[int, int]:
        return self.count, self.total


class Past1(Past0, frozen=True):
    last: int | None = None

    def after(self, id: int, value: int) -> Past1:
        return Past1(self.count + 1, self.total + value, self.first, id)


class Past2(msgspec.Struct, frozen=True):
    count: float
    sum: float = 0.0
    last: int | None = None

    @classmethod
    def begin(cls, id: int) -> Past2:
        return cls(0.0, 0.0)

    def after(self, id: int, value: int) -> Past2:
        return Past2(self.count + 1, self.sum + value, id)

    @property
    def figures(self) -> tuple[int, int]:
        return int(self.count), int(self.sum)


class Past3(NamedTuple):
    shown: str
    """Count and sum."""

    @classmethod
    def begin(cls, id: int) -> Past3:
        return cls("0 0")

    @classmethod
    def of(cls, earlier: Past0 | Past1 | Past2) -> Past3:
        return cls(" ".join(map(str, earlier.figures)))

    def after(self, id: int, value: int) -> Past3:
        count, total = self.figures
        return Past3(f"{count + 1} {total + value}")

    @property
    def figures(self) -> tuple[int, int]:
        count, total = self.shown.split()
        return int(count), int(total)


PASTS: Final[tuple[tuple[Any, dict[str, Any]], ...]] = (
    (Past0, {}),
    (Past1, {}),
    (Past2, {"renamed": {"total": "sum"}}),
    (Past3, {"migrate": [(earlier, Past3.of) for earlier in (Past0, Past1, Past2)]}),
)
"""Type and options of the state, by version."""
IDS: Final[tuple[Any, ...]] = (int, int | None, int | None, int | None)
COUNTS: Final[tuple[Any, ...]] = (int, int, float, float)


# ---- a record that an operator's instance keeps ----
class Kept0(msgspec.Struct, frozen=True):
    id: int
    key: int
    value: int
    path: int
    place: Place

    def at(self, place: Place) -> Kept0:
        return msgspec.structs.replace(self, place=place)


class Kept1(Kept0, frozen=True):
    note: str = "none"


class Kept2(msgspec.Struct, frozen=True):
    id: int
    key: int
    worth: float
    path: int
    place: Place

    @property
    def value(self) -> int:
        return int(self.worth)

    def at(self, place: Place) -> Kept2:
        return msgspec.structs.replace(self, place=place)


class Kept3(NamedTuple):
    id: int
    key: int
    value: int
    path: int
    place: Place

    @classmethod
    def of(cls, earlier: Kept0 | Kept1 | Kept2) -> Kept3:
        return cls(earlier.id, earlier.key, earlier.value, earlier.path, earlier.place)

    def at(self, place: Place) -> Kept3:
        return self._replace(place=place)


KEPT: Final[tuple[tuple[Any, dict[str, Any]], ...]] = (
    (Kept0, {}),
    (Kept1, {}),
    (Kept2, {"renamed": {"value": "worth"}}),
    (Kept3, {"migrate": [(earlier, Kept3.of) for earlier in (Kept0, Kept1, Kept2)]}),
)
