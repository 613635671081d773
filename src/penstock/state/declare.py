"""What a function keeps per key, declared as class attributes:

    class Totals(ps.KeyedFunction):
        total = ps.value(int, default=0)
        recent = ps.list(str, ttl="1h")
        by_day = ps.map(date, float)
        highest = ps.reducing(int, max)
        mean = ps.aggregating(tuple[int, int], create=lambda: (0, 0), add=..., result=...)

The attribute's name is the state's name in checkpoints. On an instance the attribute is the state of the current key.

All of them take the same options:

- `ttl`: how long what is kept lives, a duration or a `ps.TTL`;
- `renamed`: fields of records that have another name than in older checkpoints, `{"old": "new"}`;
- `migrate`: functions from values of types that were stored once, `[(OldType, function)]`; of a list each item is given
  to it, of a map each value;
- `pickle=True`: stores values of any class with pickle, which reads them back only while the same class is importable,
  and executes what a tampered checkpoint says.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload

from penstock.api.durations import Duration
from penstock.core.ids import Uid
from penstock.state.codec import Codec, codec_for
from penstock.state.composite import ListColumns, MapColumns, StampedValues
from penstock.state.conversion import Incompatible
from penstock.state.errors import UnsupportedType
from penstock.state.evolution import Evolution, Migration
from penstock.state.schema import Description
from penstock.state.tables import StateMismatch
from penstock.state.ttl import TTL, time_to_live

if TYPE_CHECKING:
    from penstock.state.kinds import AggregatingState, KeyedState, ListState, MapState, ReducingState, ValueState

S = TypeVar("S", bound="KeyedState")
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class Options(TypedDict, total=False):
    """What every declaration takes."""

    ttl: TTL | Duration | None
    renamed: Mapping[str, str]
    migrate: Sequence[Migration]
    pickle: bool


@dataclass(frozen=True)
class StateOptions:
    ttl: TTL | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    migrate: Sequence[Migration] = ()
    pickle: bool = False

    @classmethod
    def of(cls, given: Options) -> StateOptions:
        if unknown := sorted(given.keys() - Options.__annotations__.keys()):
            known = ", ".join(Options.__annotations__)
            raise TypeError(f"a state has no option {unknown[0]!r}: there are {known}, and default= of a value")
        for old_type, function in given.get("migrate", ()):
            codec_for(old_type)
            _callable(function, "migrate", f"a {getattr(old_type, '__name__', old_type)} that returns the new value")
        return cls(
            time_to_live(given.get("ttl")),
            dict(given.get("renamed", {})),
            tuple(given.get("migrate", ())),
            given.get("pickle", False),
        )


class StateDeclaration(Generic[S]):
    """A state that a function has. Reading the attribute on an instance gives the state that its operator has bound."""

    kind: str

    def __init__(self, element: Any, *, options: StateOptions, key: Any = None) -> None:
        self.type, self.key_type, self.options = element, key, options
        self.name = ""
        try:
            self.element = codec_for(element, pickled=options.pickle)
            self.codec: Codec = self._codec()
        except UnsupportedType as error:
            raise UnsupportedType(f"{self.kind} state of {element}: {error}") from None
        self.evolution = Evolution(
            self.kind,
            self.codec,
            element,
            self.element,
            key,
            stamped=options.ttl is not None,
            renamed=options.renamed,
            migrations=options.migrate,
        )

    @property
    def description(self) -> Description:
        return self.codec.description

    def check(self, uid: Uid, kind: str, stored: Description) -> None:
        """Raises `StateMismatch` unless state of that description can be read."""
        try:
            self.evolution.check(kind, stored)
        except Incompatible as reason:
            raise StateMismatch(self.evolution.mismatch(uid, self.name, kind, stored, reason)) from None

    def _codec(self) -> Codec:
        """Of the state as a whole."""
        return self._stamped(self.element)

    def _stamped(self, codec: Codec) -> Codec:
        return codec if self.options.ttl is None else StampedValues(codec)

    @property
    def _needs_columns(self) -> bool:
        """Of a collection: whether its items cannot be part of one message."""
        return self.options.ttl is not None or self.element.description["type"] in ("arrow", "pickle")

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def make(self, now: Callable[[], int]) -> S:
        """The state, for one operator's instance. `now` is processing time, in milliseconds since the epoch."""
        raise NotImplementedError

    def _expiring(self, cls: type, default: Any, now: Callable[[], int]) -> Any:
        changeable = self.element.copy is not None
        return cls(self.name, self.codec, default, self.evolution, self.options.ttl, now, changeable)

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
        return _declared, (self.__class__, self._arguments(), self.options, self.name)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.type,)


def _declared(
    cls: type[StateDeclaration[Any]], arguments: tuple[Any, ...], options: StateOptions, name: str
) -> StateDeclaration[Any]:
    declaration = cls(*arguments, options=options)
    declaration.name = name
    return declaration


