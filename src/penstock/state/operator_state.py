"""State of an operator's instance rather than of a key, declared like keyed state:

    class Model(ps.StreamFunction):
        seen = ps.operator_list(str)             # split over the subtasks of a job of another size
        limits = ps.operator_union(int)          # everybody gets everything back
        rules = ps.operator_broadcast(str, Rule) # the same on all subtasks
        sketch = ps.raw()                        # bytes that the function writes and reads itself

        @sketch.write
        def save(self, stream): ...

        @sketch.read
        def load(self, stream): ...

How parts are given back follows from their kind. A list is stored as a `union` part: at the same parallelism a subtask
takes its own items, at another all items, in the order of their writers, are cut into equal runs. Raw state is a `list`
part: a stream is never taken apart, so at another parallelism a subtask may have several to read, or none.

All of it is copied when a snapshot is taken: keep what is large per key.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Generic, TypeVar, Unpack

from penstock.core.handles import PartKind
from penstock.core.ids import Uid
from penstock.state.codec import Codec, codec_for
from penstock.state.conversion import Incompatible
from penstock.state.declare import Options, StateOptions
from penstock.state.errors import UnsupportedType
from penstock.state.evolution import Evolution
from penstock.state.operator_parts import OperatorStateHeader, encode_part, read_part
from penstock.state.parts import CapturedPart, RestoredPart
from penstock.state.schema import Description
from penstock.state.tables import FORMAT_VERSION, StateMismatch

K = TypeVar("K")
V = TypeVar("V")
Function = TypeVar("Function", bound=Callable[..., Any])

_VALUE, _KEY = "value", "key"


# ---- as a function uses it ----
class OperatorListState(Generic[V]):
    """`value` is the list itself, for everything that is not offered here."""

    def __init__(self) -> None:
        self.value: list[V] = []

    def append(self, item: V) -> None:
        self.value.append(item)

    def extend(self, items: Iterable[V]) -> None:
        self.value.extend(items)

    def set(self, items: Iterable[V]) -> None:
        self.value = list(items)

    def clear(self) -> None:
        self.value = []

    def __iter__(self) -> Iterator[V]:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, place: int) -> V:
        return self.value[place]


class OperatorBroadcastState(Generic[K, V]):
    """`value` is the dict itself. It must be changed in the same way on all subtasks: by what is broadcast to them."""

    def __init__(self) -> None:
        self.value: dict[K, V] = {}

    def get(self, key: K, default: Any = None) -> Any:
        return self.value.get(key, default)

    def clear(self) -> None:
        self.value = {}

    def __getitem__(self, key: K) -> V:
        return self.value[key]

    def __setitem__(self, key: K, value: V) -> None:
        self.value[key] = value

    def __delitem__(self, key: K) -> None:
        del self.value[key]

    def __contains__(self, key: object) -> bool:
        return key in self.value

    def __iter__(self) -> Iterator[K]:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)


# ---- declarations ----
class OperatorStateDeclaration:
    """A state that an instance of a function has."""

    kind: str
    part_kind: PartKind

    def __init__(self) -> None:
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        raise RuntimeError(
            f"the state {self.name!r} of {owner.__name__} can be used once the function runs in a pipeline, not when "
            "it is made: use open() for what has to be prepared"
        )

    def bind(self, function: Any) -> None:
        """Puts the empty state on the instance."""
        raise NotImplementedError

    def capture(self, function: Any, parallelism: int) -> CapturedPart:
        raise NotImplementedError

    def restore(self, function: Any, uid: Uid, parts: Sequence[RestoredPart], subtask: int, parallelism: int) -> None:
        raise NotImplementedError

    def check(self, uid: Uid, kind: str, stored: Description) -> None:
        """Raises `StateMismatch` unless state of that description can be read."""
        raise NotImplementedError

    @property
    def description(self) -> Description:
        raise NotImplementedError


class OperatorListDeclaration(OperatorStateDeclaration):
    kind = "operator_list"
    part_kind = PartKind.UNION

    def __init__(self, item: Any, options: StateOptions, *, key: Any = None) -> None:
        super().__init__()
        if options.ttl is not None:
            raise TypeError("operator state has no time to live: keep what shall expire per key")
        self._arguments = (item, options, key)
        try:
            self._codec = codec_for(item, pickled=options.pickle)
            self._key_codec = None if key is None else codec_for(key)
        except UnsupportedType as error:
            raise UnsupportedType(f"{self.kind} state of {item}: {error}") from None
        self._evolution = Evolution(
            self.kind, self._codec, item, self._codec, renamed=options.renamed, migrations=options.migrate
        )

    def __reduce__(self) -> tuple[Any, ...]:
        item, options, key = self._arguments
        return _declared, (type(self), item, options, key, self.name)

    @property
    def description(self) -> Description:
        return self._codec.description

    def check(self, uid: Uid, kind: str, stored: Description) -> None:
        try:
            self._evolution.check(kind, stored)
        except Incompatible as reason:
            raise StateMismatch(self._evolution.mismatch(uid, self.name, kind, stored, reason)) from None

    def bind(self, function: Any) -> None:
        function.__dict__[self.name] = OperatorListState()

    def capture(self, function: Any, parallelism: int) -> CapturedPart:
        items = _copied(self._codec, function.__dict__[self.name].value)
        header = OperatorStateHeader(FORMAT_VERSION, self.kind, self.name, self.description, parallelism)
        return CapturedPart(self.name, self.part_kind, lambda: encode_part(header, {_VALUE: (self._codec, items)}))

    def restore(self, function: Any, uid: Uid, parts: Sequence[RestoredPart], subtask: int, parallelism: int) -> None:
        read = [(part.subtask, *self._items(uid, part)) for part in sorted(parts, key=lambda part: part.subtask)]
        if all(header.parallelism == parallelism for _, header, _ in read):
            mine = [item for writer, _, items in read if writer == subtask for item in items]
        else:
            every = [item for _, _, items in read for item in items]
            mine = every[len(every) * subtask // parallelism : len(every) * (subtask + 1) // parallelism]
        function.__dict__[self.name].value = mine

    def _items(self, uid: Uid, part: RestoredPart) -> tuple[OperatorStateHeader, list[Any]]:
        header, table = read_part(part)
        self.check(uid, header.kind, header.description)
        decode = self._evolution.decoder(header.kind, header.description, 0)
        return header, [item for chunk in table.column(_VALUE).chunks for item in decode(chunk)]


class OperatorUnionDeclaration(OperatorListDeclaration):
    kind = "operator_union"

    def restore(self, function: Any, uid: Uid, parts: Sequence[RestoredPart], subtask: int, parallelism: int) -> None:
        ordered = sorted(parts, key=lambda part: part.subtask)
        function.__dict__[self.name].value = [item for part in ordered for item in self._items(uid, part)[1]]


class OperatorBroadcastDeclaration(OperatorListDeclaration):
    kind = "operator_broadcast"
    part_kind = PartKind.BROADCAST

    def bind(self, function: Any) -> None:
        function.__dict__[self.name] = OperatorBroadcastState()

    def capture(self, function: Any, parallelism: int) -> CapturedPart:
        assert self._key_codec is not None
        entries: Mapping[Any, Any] = function.__dict__[self.name].value
        values = _copied(self._codec, list(entries.values()))
        header = OperatorStateHeader(
            FORMAT_VERSION, self.kind, self.name, self.description, parallelism, self._key_codec.description
        )
        columns = {_KEY: (self._key_codec, list(entries)), _VALUE: (self._codec, values)}
        return CapturedPart(self.name, self.part_kind, lambda: encode_part(header, columns))

    def restore(self, function: Any, uid: Uid, parts: Sequence[RestoredPart], subtask: int, parallelism: int) -> None:
        assert self._key_codec is not None
        for part in parts[:1]:
            header, values = self._items(uid, part)
            keys = Evolution(self.kind, self._key_codec, self._arguments[2], self._key_codec)
            if header.key is None:
                raise StateMismatch(f"operator {uid!r}: the part {part.name!r} has no keys")
            try:
                decode = keys.decoder(header.kind, header.key, 0)
            except Incompatible as reason:
                raise StateMismatch(
                    keys.mismatch(uid, f"{self.name} (its keys)", header.kind, header.key, reason)
                ) from None
            column = read_part(part)[1].column(_KEY)
            decoded = [key for chunk in column.chunks for key in decode(chunk)]
            function.__dict__[self.name].value = dict(zip(decoded, values, strict=True))


def _declared(
    cls: type[OperatorListDeclaration], item: Any, options: StateOptions, key: Any, name: str
) -> OperatorListDeclaration:
    declaration = cls(item, options, key=key)
    declaration.name = name
    return declaration


class RawDeclaration(OperatorStateDeclaration):
    kind = "raw"
    part_kind = PartKind.LIST

    def __init__(self) -> None:
        super().__init__()
        self._writer = self._reader = ""

    def write(self, function: Function) -> Function:
        """Decorates the method `(self, stream)` that writes the state to a binary stream."""
        self._writer = function.__name__
        return function

    def read(self, function: Function) -> Function:
        """Decorates the method `(self, stream)` that reads it, called once for every stream that was stored."""
        self._reader = function.__name__
        return function

    @property
    def description(self) -> Description:
        return {"type": "raw"}

    def check(self, uid: Uid, kind: str, stored: Description) -> None:
        if kind != self.kind:
            raise StateMismatch(
                f"operator {uid!r}: the state {self.name!r} was stored as {kind} state, but is declared as raw state: "
                "declare it as it was, or give the new state another name"
            )

    def bind(self, function: Any) -> None:
        if not self._writer or not self._reader:
            raise TypeError(
                f"the raw state {self.name!r} of {type(function).__name__} needs a method that writes it, decorated "
                f"with @{self.name}.write, and one that reads it, decorated with @{self.name}.read"
            )

    def capture(self, function: Any, parallelism: int) -> CapturedPart:
        stream = io.BytesIO()
        getattr(function, self._writer)(stream)
        return CapturedPart(self.name, self.part_kind, lambda: (stream.getbuffer(),))

    def restore(self, function: Any, uid: Uid, parts: Sequence[RestoredPart], subtask: int, parallelism: int) -> None:
        read: Callable[[BinaryIO], None] = getattr(function, self._reader)
        for part in sorted(parts, key=lambda part: part.subtask):
            read(io.BytesIO(part.read()))


# ---- of one operator ----
class OperatorStates:
    """All operator states of one function's instance."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._declarations = operator_states_of(type(function))
        for declaration in self._declarations:
            declaration.bind(function)

    def restore(self, uid: Uid, parts: Sequence[RestoredPart], subtask: int, parallelism: int) -> None:
        """Takes up the parts. A stored state that is not declared any more is refused, not dropped."""
        by_name: dict[str, list[RestoredPart]] = {}
        for part in parts:
            by_name.setdefault(part.name, []).append(part)
        declared = {declaration.name: declaration for declaration in self._declarations}
        for name, own in by_name.items():
            if name not in declared:
                raise StateMismatch(
                    f"operator {uid!r}: the checkpoint holds a state {name!r} that is not declared any more (declared "
                    f"are {sorted(declared)}): declare it again, or give the operator another uid to start with empty "
                    "state"
                )
            declared[name].restore(self._function, uid, own, subtask, parallelism)

    def capture(self, parallelism: int) -> list[CapturedPart]:
        return [declaration.capture(self._function, parallelism) for declaration in self._declarations]


