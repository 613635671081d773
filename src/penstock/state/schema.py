"""The description of a state's type, as it is written beside the state.

A description is plain JSON: enough to say, without the program that wrote it, what the state holds, and to compare it
with what another program expects. Names of classes are in it for people only; two descriptions fit if everything else
is equal.
"""

from __future__ import annotations

from typing import Any

import msgspec.inspect as mi
import numpy as np
import pyarrow as pa

from penstock.state.errors import UnsupportedType

Description = dict[str, Any]

_SIMPLE: dict[type[mi.Type], str] = {
    mi.NoneType: "none",
    mi.BoolType: "bool",
    mi.IntType: "int",
    mi.FloatType: "float",
    mi.StrType: "str",
    mi.BytesType: "bytes",
    mi.ByteArrayType: "bytearray",
    mi.DateTimeType: "datetime",
    mi.DateType: "date",
    mi.TimeType: "time",
    mi.TimeDeltaType: "timedelta",
    mi.DecimalType: "decimal",
    mi.UUIDType: "uuid",
    mi.AnyType: "any",
}

_MUTABLE_SIMPLE = (mi.AnyType, mi.ByteArrayType)
_COLLECTIONS: dict[type[mi.Type], str] = {
    mi.ListType: "list",
    mi.SetType: "set",
    mi.FrozenSetType: "frozenset",
    mi.VarTupleType: "tuple",
}

SUPPORTED = (
    "None, bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID, enums, list, dict, set, "
    "tuple, dataclasses, NamedTuples, TypedDicts and msgspec Structs of these, NumPy's numbers, an Arrow type such as "
    "pyarrow.int32(), or any class with pickle=True"
)

_NUMPY_KINDS = "biuf"
"""Booleans, integers and floats: those whose values say everything. NumPy's times have units of their own."""


def describe(info: mi.Type) -> Description:
    """The description of a type; raises `UnsupportedType` naming the part of it that cannot be stored."""
    return _describe(info, ())


def describe_numpy(scalar: type[np.generic]) -> Description:
    return {"type": "numpy", "dtype": np.dtype(scalar).name}


def describe_arrow(data_type: pa.DataType) -> Description:
    return {"type": "arrow", "arrow_type": str(data_type)}


def is_numpy_scalar(type_: object) -> bool:
    return isinstance(type_, type) and issubclass(type_, np.generic) and np.dtype(type_).kind in _NUMPY_KINDS


def fits(stored: Description, declared: Description) -> bool:
    """Whether state of the one description can be read as the other."""
    return bool(_without_names(stored) == _without_names(declared))


def show(description: Description) -> str:
    """The description as one would write the type in Python."""
    kind = description["type"]
    match kind:
        case "list" | "set" | "frozenset":
            return f"{kind}[{show(description['item'])}]"
        case "tuple" if "item" in description:
            return f"tuple[{show(description['item'])}, ...]"
        case "tuple":
            return f"tuple[{', '.join(map(show, description['items']))}]"
        case "dict":
            return f"dict[{show(description['key'])}, {show(description['value'])}]"
        case "union":
            return " | ".join(map(show, description["of"]))
        case "enum":
            return f"{description['name']}({', '.join(map(repr, description['values']))})"
        case "record" | "recursive":
            fields = ", ".join(f"{field['name']}: {show(field['of'])}" for field in description.get("fields", ()))
            return f"{description['name']}({fields})" if fields else str(description["name"])
        case "numpy":
            return f"numpy.{description['dtype']}"
        case "arrow":
            return f"Arrow's {description['arrow_type']}"
        case "pickle":
            return f"pickled {description['class']}"
        case "expiring":
            return f"{show(description['item'])} with a time to live"
        case "row":
            return f"row({', '.join(f'{name}: {of}' for name, of in description['columns'])})"
    return "None" if kind == "none" else str(kind)


