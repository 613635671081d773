"""What is in a checkpoint: sizes by operator and state, how evenly they lie, files, layers, figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from penstock.core.handles import PartHandle, PartKind
from penstock.core.record import CheckpointRecord, OperatorRecord
from penstock.observe.opening import OpenedCheckpoint
from penstock.state.schema import show
from penstock.store.layout import part_path

_CHANNELS = (PartKind.INPUT_CHANNEL, PartKind.OUTPUT_CHANNEL)


def inspect(opened: OpenedCheckpoint) -> dict[str, Any]:
    record = opened.record
    handles = [handle for entry in record.subtasks for handle in entry.handles]
    in_flight = [handle for handle in handles if handle.kind in _CHANNELS]
    return {
        "job": record.graph.job,
        "checkpoint": record.checkpoint,
        "purpose": str(record.purpose),
        "mode": str(record.mode),
        "triggered_ms": record.triggered_ms,
        "completed_ms": record.completed_ms,
        "duration_ms": _duration(opened),
        "savepoint": opened.snapshot.is_savepoint,
        "key_groups": record.graph.key_groups,
        "restorable": list(opened.complete),
        "state_bytes": _size(handles) - _size(in_flight),
        "in_flight_bytes": _size(in_flight),
        "longest_chain": 1 + max((handle.layer for handle in handles), default=0),
        "operators": list(_operators(record)),
        "files": _files(opened),
        "subtasks": {
            str(entry.subtask): {
                "bytes": _size(list(entry.handles)),
                "drained": entry.drained,
                "finished": entry.finished,
                "figures": asdict(entry.figures),
            }
            for entry in record.subtasks
        },
        "statistics": opened.statistics,
    }


def _duration(opened: OpenedCheckpoint) -> float:
    """From the trigger to the end; where nobody recorded it, until all had acknowledged."""
    recorded = (opened.statistics or {}).get("duration_ms")
    if isinstance(recorded, int | float):
        return float(recorded)
    return float(opened.record.completed_ms - opened.record.triggered_ms)


def _size(handles: list[PartHandle]) -> int:
    return sum(handle.length for handle in handles)


def _operators(record: CheckpointRecord) -> Iterator[dict[str, Any]]:
    for chain in record.graph.chains:
        for operator in chain.operators:
            parts = [
                handle
                for entry in record.subtasks
                for handle in entry.handles
                if handle.uid == operator.uid and handle.kind not in _CHANNELS
            ]
            if parts or operator.stateful:
                yield {
                    "uid": operator.uid,
                    "name": operator.name,
                    "chain": chain.id,
                    "parallelism": chain.parallelism,
                    "key": list(operator.key),
                    "bytes": _size(parts),
                    "states": [_state(operator, name, parts) for name in dict.fromkeys(part.name for part in parts)],
                }


def _state(operator: OperatorRecord, name: str, parts: list[PartHandle]) -> dict[str, Any]:
    own = [part for part in parts if part.name == name]
    declared = next((state for state in operator.states if state.name == name), None)
    ranges: dict[tuple[int, int], int] = {}
    for part in own:
        if part.key_groups is not None:
            groups = (part.key_groups.start, part.key_groups.end)
            ranges[groups] = ranges.get(groups, 0) + part.length
    return {
        "name": name,
        "kind": declared.kind if declared is not None else str(own[0].kind),
        "type": show(dict(declared.description)) if declared is not None else None,
        "bytes": _size(own),
        "parts": len(own),
        "layers": len({part.layer for part in own}),
        "key_groups": [{"start": a, "end": b, "bytes": size} for (a, b), size in sorted(ranges.items())],
        "skew": _skew(ranges),
    }


def _skew(ranges: dict[tuple[int, int], int]) -> float | None:
    """How many times as much the fullest key groups hold as the average; None where there are none."""
    total = sum(ranges.values())
    groups = sum(end - start for start, end in ranges)
    if not total or not groups:
        return None
    return round(
        max(size / (end - start) for (start, end), size in ranges.items() if end > start) / (total / groups), 3
    )


def _files(opened: OpenedCheckpoint) -> list[dict[str, Any]]:
    """The files that hold its parts, with what it uses of each; some may have been written for earlier checkpoints."""
    used: dict[str, int] = {}
    for entry in opened.record.subtasks:
        for handle in entry.handles:
            if handle.path:
                path = part_path(opened.snapshot.directory, handle)
                used[path] = used.get(path, 0) + handle.length
    return [{"path": path, "bytes": size} for path, size in sorted(used.items())]


def shown(found: dict[str, Any]) -> str:
    """The same for people."""
    what = "savepoint of checkpoint" if found["savepoint"] else "checkpoint"
    complete = "" if found["savepoint"] else f"; complete are {', '.join(map(str, found['restorable']))}"
    lines = [
        f"{what} {found['checkpoint']} of job {found['job']!r} ({found['purpose']}, {found['mode']}), "
        f"{found['key_groups']} key groups, taken in {found['duration_ms']:,.0f} ms",
        f"state {found['state_bytes']:,} bytes, in flight {found['in_flight_bytes']:,} bytes, in {len(found['files'])} "
        f"file(s), up to {found['longest_chain']} layer(s){complete}",
    ]
    for operator in found["operators"]:
        by = f" by ({', '.join(operator['key'])})" if operator["key"] else ""
        lines.append(
            f"  {operator['uid']} ({operator['name']}) x{operator['parallelism']}{by}: {operator['bytes']:,} bytes"
        )
        for state in operator["states"]:
            of = f" of {state['type']}" if state["type"] else ""
            skew = f", skew {state['skew']}" if state["skew"] is not None else ""
            lines.append(
                f"    {state['name']}: {state['kind']}{of}, {state['bytes']:,} bytes in {state['parts']} part(s), "
                f"{state['layers']} layer(s){skew}"
            )
    slowest = max(found["subtasks"].items(), key=_time_taken, default=None)
    if slowest is not None:
        figures = slowest[1]["figures"]
        lines.append(
            f"  slowest subtask {slowest[0]}: start delay {figures['start_delay_ms']:.0f} ms, alignment "
            f"{figures['alignment_ms']:.0f} ms, sync {figures['sync_ms']:.0f} ms, async {figures['async_ms']:.0f} ms, "
            f"{figures['in_flight_rows']:,} rows in flight"
        )
    lines += [f"  file {file['path']}: {file['bytes']:,} bytes" for file in found["files"]]
    return "\n".join(lines)


def _time_taken(subtask: tuple[str, dict[str, Any]]) -> float:
    figures = subtask[1]["figures"]
    return float(sum(figures[f"{what}_ms"] for what in ("start_delay", "alignment", "sync", "async")))
