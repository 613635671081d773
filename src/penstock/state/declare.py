"""What a function keeps per key, declared as class attributes:

    class Totals(ps.KeyedFunction):
        total = ps.value(int, default=0)
        recent = ps.list(str)
        by_day = ps.map(date, float)
        highest = ps.reducing(int, max)
        mean = ps.aggregating(tuple[int, int], create=lambda: (0, 0), add=..., result=...)

The attribute's name is the state's name in checkpoints. On an instance the attribute is the state of the current key.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from penstock.state.codec import Codec, codec_for
from penstock.state.errors import UnsupportedType

if TYPE_CHECKING:
    from penstock.state.kinds import AggregatingState, KeyedState, ListState, MapState, ReducingState, ValueState

S = TypeVar("S", bound="KeyedState")
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class StateDeclaration(Generic[S]):
    """A state that a function has. Reading the attribute on an instance gives the state that its operator has bound."""

    kind: str

    def __init__(self, type_: Any) -> None:
        self.type = type_
        self.name = ""
        try:
            self.codec: Codec = codec_for(type_)
        except UnsupportedType as error:
            raise UnsupportedType(f"{self.kind} state of {type_}: {error}") from None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def make(self) -> S:
        raise NotImplementedError

    @overload
    def __get__(self, instance: None, owner: type) -> StateDeclaration[S]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> S: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        raise RuntimeError(
            f"the state {self.name!r} of {owner.__name__} can be used once the function runs in a pipeline, "
            "not when it is made: use open() for what has to be prepared"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Ships as what the user wrote: codecs are made anew where they are used."""
        return _declared, (self.__class__, self._arguments(), self.name)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.type,)


def _declared(cls: type[StateDeclaration[Any]], arguments: tuple[Any, ...], name: str) -> StateDeclaration[Any]:
    declaration = cls(*arguments)
    declaration.name = name
    return declaration


class ValueDeclaration(StateDeclaration["ValueState[V]"], Generic[V]):
    kind = "value"

    def __init__(self, type_: type[V], default: Any = None) -> None:
        super().__init__(type_)
        self.default = default
        if not callable(default) and default is not None and self.codec.copy is not None:
            raise TypeError(
                f"default={default!r} can change in place and would be shared by all keys: "
                f"give a function that makes it, such as default={builtins.type(default).__name__}"
            )

    def make(self) -> ValueState[V]:
        from penstock.state.kinds import ValueState

        return ValueState(self.name, self.codec, self.default)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.type, self.default)


class ListDeclaration(StateDeclaration["ListState[V]"], Generic[V]):
    kind = "list"

    def __init__(self, item: type[V]) -> None:
        super().__init__(builtins.list[item])  # type: ignore[valid-type]
        self._item = item

    def make(self) -> ListState[V]:
        from penstock.state.kinds import ListState

        return ListState(self.name, self.codec, builtins.list)

    def _arguments(self) -> tuple[Any, ...]:
        return (self._item,)


class MapDeclaration(StateDeclaration["MapState[K, V]"], Generic[K, V]):
    kind = "map"

    def __init__(self, key: type[K], value: type[V]) -> None:
        super().__init__(dict[key, value])  # type: ignore[valid-type]
        self._types = (key, value)

    def make(self) -> MapState[K, V]:
        from penstock.state.kinds import MapState

        return MapState(self.name, self.codec, dict)

    def _arguments(self) -> tuple[Any, ...]:
        return self._types


class ReducingDeclaration(StateDeclaration["ReducingState[V]"], Generic[V]):
    kind = "reducing"

    def __init__(self, type_: type[V], function: Callable[[V, V], V]) -> None:
        super().__init__(type_)
        self._function = _callable(function, "function", "two values that returns one, such as max")

    def make(self) -> ReducingState[V]:
        from penstock.state.kinds import ReducingState

        return ReducingState(self.name, self.codec, self._function)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.type, self._function)


class AggregatingDeclaration(StateDeclaration["AggregatingState[V, R]"], Generic[V, R]):
    kind = "aggregating"

    def __init__(
        self,
        accumulator: Any,
        create: Callable[[], Any],
        add: Callable[[Any, V], Any],
        result: Callable[[Any], R] | None = None,
    ) -> None:
        super().__init__(accumulator)
        self._create = _callable(create, "create", "no arguments that makes an empty accumulator")
        self._add = _callable(add, "add", "the accumulator and a value that returns the accumulator")
        self._result = None if result is None else _callable(result, "result", "the accumulator")

    def make(self) -> AggregatingState[V, R]:
        from penstock.state.kinds import AggregatingState

        return AggregatingState(self.name, self.codec, self._create, self._add, self._result)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.type, self._create, self._add, self._result)


def _callable(function: Any, name: str, of: str) -> Any:
    if not callable(function):
        raise TypeError(f"{name}={function!r} must be a function of {of}")
    return function


def value(type: type[V], default: Any = None) -> ValueDeclaration[V]:
    """One value per key. A key without one has `default`: a value, or a function of no arguments that makes one."""
    return ValueDeclaration(type, default)


def list(item: type[V]) -> ListDeclaration[V]:
    """A list per key, empty at first."""
    return ListDeclaration(item)


def map(key: type[K], value: type[V]) -> MapDeclaration[K, V]:
    """A dict per key, empty at first."""
    return MapDeclaration(key, value)


def reducing(type: type[V], function: Callable[[V, V], V]) -> ReducingDeclaration[V]:
    """Everything that was added for a key, folded into one value: `best = ps.reducing(int, max)`, then
    `self.best.add(row.score)` and `self.best.get()`, which is None while nothing was added."""
    return ReducingDeclaration(type, function)


def aggregating(
    accumulator: Any,
    *,
    create: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    result: Callable[[Any], R] | None = None,
) -> AggregatingDeclaration[Any, R]:
    """Everything that was added for a key, in an accumulator of a type of its own: `create()` makes an empty one,
    `add(accumulator, value)` returns it with the value added, `result(accumulator)` is what `get` answers (the
    accumulator itself, if left out)."""
    return AggregatingDeclaration(accumulator, create, add, result)
