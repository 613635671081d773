"""Which changes of a type keep its stored values readable, and how each value is changed.

A conversion works on plain values: what MessagePack can say, records as dicts by field name or, positional ones, as
lists. It is derived from what is stored (a description) and what is declared (a type):

- a field that the declaration adds needs a default; one that it lacks is dropped; `renamed` says where one went;
- `int` may become `float` or `Decimal`, `bool` may become `int`, a narrower NumPy or Arrow number a wider one;
- anything may become a union that has it among its parts (so also optional), or `Any`;
- an enum may get more values.

Everything else is refused, with the place in the type where the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import msgspec.inspect as mi
import numpy as np

from penstock.state.errors import UnstorableValue
from penstock.state.schema import Description, describe, fits, is_numpy_scalar, show

Conversion = Callable[[Any], Any]
Record = mi.StructType | mi.DataclassType | mi.NamedTupleType | mi.TypedDictType
Renames = Mapping[str, str]
"""From the old name of a field to the new one."""


class Incompatible(ValueError):
    """Stored values of one type cannot be read as another; the message says where and why."""


def conversion(stored: Description, declared: mi.Type, renamed: Renames, place: str = "") -> Conversion | None:
    """From stored plain values to plain values of the declared type; None: they are the same."""
    description = describe(declared)
    if fits(stored, description) or description["type"] == "any":
        return None
    match declared:
        case mi.UnionType():
            return _into_union(stored, declared, renamed, place)
        case mi.StructType() | mi.DataclassType() | mi.NamedTupleType() | mi.TypedDictType():
            if stored["type"] == "record":
                return _record(stored, declared, renamed, place)
        case mi.ListType() | mi.SetType() | mi.FrozenSetType() | mi.VarTupleType():
            if stored["type"] == description["type"] and "item" in stored:
                item = conversion(stored["item"], declared.item_type, renamed, f"{place}[]")
                return None if item is None else _each(item)
        case mi.TupleType(item_types=items):
            if stored["type"] == "tuple" and len(stored.get("items", ())) == len(items):
                pairs = enumerate(zip(stored["items"], items, strict=True))
                return _tuple([conversion(old, new, renamed, f"{place}[{at}]") for at, (old, new) in pairs])
        case mi.DictType(key_type=key, value_type=value):
            if stored["type"] == "dict":
                return _dict(
                    conversion(stored["key"], key, renamed, f"{place}[key]"),
                    conversion(stored["value"], value, renamed, f"{place}[value]"),
                )
        case mi.EnumType() | mi.LiteralType():
            if stored["type"] == "enum":
                _check_values(stored, description, place)
                return None
    widened = _widened(stored, description)
    if widened is None:
        raise _refused(stored, description, place)
    return widened


def widened_numbers(stored: Description, declared: Description) -> Conversion | None:
    """How a number becomes one of a wider type; None if that is not what happened."""
    return _widened(stored, declared)


def _refused(stored: Description, declared: Description, place: str) -> Incompatible:
    return Incompatible(f"{_at(place)}{show(stored)} cannot become {show(declared)}")


def _at(place: str) -> str:
    return f"at {place.removeprefix('.')}: " if place else ""


# ---- numbers ----
def _widened(stored: Description, declared: Description) -> Conversion | None:
    match stored["type"], declared["type"]:
        case "int" | "numpy", "float" if _is_whole(stored):
            return exact_float
        case "int", "decimal":
            return str
        case "bool", "int":
            return int
    old, new = _number_type(stored), _number_type(declared)
    if old is None or new is None or not np.can_cast(old, new, "safe"):
        return None
    return exact_float if new.kind == "f" and old.kind != "f" else _same


def _is_whole(description: Description) -> bool:
    kind = _number_type(description)
    return kind is not None and kind.kind in "iu"


def _number_type(description: Description) -> np.dtype[Any] | None:
    """The machine type that the values of a number's type fit into."""
    match description["type"]:
        case "int":
            return np.dtype(np.int64)
        case "float":
            return np.dtype(np.float64)
        case "bool":
            return np.dtype(np.bool_)
        case "numpy":
            return np.dtype(description["dtype"])
        case "arrow":
            name: str = description["arrow_type"]
            name = {"double": "float64", "float": "float32", "halffloat": "float16"}.get(name, name)
            return np.dtype(name) if name.rstrip("0123456789") in ("int", "uint", "float") else None
    return None


