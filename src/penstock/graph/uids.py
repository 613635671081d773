"""Uids: the stable names under which operators find their state again.

The user names an operator with `uid=`. One without a name gets a derived uid: the nearest named operator upstream
(along first inputs), then what the operator is, then a number if that is taken: `orders.filter`, `orders.filter-2`. So
adding or removing an operator changes no uid but those of later operators of the same kind below the same named one.
That is good enough for operators without state; for one that keeps state a warning says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.core.ids import Uid
from penstock.graph.errors import PipelineError
from penstock.graph.plan import Node, Plan

_UID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")


def check_uid(uid: str) -> None:
    """Uids become parts of file names and messages, so they are short and plain."""
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise ValueError(
            f"uid={uid!r} is no usable name: use 1 to 100 letters, digits and '_', '-', '.', ':', beginning with a "
            "letter, digit or '_'"
        )


def assign_uids(plan: Plan) -> Mapping[Node, Uid]:
    """The uid of every node. Raises when a name was given twice."""
    named: dict[str, Node] = {}
    for node in plan.nodes:
        if node.uid is None:
            continue
        if (other := named.setdefault(node.uid, node)) is not node:
            raise PipelineError(
                f"the uid {node.uid!r} was given to two operators: {other} and {node}. State is found by uid: give "
                "each its own"
            )
    taken = set(named)
    uids: dict[Node, Uid] = {}
    anchors: dict[Node, str] = {}
    for node in plan.nodes:
        if node.uid is not None:
            uids[node], anchors[node] = Uid(node.uid), node.uid
            continue
        anchors[node] = anchors[node.inputs[0].node] if node.inputs else ""
        uids[node] = Uid(_free_name(anchors[node], _plain(node.name), taken))
        taken.add(uids[node])
    return uids


def unnamed_warning(plan: Plan, uids: Mapping[Node, Uid]) -> str | None:
    """One text that lists all operators whose state hangs on a derived uid."""
    unnamed = [node for node in plan.nodes if node.stateful and node.uid is None]
    if not unnamed:
        return None
    lines = "".join(f"\n  {node}, for now {uids[node]!r}" for node in unnamed)
    return (
        f"pipeline {plan.name!r}: {len(unnamed)} operator(s) keep state but have no uid. A derived uid changes when "
        "the pipeline does, "
        f'and the state is then not found again. Add uid="..." to:{lines}'
    )


def _plain(name: str) -> str:
    """`process(Totals)` -> `process`"""
    return name.partition("(")[0]


def _free_name(anchor: str, name: str, taken: set[str]) -> str:
    base = f"{anchor}.{name}" if anchor else name
    candidate, number = base, 1
    while candidate in taken:
        number += 1
        candidate = f"{base}-{number}"
    return candidate
