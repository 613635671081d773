"""Expressions as SQL text: `select_sql("user", "amount * 2 as double")`.

Polars reads the text; from there on it is an expression like any other, checked and sent to the workers the same way.
Checked one by one first, so that a message names the text that it is about. What Polars would take but understand
otherwise than SQL is refused, with what to write instead: a predicate that quietly loses rows with nulls is worse than
none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.graph.errors import Site, listed, unknown_column
from penstock.graph.expressions import check, first_line
from penstock.operators.expressions import StepKind

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|[A-Za-z_]\w*|\S""", re.DOTALL)
_UNKNOWN_FUNCTION = re.compile(r"unsupported function '([^']*)'")

_CLOCKS = ("now", "current_timestamp", "current_date", "current_time", "localtime", "localtimestamp")
_MISREAD = {
    "position": "does not give null for null in Polars: write pl.col(...).str.find(...) with with_columns",
    "strpos": "does not give null for null in Polars: write pl.col(...).str.find(...) with with_columns",
    "unnest": "gives other than one row for a row: use flat_map(...)",
    **dict.fromkeys(
        _CLOCKS,
        "is another time whenever the job is started or a record comes again after a failure: have the source put the "
        "time into a column",
    ),
}


def sql_expressions(
    kind: StepKind, texts: Sequence[Any], named: Mapping[str, Any], schema: pa.Schema, site: Site
) -> list[pl.Expr]:
    """The expressions that the texts stand for, each checked against the schema."""
    written = [(text, None) for text in texts] + [(text, name) for name, text in named.items()]
    return [_expression(kind, text, name, schema, site) for text, name in written]


def _expression(kind: StepKind, text: Any, name: str | None, schema: pa.Schema, site: Site) -> pl.Expr:
    if not isinstance(text, str):
        raise site.error(
            f"takes SQL text, not {type(text).__name__} {text!r}: Polars expressions go to {kind.value}(...)"
        )
    site = replace(site, name=f"{site.name}({text!r})")
    if kind is StepKind.SELECT and text.strip() == "*":
        expression = pl.all()
    elif text in schema.names:  # also where SQL has another meaning for the word, as it has for `user`
        expression = pl.col(text)
    else:
        expression = _parsed(text, schema, site)
    if name is not None:
        expression = expression.alias(name)
    elif kind is not StepKind.FILTER and not _has_name(expression):
        raise site.error(f'the result needs a name: write "{text} as name", or name="{text}"')
    check(kind, [expression], schema, site)
    return expression


def _parsed(text: str, schema: pa.Schema, site: Site) -> pl.Expr:
    _check_meaning(text, schema, site)
    try:
        return pl.sql_expr(text)
    except pl.exceptions.PolarsError as error:
        message = first_line(error)
    word = _UNKNOWN_FUNCTION.search(message)
    if word and _is_bare(word[1], text):
        if word[1] in schema.names:
            raise site.error(f'{word[1]} is a word of SQL: write the column in double quotes, "{word[1]}"')
        raise site.error(unknown_column(word[1], schema.names))
    raise site.error(f"{message}. The columns are {listed(schema.names)}; text constants are written in single quotes")


def _check_meaning(text: str, schema: pa.Schema, site: Site) -> None:
    words = list(_words(text))
    for place, word in enumerate(words):
        if word in _MISREAD and (word in _CLOCKS or words[place + 1 : place + 2] == ["("]) and word not in schema.names:
            raise site.error(f"{word} {_MISREAD[word]}")
        said = [one for one in words[place + 1 : place + 3] if one != "not"][:1]
        if word == "is" and said and said[0] in ("true", "false"):
            raise site.error(
                f"Polars takes null IS {said[0].upper()} for null, SQL for a yes or no: write coalesce(..., false) or "
                "coalesce(..., true)"
            )


def _words(text: str) -> Iterator[str]:
    """The text's words and signs in lower case, without constants, quoted names and comments."""
    return (token.lower() for token in _TOKEN.findall(text) if token[0] not in "'\"" and token[:2] not in ("--", "/*"))


def _is_bare(name: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b(?!\s*\()", text, re.IGNORECASE) is not None


def _has_name(expression: pl.Expr) -> bool:
    """Whether its result is called something that was written, rather than after the first column in it."""
    if expression.meta.is_column() or expression.meta.has_multiple_outputs():
        return True
    return not expression.meta.undo_aliases().meta.eq(expression)