def is_immutable(info: mi.Type, outer: tuple[type, ...] = ()) -> bool:
    """Whether no value of the type can change in place."""
    match info:
        case mi.TupleType(item_types=parts) | mi.UnionType(types=parts):
            return all(is_immutable(part, outer) for part in parts)
        case mi.VarTupleType(item_type=item) | mi.FrozenSetType(item_type=item):
            return is_immutable(item, outer)
        case mi.NamedTupleType() | mi.DataclassType() | mi.StructType():
            if info.cls in outer:
                return True
            return _is_frozen(info) and all(is_immutable(field.type, (*outer, info.cls)) for field in info.fields)
        case mi.EnumType() | mi.LiteralType():
            return True
        case mi.CustomType(cls=cls):
            return is_numpy_scalar(cls)
    return isinstance(info, tuple(_SIMPLE)) and not isinstance(info, _MUTABLE_SIMPLE)


def holds_any(description: Description) -> bool:
    """Whether part of the type is left open."""
    if description["type"] == "any":
        return True
    nested = [description.get("item"), description.get("key"), description.get("value")]
    nested += [*description.get("items", ()), *description.get("of", ())]
    nested += [field["of"] for field in description.get("fields", ())]
    return any(holds_any(part) for part in nested if part is not None)


def _describe(info: mi.Type, outer: tuple[type, ...]) -> Description:
    if type(info) in _SIMPLE:
        return {"type": _SIMPLE[type(info)]}
    if type(info) in _COLLECTIONS:
        return {"type": _COLLECTIONS[type(info)], "item": _describe(info.item_type, outer)}  # type: ignore[attr-defined]
    match info:
        case mi.TupleType(item_types=items):
            return {"type": "tuple", "items": [_describe(item, outer) for item in items]}
        case mi.DictType(key_type=key, value_type=value):
            return {"type": "dict", "key": _describe(key, outer), "value": _describe(value, outer)}
        case mi.UnionType(types=types):
            return {"type": "union", "of": sorted((_describe(part, outer) for part in types), key=_order)}
        case mi.EnumType(cls=cls):
            return {"type": "enum", "name": cls.__qualname__, "values": sorted((m.value for m in cls), key=repr)}
        case mi.LiteralType(values=values):
            return {"type": "enum", "name": "Literal", "values": sorted(values, key=repr)}
        case mi.StructType() | mi.DataclassType() | mi.NamedTupleType() | mi.TypedDictType():
            return _describe_record(info, outer)
        case mi.CustomType(cls=cls) if is_numpy_scalar(cls):
            return describe_numpy(cls)
    name = getattr(getattr(info, "cls", None), "__qualname__", type(info).__name__)
    raise UnsupportedType(f"{name} cannot be stored; use {SUPPORTED}")


def _describe_record(
    info: mi.StructType | mi.DataclassType | mi.NamedTupleType | mi.TypedDictType, outer: tuple[type, ...]
) -> Description:
    if info.cls in outer:
        return {"type": "recursive", "name": info.cls.__qualname__, "up": len(outer) - outer.index(info.cls)}
    positional = isinstance(info, mi.NamedTupleType) or getattr(info, "array_like", False)
    fields = [
        {"name": field.encode_name, "of": _describe(field.type, (*outer, info.cls)), "required": field.required}
        for field in info.fields
    ]
    description = {"type": "record", "name": info.cls.__qualname__, "positional": positional, "fields": fields}
    if isinstance(info, mi.StructType) and info.tag is not None:
        description |= {"tag_field": info.tag_field, "tag": info.tag}
    return description


def _is_frozen(info: mi.NamedTupleType | mi.DataclassType | mi.StructType) -> bool:
    if isinstance(info, mi.DataclassType):
        parameters = getattr(info.cls, "__dataclass_params__", None)
        return parameters is not None and bool(parameters.frozen)
    return isinstance(info, mi.NamedTupleType) or info.cls.__struct_config__.frozen


def _order(description: Description) -> str:
    return repr(_without_names(description))


def _without_names(part: Any) -> Any:
    """The parts that count: not the names of classes, and not which fields have defaults."""
    if isinstance(part, dict):
        skipped = ("name",) if part.get("type") in ("record", "recursive", "enum") else ("required", "class")
        return {key: _without_names(value) for key, value in part.items() if key not in skipped}
    if isinstance(part, list):
        return [_without_names(item) for item in part]
    return part
