"""Whether the operators can be sent to the workers at all, found out before anything is started.

Spark ships a job's code by its closure serialisation. What it cannot serialise - an open connection, a lock, a session
- it reports deep inside and without saying where it came from. Here each operator is tried alone, and a failure is
traced to the variable.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from penstock.graph.plan import Plan


def check_shippable(plan: Plan) -> None:
    for node in plan.nodes:
        problem = _problem(node.factory)
        if problem is not None:
            raise node.error(
                f"cannot be sent to the workers: {_blame(node.factory) or problem}. Make what cannot be copied to "
                "another process "
                "inside the function, or in open() of a function object, instead of capturing it"
            )


def _problem(value: object) -> str | None:
    """Why the value cannot be serialised; None if it can. User objects may raise anything from their hooks."""
    from pyspark import cloudpickle  # PySpark is loaded only when a job is about to run

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    try:
        dumps(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _blame(value: object, path: str = "", depth: int = 0) -> str | None:
    """The deepest captured value that fails by itself, with the way to it."""
    if depth > 6:
        return None
    for step, part in _parts(value):
        problem = _problem(part)
        if problem is not None:
            where = f"{path} -> {step}" if path else step
            return (
                _blame(part, where, depth + 1)
                or f"{where} is a {type(part).__module__}.{type(part).__qualname__} ({problem})"
            )
    return None


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, partial):
        for argument in (value.func, *value.args, *value.keywords.values()):
            yield _called(argument), argument
    elif inspect.ismethod(value):
        yield f"the object of method {value.__name__!r}", value.__self__
    elif inspect.isfunction(value):
        captured = inspect.getclosurevars(value)
        for name, part in {**captured.globals, **captured.nonlocals}.items():
            yield f"variable {name!r}", part
    elif isinstance(value, dict):
        yield from ((f"item {key!r}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {number}", part) for number, part in enumerate(value))
    elif hasattr(value, "__dict__") and not inspect.isclass(value) and not inspect.ismodule(value):
        yield from ((f"attribute {name!r}", part) for name, part in vars(value).items())


def _called(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    return f"function {name!r}" if name else f"{type(value).__name__} object"
