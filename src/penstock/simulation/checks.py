"""What must hold after a run: the committed output against the oracle, and the state of the disk.

What must hold while it runs is checked where it happens: in the nodes of the job (`nodes.py`), at the commits
(`ledger.py`) and on the disk (`witness.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.collect import Collect
from penstock.core.ids import Attempt, CheckpointId, Uid
from penstock.core.orders import JobState
from penstock.simulation.build import JOB
from penstock.simulation.oracle import Expected, expected_output
from penstock.simulation.records import SEQ_BASE, Row, origin_of
from penstock.simulation.story import Violation
from penstock.simulation.topology import Kind, Node, Topology
from penstock.store import layout
from penstock.store.checkpoints import CheckpointStore, Claim
from penstock.store.documents import Metadata, unseal

if TYPE_CHECKING:
    from penstock.simulation.world import World


def check(world: World) -> None:
    """Raises `Violation`."""
    world.chaos.plan.stop()
    _check_outcome(world)
    world.check_output()
    if world.scenario.checkpoints is not None:
        _check_store(world)


def check_sinks(world: World) -> None:
    """Of a job with a topology."""
    expected = expected_output(_as_read(world))
    # A job that promises at least once may have put out rows that its sources, restored from before them, did not read
    # again until they were told to drain.
    possible = expected if world.scenario.exactly_once else expected_output(world.scenario.topology)
    for sink in world.scenario.topology.sinks:
        _check_sink(world, sink, expected[sink.number], possible[sink.number])


def check_cut(world: World, uid: Uid, checkpoint: CheckpointId) -> None:
    """Right after the newest checkpoint's commit: where no barrier overtook anything, the committed rows are exactly
    what comes of the records that the sources had read when they let its barrier go. (What timers put out depends on
    how far event time had come there.)"""
    topology = world.scenario.topology
    sink = next(node for node in topology.sinks if node.uid == uid)
    cut = world.witness.cut(checkpoint)
    scripted = all(node.kind is Kind.SOURCE for node in topology.sources)
    if cut is None or not scripted or sink.kind is not Kind.COLLECT:
        return
    expected = expected_output(_shortened(world, cut))[sink.number]
    if expected.aggregates is not None:
        return
    found = Counter(row for row in rows_in(committed_rows(world, sink)) if row.id >= 0)
    wanted = Counter({row: count for row, count in expected.rows.items() if row.id >= 0})
    if found != wanted:
        lost, extra = (wanted - found).total(), (found - wanted).total()
        world.witness.object(
            f"{uid}: checkpoint {checkpoint} is no consistent cut: {lost} rows from before its barriers are missing in"
            f" the committed output, {extra} from behind them are in it"
        )


def _as_read(world: World) -> Topology:
    """The topology with what its sources really read, if the job was asked to drain."""
    return _shortened(world, {}) if world.drained else world.scenario.topology


def _shortened(world: World, read: Mapping[tuple[int, int], int]) -> Topology:
    """The topology with so many rows in each split; those that are not named have ended, wherever that was."""
    nodes = list(world.scenario.topology.nodes)
    for node in world.scenario.topology.sources:
        splits = [(node.number, split) for split in range(len(node.rows))]
        rows = tuple(read[split] if split in read else world.witness.rows_read(*split) for split in splits)
        nodes[node.number] = replace(node, rows=rows)
    return replace(world.scenario.topology, nodes=tuple(nodes))


def _check_outcome(world: World) -> None:
    """The job is finished in the end. Before that a driver may have been fenced by another one, or have failed because
    of what the owner of the store did after it. (An owner fails only because of a fault that was made for it: see
    `SimulatedDriver.ended`.)"""
    for driver in world.drivers:
        outcome = driver.outcome
        if outcome is not None and outcome.state is JobState.FENCED and len(world.drivers) == 1:
            raise Violation(f"the only driver was fenced: {outcome.reason}")


# ---- output ----
def _check_sink(world: World, sink: Node, expected: Expected, possible: Expected) -> None:
    table = committed_rows(world, sink)
    exactly_once = world.scenario.exactly_once
    if expected.aggregates is not None:
        _check_aggregates(sink, expected, table, exactly_once)
        return
    rows = rows_in(table)
    _check_rows(sink, expected, possible, Counter(rows), exactly_once)
    if exactly_once:
        routes = table["route"].to_pylist()
        if world.scenario.keeps_order(sink):
            ways = [(route, row.key) for route, row in zip(routes, rows, strict=True)]
            _check_order(sink, [row.id for row in rows], ways if world.scenario.rescaling else routes)
        _check_counts(sink, expected, rows, table["seq"].to_pylist(), table["total"].to_pylist())


def rows_in(table: pa.Table) -> list[Row]:
    return [Row(*values) for values in zip(*(table[name].to_pylist() for name in Row._fields), strict=True)]


def committed_rows(world: World, sink: Node) -> pa.Table:
    """What a reader of the sink's target sees."""
    if sink.kind is Kind.FILES:
        return _files_committed(world, sink)
    source = world.driver.graph.inputs(world.driver.graph.chains[sink.number].id)[0]
    return collected_rows(world, Uid(sink.uid), source.schema)


