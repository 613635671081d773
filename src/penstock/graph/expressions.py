"""What a user may write in filter, select and with_columns, as steps that a worker can run.

An expression is applied batch by batch, and where a stream is cut into batches is up to the runtime: so every
expression must give each row the same result whatever rows are around it. One that looks at other rows (a mean, a
shift, a rank) would silently depend on the cuts, and is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from penstock.graph.errors import PipelineError, Site, unknown_column
from penstock.graph.schemas import arrow_schema, checked_schema, empty_frame
from penstock.operators.expressions import EAGER, Step, StepKind

if TYPE_CHECKING:
    from polars._typing import SchemaDict

_UNKNOWN_COLUMN = re.compile(r'unable to find column "([^"]*)"')

_ALTERNATIVE = {
    StepKind.FILTER: "compare with a constant, or keep what is needed in state with key_by(...).process(...)",
    StepKind.SELECT: "for aggregates use key_by(...).reduce(...) or key_by(...).process(...)",
    StepKind.WITH_COLUMNS: "for aggregates use key_by(...).reduce(...) or key_by(...).process(...)",
}


def step_of(
    kind: StepKind, positional: Sequence[Any], named: Mapping[str, Any], schema: pa.Schema, site: Site
) -> tuple[Step, pa.Schema]:
    """The step that the arguments describe, and the schema of what it gives."""
    expressions = [_expression(argument, site) for argument in _flat(positional)]
    for name, value in named.items():
        expression = _expression(value, site) if kind is not StepKind.FILTER else pl.col(name) == value
        expressions.append(expression if kind is StepKind.FILTER else expression.alias(name))
    if not expressions:
        raise site.error(
            f"needs at least one Polars expression, for example {kind.value}(pl.col({schema.names[0]!r}) > 0)"
        )
    result = check(kind, expressions, schema, site)
    if kind is StepKind.SELECT and all(map(_is_scalar, expressions)):
        raise site.error(
            "all its expressions are constants, which would give one row per batch: select at least one column"
        )
    columns = _looked_at(expressions, schema) if kind is StepKind.FILTER else ()
    return Step(kind, tuple(_serialised(expression, site) for expression in expressions), columns), result


def check(kind: StepKind, expressions: Sequence[pl.Expr], schema: pa.Schema, site: Site) -> pa.Schema:
    """The schema of the result; refuses what a worker cannot run, or not row by row."""
    for expression in expressions:
        _check_native(expression, site)
    frame = empty_frame(schema)
    result = _resolved(frame, kind, expressions, schema, site)
    for expression in expressions:
        _check_rowwise(expression, kind, frame.collect_schema(), site)
    return result


def _flat(arguments: Iterable[Any]) -> Iterable[Any]:
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from _flat(argument)
        else:
            yield argument


def _expression(value: object, site: Site) -> pl.Expr:
    if isinstance(value, pl.Expr):
        return value
    if isinstance(value, str):
        return pl.col(value)
    if value is None or isinstance(value, bool | int | float | bytes):
        return pl.lit(value)
    if callable(value):
        raise site.error(
            "takes Polars expressions, not functions: write pl.col(...) ..., or use "
            f"map_batches({getattr(value, '__name__', 'fn')})"
        )
    raise site.error(f"takes Polars expressions, not {type(value).__name__}: write pl.col(...) or pl.lit(...)")


def _resolved(
    frame: pl.LazyFrame, kind: StepKind, expressions: Sequence[pl.Expr], schema: pa.Schema, site: Site
) -> pa.Schema:
    """What Polars makes of the expressions on an empty frame; its complaints in our words, with the operator's name."""
    try:
        resolved = getattr(frame, kind.value)(*expressions).collect_schema()
        getattr(frame.collect(), EAGER[kind])(*expressions)  # types that cannot be compared are only found by running
        if kind is StepKind.FILTER:
            return schema
        return checked_schema(arrow_schema(resolved, site), site)
    except PipelineError:
        raise
    except pl.exceptions.ColumnNotFoundError as error:
        unknown = _UNKNOWN_COLUMN.search(str(error))
        message = unknown_column(unknown[1], schema.names) if unknown else first_line(error)
        raise site.error(message) from None
    except (pl.exceptions.PolarsError, TypeError, pa.ArrowException) as error:
        raise site.error(f"Polars refuses it: {first_line(error)}. The input has {_described(schema)}") from None


def _check_native(expression: pl.Expr, site: Site) -> None:
    if "python_udf()" in str(expression):
        raise site.error(
            "a Python function inside an expression (map_elements, map_batches) cannot be checked or sent to the "
            "workers: "
            "write it with Polars' own expressions, or use stream.map_batches(...) or stream.map(...)"
        )


def _check_rowwise(expression: pl.Expr, kind: StepKind, schema: SchemaDict, site: Site) -> None:
    try:
        offender = _looks_around(_without_selectors(expression, next(iter(schema))), schema)
    except pl.exceptions.PolarsError:
        return  # Polars cannot tell, and it has accepted the expression for this schema
    if offender is not None:
        raise site.error(
            f"{offender} looks at more than its own row, so its result would depend on how the stream is cut into "
            f"batches; {_ALTERNATIVE[kind]}"
        )


def _without_selectors(expression: pl.Expr, column: str) -> pl.Expr:
    """The same expression with one column in place of every selector (`pl.all()`, `cs.numeric()`): Polars answers no
    questions about an expression that has one."""
    if not expression.meta.has_multiple_outputs() and "cs." not in str(expression):
        return expression
    try:
        tree = json.loads(expression.meta.serialize(format="json"))
        return pl.Expr.deserialize(StringIO(json.dumps(_replaced(tree, {"Column": column}))), format="json")
    except (pl.exceptions.PolarsError, ValueError):
        return expression


def _replaced(tree: Any, column: dict[str, str]) -> Any:
    if isinstance(tree, dict):
        return column if list(tree) == ["Selector"] else {name: _replaced(part, column) for name, part in tree.items()}
    return [_replaced(part, column) for part in tree] if isinstance(tree, list) else tree


def _looks_around(expression: pl.Expr, schema: SchemaDict) -> pl.Expr | None:
    """The first part of the expression whose result depends on other rows."""
    if expression.meta.is_literal() or "element()" in str(expression):
        return None  # literals are constants; inside list.eval, `element()` stands for the items of one row's list
    if not expression.meta.is_row_separable():
        return expression
    parts = (_looks_around(part, schema) for part in expression.meta.pop(schema=schema))
    return next((offender for offender in parts if offender is not None), None)


def _is_scalar(expression: pl.Expr) -> bool:
    try:
        return expression.meta.is_scalar()
    except pl.exceptions.PolarsError:
        return False


def _looked_at(expressions: Sequence[pl.Expr], schema: pa.Schema) -> tuple[str, ...]:
    """The columns that the predicates need: those they name if that is enough for Polars, or else all."""
    named = set[str]()
    for expression in expressions:
        named.update(expression.meta.root_names())
    columns = [name for name in schema.names if name in named]
    if not columns:
        return tuple(schema.names)
    try:
        empty_frame(pa.schema([schema.field(name) for name in columns])).filter(*expressions).collect_schema()
    except pl.exceptions.PolarsError:
        return tuple(schema.names)
    return tuple(columns)


def _serialised(expression: pl.Expr, site: Site) -> bytes:
    try:
        return expression.meta.serialize()
    except (pl.exceptions.PolarsError, TypeError, ValueError, AttributeError) as error:
        raise site.error(f"the expression {expression} cannot be sent to the workers: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name!r}: {field.type}" for field in schema)
