"""Programs change: which changes of a state's type restore, what becomes of the values, and how others are refused."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.unit.state.harness import Job

from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.state import declare as ps
from penstock.state.declare import StateDeclaration
from penstock.state.errors import UnstorableValue
from penstock.state.tables import StateMismatch

pytestmark = pytest.mark.usefixtures("every_backend")

INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64())])
OUTPUT = pa.schema([("user", pa.string())])


def job(declaration: StateDeclaration[Any], step: Any = None, **more: Any) -> tuple[Job, list[Any]]:
    """A job with that state, and what the state is when a row comes in (before `step` is done with it)."""
    seen: list[Any] = []

    class Keeps(KeyedFunction):
        kept = declaration

        def process(self, row: Any, ctx: KeyedContext) -> None:
            state: Any = self.kept
            seen.append(state.value)
            if step is not None:
                step(state)

    keeps = Keeps()
    keeps.__class__.kept.name = "kept"
    return Job(lambda: Shared(keeps, ("user",), OUTPUT, INPUT), ("user",), **more), seen


class Shared(ProcessOperator):
    """Does not copy the function, which tells the test what it sees."""

    def __init__(self, function: KeyedFunction, *more: Any) -> None:
        super().__init__(KeyedFunction, *more)
        self._function = function


ROW = pa.record_batch([["a"], [1]], schema=INPUT)


def evolved(old: StateDeclaration[Any], value: Any, new: StateDeclaration[Any]) -> Any:
    """What the new program sees of the value that the old one has stored."""
    before, _ = job(old, lambda state: setattr(state, "value", value))
    before.feed(ROW)
    after, seen = job(new, restored=before.snapshot())
    after.feed(ROW)
    return seen[0]


def refusal(old: StateDeclaration[Any], value: Any, new: StateDeclaration[Any]) -> str:
    with pytest.raises(StateMismatch) as caught:
        evolved(old, value, new)
    return str(caught.value)


# ---- versions of some records ----
class Order1(msgspec.Struct):
    id: int
    price: int
    note: str


class Order2(msgspec.Struct):
    id: int
    cost: float
    tags: list[str] = msgspec.field(default_factory=lambda: ["new"])
    weight: float | None = None


class Point1(NamedTuple):
    x: int
    y: int


class Point2(NamedTuple):
    label: str = "p"
    y: float = 0.0
    x: int = 0


class Point3(NamedTuple):
    x: int
    y: int
    z: int


@dataclass
class Cart1:
    orders: list[Order1]
    total: int


@dataclass
class Cart2:
    orders: list[Order2]
    total: int | None
    open: bool = True
    extra: dict[str, int] = field(default_factory=dict)


class Colour1(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Colour2(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


RENAMED = {"price": "cost"}


# ---- what restores ----
def test_fields_are_added_with_their_defaults_removed_renamed_and_widened() -> None:
    made = evolved(ps.value(Order1), Order1(1, 25, "x"), ps.value(Order2, renamed=RENAMED))
    assert made == Order2(1, 25.0, ["new"], None)
    assert type(made.cost) is float


def test_records_inside_records_evolve_too() -> None:
    old = Cart1([Order1(1, 25, "x"), Order1(2, 3, "y")], 28)
    assert evolved(ps.value(Cart1), old, ps.value(Cart2, renamed=RENAMED)) == Cart2(
        [Order2(1, 25.0), Order2(2, 3.0)], 28
    )


def test_named_tuples_are_matched_by_name_whatever_their_places() -> None:
    assert evolved(ps.value(Point1), Point1(1, 2), ps.value(Point2)) == Point2("p", 2.0, 1)


@pytest.mark.parametrize("ttl", [None, "1d"])
def test_items_of_lists_and_values_of_maps_evolve_one_by_one(ttl: str | None) -> None:
    new = evolved(ps.list(Order1, ttl=ttl), [Order1(1, 2, "x")], ps.list(Order2, renamed=RENAMED, ttl=ttl))
    assert new == [Order2(1, 2.0)]
    entries = evolved(ps.map(int, Point1, ttl=ttl), {7: Point1(1, 2)}, ps.map(float, Point2, ttl=ttl))
    assert entries == {7.0: Point2("p", 2.0, 1)}


WIDENINGS: list[tuple[Any, Any, Any, Any]] = [
    (int, 3, float, 3.0),
    (bool, True, int, 1),
    (int, 3, Decimal, Decimal(3)),
    (int, 3, int | None, 3),
    (int, 3, float | str, 3.0),
    (int | None, None, float | None, None),
    (list[int], [1, 2], list[float], [1.0, 2.0]),
    (tuple[int, str], (1, "a"), tuple[float, str | None], (1.0, "a")),
    (dict[str, int], {"a": 1}, dict[str, float | None], {"a": 1.0}),
    (Colour1, Colour1.BLUE, Colour2, Colour2.BLUE),
    (np.int8, np.int8(3), np.int32, np.int32(3)),
    (np.int32, np.int32(3), int, 3),
    (np.float32, np.float32(0.5), float, 0.5),
    (int, 3, np.int64, np.int64(3)),
    (pa.int8(), 3, pa.int32(), 3),
    (pa.int32(), 3, pa.float64(), 3.0),
    (str, "x", Any, "x"),
]


@pytest.mark.parametrize(("old", "value", "new", "made"), WIDENINGS, ids=str)
def test_a_type_may_become_a_wider_one(old: Any, value: Any, new: Any, made: Any) -> None:
    read = evolved(ps.value(old), value, ps.value(new))
    assert read == made
    assert type(read) is type(made)


def test_what_was_evolved_is_stored_as_it_is_declared_now() -> None:
    before, _ = job(ps.value(Order1), lambda state: state.set(Order1(1, 25, "x")))
    before.feed(ROW)
    between, _ = job(ps.value(Order2, renamed=RENAMED), restored=before.snapshot())
    after, seen = job(ps.value(Order2), restored=between.snapshot())
    after.feed(ROW)
    assert seen == [Order2(1, 25.0)]


# ---- what does not ----
REFUSED: list[tuple[Any, Any, Any, str]] = [
    (str, "x", int, "str cannot become int"),
    (float, 1.5, int, "float cannot become int"),
    (int | None, 1, int, "int | None cannot become int"),
    (Point1, Point1(1, 2), Point3, "the field 'z' was added without a default"),
    (Cart1, Cart1([], 1), Order1, "the field 'id' was added without a default"),
    (list[int], [1], set[int], r"list[int] cannot become set[int]"),
    (Colour2, Colour2.GREEN, Colour1, "the values ['green'] of Colour2"),
    (list[str], ["x"], list[int], "at []: str cannot become int"),
    (np.int64, np.int64(1), np.int32, "numpy.int64 cannot become numpy.int32"),
    (pa.float64(), 1.0, pa.int64(), "Arrow's double cannot become Arrow's int64"),
    (tuple[int, int], (1, 2), tuple[int, int, int], "tuple[int, int] cannot become"),
    (int | str, 1, float | str | bool, "a part of int | str changed"),
]


@pytest.mark.parametrize(("old", "value", "new", "reason"), REFUSED, ids=str)
def test_any_other_change_is_refused_with_both_types_and_the_place(old: Any, value: Any, new: Any, reason: str) -> None:
    message = refusal(ps.value(old), value, ps.value(new))
    assert reason in message
    assert "operator 'op': the state 'kept' was stored as value state of" in message
    assert "but is declared as value state of" in message


def test_another_kind_of_state_is_refused() -> None:
    assert "value state cannot become list state" in refusal(ps.value(int), 1, ps.list(int))


def test_a_number_that_would_change_when_it_is_widened_is_refused_by_value() -> None:
    with pytest.raises(UnstorableValue, match="9007199254740993 has no exact float"):
        evolved(ps.value(int), 2**53 + 1, ps.value(float))


# ---- migrations ----
def test_a_migration_function_makes_anything_of_values_of_the_stored_type() -> None:
    def migrate(order: Order1) -> str:
        assert isinstance(order, Order1)
        return f"{order.id}: {order.price}"

    assert evolved(ps.value(Order1), Order1(1, 25, "x"), ps.value(str, migrate=[(Order1, migrate)])) == "1: 25"
    listed = evolved(ps.list(Order1, ttl="1d"), [Order1(1, 2, "")], ps.list(str, migrate=[(Order1, migrate)]))
    assert listed == ["1: 2"]


def test_the_migration_for_the_stored_type_is_taken_and_none_where_nothing_changed() -> None:
    migrations = [(float, lambda value: [f"float {value}"]), (int, lambda value: [f"int {value}"])]
    assert evolved(ps.value(int), 1, ps.value(list[str], migrate=migrations)) == ["int 1"]
    assert evolved(ps.value(list[str]), ["a"], ps.value(list[str], migrate=migrations)) == ["a"]


def test_a_migration_that_is_no_function_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="migrate=3 must be a function of a int"):
        ps.value(str, migrate=[(int, 3)])  # type: ignore[list-item]


# ---- pickle ----
class Anything:
    def __init__(self, inner: int) -> None:
        self.inner = inner


def test_pickled_state_restores_into_a_state_that_asks_for_pickle_again() -> None:
    made = evolved(ps.value(Anything, pickle=True), Anything(3), ps.value(Anything, pickle=True))
    assert (type(made), made.inner) == (Anything, 3)
    (item,) = evolved(ps.list(Anything, pickle=True), [Anything(4)], ps.list(Anything, pickle=True, ttl="1d"))
    assert item.inner == 4


def test_pickled_state_is_never_read_by_a_state_that_does_not_ask_for_it() -> None:
    message = refusal(ps.value(Point1, pickle=True), Point1(1, 2), ps.value(Point1))
    assert "what was pickled is read only by a state that is declared with pickle=True" in message
    assert "pickled Point1 cannot become Point1(x: int, y: int)" in message
    assert "pickle=True" in refusal(ps.value(Point1), Point1(1, 2), ps.value(Point1, pickle=True))