def collected_rows(world: World, uid: Uid, schema: pa.Schema) -> pa.Table:
    """All that was committed to a `Collect`, by whatever driver."""
    reader = Collect()
    reader.check(schema)
    reader.committer(uid, JOB).commit(CheckpointId(1), world.ledger.committed(uid))
    return reader.result()


def _files_committed(world: World, sink: Node) -> pa.Table:
    """As a plain reader of the directory: all files in it, in the order of their names."""
    found = [file.path for file in world.sink_files.list(sink.uid)]
    schema = world.driver.graph.inputs(world.driver.graph.chains[sink.number].id)[0].schema
    tables = [pq.ParquetFile(pa.BufferReader(world.sink_files.read(path))).read(use_threads=False) for path in found]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _check_rows(sink: Node, expected: Expected, possible: Expected, found: Counter[Row], exactly_once: bool) -> None:
    lost = expected.rows - found
    extra = found - expected.rows
    if lost:
        raise Violation(f"{sink.uid} lost {lost.total()} rows, for example {_example(lost)}")
    if exactly_once and extra:
        raise Violation(f"{sink.uid} has {extra.total()} rows too many, for example {_example(extra)}")
    unknown = [row for row in found if row not in possible.rows]
    if unknown:
        raise Violation(f"{sink.uid} has a row that was never put in: {unknown[0]}")


def _example(rows: Counter[Row]) -> str:
    row, count = min(rows.items())
    return f"{row} (id {row.id:#x}) x{count}"


def _check_order(sink: Node, ids: Sequence[int], routes: Sequence[object]) -> None:
    last: dict[tuple[int, object], int] = {}
    for id, route in zip(ids, routes, strict=True):
        if id < 0:
            continue
        way = (origin_of(id), route)
        if id <= last.get(way, -1):
            raise Violation(f"{sink.uid}: {id:#x} was committed after {last[way]:#x}, which left later on the same way")
        last[way] = id


def _check_counts(sink: Node, expected: Expected, rows: list[Row], seqs: Sequence[int], totals: Sequence[int]) -> None:
    """A stateful node numbers the records of each key and adds their values up: the n-th can be there only once, and
    where all of them are here, there is no gap and every sum follows from the one before."""
    seen: dict[tuple[int, int], dict[int, tuple[int, int, int]]] = {}
    for row, seq, total in zip(rows, seqs, totals, strict=True):
        node, count = divmod(seq, SEQ_BASE)
        if not seq:
            continue
        numbered = seen.setdefault((node, row.key), {})
        known = numbered.setdefault(count, (row.id, row.value, total))
        if known != (row.id, row.value, total):
            raise Violation(f"{sink.uid}: number {count} of key {row.key} at node {node} is {known} and {row}")
    for (node, key), numbered in seen.items():
        if node not in expected.complete_after:
            continue
        running = 0
        for count in range(1, len(numbered) + 1):
            if count not in numbered:
                raise Violation(f"{sink.uid}: number {count} of key {key} at node {node} is missing")
            running += numbered[count][1]
            if numbered[count][2] != running:
                raise Violation(
                    f"{sink.uid}: sum {count} of key {key} at node {node} should be {running}: {numbered[count]}"
                )


