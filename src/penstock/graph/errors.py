"""What is wrong with a pipeline, told so that the reader knows which operator is meant and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.graph.places import Place


class PipelineError(ValueError):
    """A pipeline that cannot run as it was written. Raised while it is built, before anything is started."""


class UnnamedOperatorWarning(UserWarning):
    """Operators that keep state have no uid of the user's: a change of the pipeline may part them from their state."""


@dataclass(frozen=True, slots=True)
class Site:
    """How an operator is called in every message: what it is, its uid if it was given one, and where it was written."""

    name: str
    """`filter`, `process(Totals)`"""
    uid: str | None
    place: Place

    def __str__(self) -> str:
        known = f" {self.uid!r}" if self.uid else ""
        return f"{self.name}{known} ({self.place})"

    def error(self, message: str) -> PipelineError:
        return PipelineError(f"{self}: {message}")


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def unknown_column(column: str, available: Iterable[str]) -> str:
    """`there is no column 'amout'; did you mean 'amount'? Available: 'user', 'amount'`"""
    names = list(available)
    close = get_close_matches(column, names, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"there is no column {column!r}{hint} Available: {listed(names)}"