class ValueDeclaration(StateDeclaration["ValueState[V]"], Generic[V]):
    kind = "value"

    def __init__(self, type_: Any, default: Any = None, *, options: StateOptions) -> None:
        super().__init__(type_, options=options)
        self.default = default
        if not callable(default) and default is not None and self.codec.copy is not None:
            raise TypeError(
                f"default={default!r} can change in place and would be shared by all keys: "
                f"give a function that makes it, such as default={builtins.type(default).__name__}"
            )

    def make(self, now: Callable[[], int]) -> ValueState[V]:
        if self.options.ttl is not None:
            from penstock.state.expiring import ExpiringValueState

            return self._expiring(ExpiringValueState, self.default, now)
        from penstock.state.kinds import ValueState

        return ValueState(self.name, self.codec, self.default, self.evolution)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.type, self.default)


class ListDeclaration(StateDeclaration["ListState[V]"], Generic[V]):
    kind = "list"

    def __init__(self, item: Any, *, options: StateOptions) -> None:
        super().__init__(item, options=options)

    def _codec(self) -> Codec:
        if self._needs_columns:
            return ListColumns(self._stamped(self.element))
        return codec_for(builtins.list[self.type])  # type: ignore[name-defined]

    def make(self, now: Callable[[], int]) -> ListState[V]:
        if self.options.ttl is not None:
            from penstock.state.expiring import ExpiringListState

            return self._expiring(ExpiringListState, builtins.list, now)
        from penstock.state.kinds import ListState

        return ListState(self.name, self.codec, builtins.list, self.evolution)


class MapDeclaration(StateDeclaration["MapState[K, V]"], Generic[K, V]):
    kind = "map"

    def __init__(self, key: Any, value: Any, *, options: StateOptions) -> None:
        super().__init__(value, options=options, key=key)

    def _codec(self) -> Codec:
        key = codec_for(self.key_type)
        if self._needs_columns or key.description["type"] == "arrow":
            return MapColumns(key, self._stamped(self.element))
        return codec_for(dict[self.key_type, self.type])  # type: ignore[name-defined]

    def make(self, now: Callable[[], int]) -> MapState[K, V]:
        if self.options.ttl is not None:
            from penstock.state.expiring import ExpiringMapState

            return self._expiring(ExpiringMapState, dict, now)
        from penstock.state.kinds import MapState

        return MapState(self.name, self.codec, dict, self.evolution)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.key_type, self.type)


class ReducingDeclaration(StateDeclaration["ReducingState[V]"], Generic[V]):
    kind = "reducing"

    def __init__(self, type_: Any, function: Callable[[V, V], V], *, options: StateOptions) -> None:
        super().__init__(type_, options=options)
        self._function = _callable(function, "function", "two values that returns one, such as max")

    def make(self, now: Callable[[], int]) -> ReducingState[V]:
        if self.options.ttl is not None:
            from penstock.state.expiring import ExpiringReducingState

            state = self._expiring(ExpiringReducingState, None, now)
            state.function = self._function
            return state
        from penstock.state.kinds import ReducingState

        return ReducingState(self.name, self.codec, self._function, self.evolution)

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
        *,
        options: StateOptions,
    ) -> None:
        super().__init__(accumulator, options=options)
        self._create = _callable(create, "create", "no arguments that makes an empty accumulator")
        self._add = _callable(add, "add", "the accumulator and a value that returns the accumulator")
        self._result = None if result is None else _callable(result, "result", "the accumulator")

    def make(self, now: Callable[[], int]) -> AggregatingState[V, R]:
        if self.options.ttl is not None:
            from penstock.state.expiring import ExpiringAggregatingState

            state = self._expiring(ExpiringAggregatingState, self._create, now)
            state.function, state.result = self._add, self._result
            return state
        from penstock.state.kinds import AggregatingState

        return AggregatingState(self.name, self.codec, self._create, self._add, self._result, self.evolution)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.type, self._create, self._add, self._result)


def _callable(function: Any, name: str, of: str) -> Any:
    if not callable(function):
        raise TypeError(f"{name}={function!r} must be a function of {of}")
    return function


def value(type: type[V], default: Any = None, **options: Unpack[Options]) -> ValueDeclaration[V]:
    """One value per key, of a Python type or an Arrow type. A key without one has `default`: a value, or a function of
    no arguments that makes one."""
    return ValueDeclaration(type, default, options=StateOptions.of(options))


def list(item: type[V], **options: Unpack[Options]) -> ListDeclaration[V]:
    """A list per key, empty at first."""
    return ListDeclaration(item, options=StateOptions.of(options))


def map(key: type[K], value: type[V], **options: Unpack[Options]) -> MapDeclaration[K, V]:
    """A dict per key, empty at first."""
    return MapDeclaration(key, value, options=StateOptions.of(options))


def reducing(type: type[V], function: Callable[[V, V], V], **options: Unpack[Options]) -> ReducingDeclaration[V]:
    """Everything that was added for a key, folded into one value: `best = ps.reducing(int, max)`, then
    `self.best.add(row.score)` and `self.best.get()`, which is None while nothing was added."""
    return ReducingDeclaration(type, function, options=StateOptions.of(options))


def aggregating(
    accumulator: Any,
    *,
    create: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
    **options: Unpack[Options],
) -> AggregatingDeclaration[Any, Any]:
    """Everything that was added for a key, in an accumulator of a type of its own: `create()` makes an empty one,
    `add(accumulator, value)` returns it with the value added, `result(accumulator)` is what `get` answers (the
    accumulator itself, if left out)."""
    return AggregatingDeclaration(accumulator, create, add, result, options=StateOptions.of(options))