def _check_aggregates(sink: Node, expected: Expected, table: pa.Table, exactly_once: bool) -> None:
    assert expected.aggregates is not None
    last: dict[int, tuple[int, int]] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for key, n, total in zip(*(table[name].to_pylist() for name in ("key", "n", "total")), strict=True):
        last[key] = max(last.get(key, (0, 0)), (n, total))
        counts[key, n] += 1
    if exactly_once and last != expected.aggregates:
        raise Violation(f"{sink.uid}: last aggregates are {last}, should be {expected.aggregates}")
    if exactly_once and counts and max(counts.values()) > 1:
        raise Violation(f"{sink.uid}: the same aggregate was put out twice: {counts.most_common(1)}")
    if any(last.get(key, (0, 0))[0] < n for key, (n, _) in expected.aggregates.items()):
        raise Violation(f"{sink.uid}: aggregates lost records: {last}, should be at least {expected.aggregates}")


# ---- the disk ----
def _check_leftovers(world: World, claim: Claim) -> None:
    """What dead attempts prepared in the sinks goes when the next driver comes; what was committed stays."""
    assert claim.newest is not None
    for sink in world.scenario.topology.sinks:
        if sink.kind is not Kind.FILES:
            continue
        before = committed_rows(world, sink)
        spec = world.driver.graph.chains[sink.number].operators[-1]
        assert spec.sink is not None
        committables = claim.newest.committables.get(spec.uid, ())
        committer = spec.sink.committer(spec.uid, JOB)
        committer.recover(claim.newest.checkpoint, committables, claim.generation, Attempt(1))
        pending = [file.path for file in world.sink_files.list("") if file.path.endswith(".pending")]
        if any(f"/{sink.uid}/" in path for path in pending):
            raise Violation(f"{sink.uid} still has pending files after the next start: {pending[:3]}")
        if not committed_rows(world, sink).equals(before):
            raise Violation(f"{sink.uid}: the next start of the job changed what was committed")


def _check_store(world: World) -> None:
    """One more driver comes, restores and cleans: nothing may be left that no retained checkpoint names."""
    assert world.scenario.checkpoints is not None
    store = CheckpointStore(world.files, JOB, world.scenario.checkpoints.keep)
    claim = store.claim()
    if claim.newest is None or claim.newest.checkpoint != world.witness.newest:
        found = claim.newest and claim.newest.checkpoint
        raise Violation(f"the newest complete checkpoint is {world.witness.newest}, but {found} is restored")
    _check_leftovers(world, claim)
    retained = set(store.clean().retained)
    if not retained:
        raise Violation("no checkpoint is retained")
    needed: set[str] = set()
    for checkpoint in retained:
        record = store.load(checkpoint)
        directory = layout.checkpoint_directory(checkpoint)
        handles = [handle for subtask in record.subtasks for handle in subtask.handles if handle.inline is None]
        needed.update(layout.part_path(directory, handle) for handle in handles)
        metadata = layout.metadata_path(checkpoint, record.generation)
        needed.add(metadata)
        committables = unseal(metadata, world.files.read(metadata), Metadata).committables
        if committables is not None and committables.inline is None:
            needed.add(layout.committables_path(checkpoint, record.generation))
    orphans = [file.path for file in world.files.list(layout.CHECKPOINTS) if file.path not in needed]
    if orphans:
        raise Violation(f"orphaned after cleaning: {orphans[:5]} ({len(orphans)} in all)")