def exact_float(value: Any) -> Any:
    if int(float(value)) != value:
        raise UnstorableValue(f"{value!r} has no exact float")
    return float(value)


def _same(value: Any) -> Any:
    return value


# ---- composed types ----
def _into_union(stored: Description, declared: mi.UnionType, renamed: Renames, place: str) -> Conversion | None:
    alternatives = stored["of"] if stored["type"] == "union" else [stored]
    found = [_alternative(one, declared, renamed, place) for one in alternatives]
    changed = [convert for convert in found if convert is not None]
    if not changed:
        return None
    if len([one for one in alternatives if one["type"] != "none"]) > 1:
        raise Incompatible(
            f"{_at(place)}a part of {show(stored)} changed, and stored values do not say which part they are of"
        )
    (convert,) = changed
    return lambda value: None if value is None else convert(value)


def _alternative(stored: Description, declared: mi.UnionType, renamed: Renames, place: str) -> Conversion | None:
    """As the part of the union that is the same, or else as the first one that it can become."""
    if any(fits(stored, describe(part)) for part in declared.types):
        return None
    for part in declared.types:
        try:
            return conversion(stored, part, renamed, place)
        except Incompatible:
            continue
    raise _refused(stored, describe(declared), place)


def _each(item: Conversion) -> Conversion:
    return lambda values: list(map(item, values))


def _tuple(items: list[Conversion | None]) -> Conversion | None:
    return lambda values: [value if item is None else item(value) for item, value in zip(items, values, strict=True)]


def _dict(key: Conversion | None, value: Conversion | None) -> Conversion:
    convert_key, convert_value = key or _same, value or _same
    return lambda entries: {convert_key(k): convert_value(v) for k, v in entries.items()}


def _check_values(stored: Description, declared: Description, place: str) -> None:
    gone = [value for value in stored["values"] if value not in declared["values"]]
    if gone:
        raise Incompatible(f"{_at(place)}the values {gone} of {show(stored)} are not among those of {show(declared)}")


# ---- records ----
def _record(stored: Description, declared: Record, renamed: Renames, place: str) -> Conversion:
    new = describe(declared)
    if (stored.get("tag"), stored.get("tag_field")) != (new.get("tag"), new.get("tag_field")):
        raise Incompatible(f"{_at(place)}the tag {stored.get('tag')!r} became {new.get('tag')!r}")
    names = [field["name"] for field in stored["fields"]]
    old_name = {now: old for old, now in renamed.items() if old in names}
    parts: list[tuple[str, str | None, Conversion | None, Any]] = []
    for field in declared.fields:
        name = field.encode_name
        source = name if name in names else old_name.get(name)
        if source is None:
            if field.required:
                raise Incompatible(
                    f"{_at(place)}the field {name!r} was added without a default (stored are {names}): give it one, or "
                    f"say which field it was with renamed={{'<old name>': {name!r}}}"
                )
            parts.append((name, None, None, _default(field)))
        else:
            of = stored["fields"][names.index(source)]["of"]
            parts.append((name, source, conversion(of, field.type, renamed, f"{place}.{name}"), None))
    return _record_conversion(stored, new, names, parts)


def _record_conversion(
    stored: Description,
    declared: Description,
    names: list[str],
    parts: list[tuple[str, str | None, Conversion | None, Any]],
) -> Conversion:
    tag = declared.get("tag")
    was_positional, is_positional = stored["positional"], declared["positional"]

    def convert(value: Any) -> Any:
        if was_positional:
            value = dict(zip(names, value[0 if tag is None else 1 :], strict=False))
        made = {} if tag is None else {declared["tag_field"]: tag}
        for name, source, change, default in parts:
            if source in value:
                made[name] = value[source] if change is None else change(value[source])
            elif is_positional:
                made[name] = default
        return list(made.values()) if is_positional else made

    return convert


def _default(field: mi.Field) -> Any:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return msgspec.to_builtins(value, enc_hook=_plain_number)


def _plain_number(value: Any) -> Any:
    if is_numpy_scalar(type(value)):
        return value.item()
    raise NotImplementedError(f"a {type(value).__name__} cannot be stored")