def operator_states_of(cls: type) -> list[OperatorStateDeclaration]:
    """The operator states that a class of functions declares, base classes first."""
    found: dict[str, OperatorStateDeclaration] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            found.pop(name, None)
            if isinstance(attribute, OperatorStateDeclaration):
                found[name] = attribute
    return list(found.values())


def _copied(codec: Codec, items: Sequence[Any]) -> list[Any]:
    return list(items) if codec.copy is None else list(map(codec.copy, items))


# ---- the public names ----
def operator_list(item: Any, **options: Unpack[Options]) -> OperatorListDeclaration:
    """A list of the operator's instance. At another parallelism the items of all are split evenly."""
    return OperatorListDeclaration(item, StateOptions.of(options))


def operator_union(item: Any, **options: Unpack[Options]) -> OperatorUnionDeclaration:
    """A list of the operator's instance; after a restore every instance has the items of all, in the order of their
    writers, and keeps what it needs."""
    return OperatorUnionDeclaration(item, StateOptions.of(options))


def operator_broadcast(key: Any, value: Any, **options: Unpack[Options]) -> OperatorBroadcastDeclaration:
    """A dict that is the same on all instances, because all see the same broadcast records."""
    return OperatorBroadcastDeclaration(value, StateOptions.of(options), key=key)


def raw() -> RawDeclaration:
    """Bytes that the function writes and reads itself, see the decorators `write` and `read`."""
    return RawDeclaration()
