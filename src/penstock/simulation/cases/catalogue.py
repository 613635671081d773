"""All operator cases by name."""

from __future__ import annotations

from typing import Final

from penstock.simulation.cases import functions, joins, running, stateless, windows
from penstock.simulation.cases.case import Case

CASES: Final[dict[str, Case]] = {
    case.name: case for case in (*stateless.CASES, *functions.CASES, *running.CASES, *windows.CASES, *joins.CASES)
}
