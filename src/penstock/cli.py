"""The command line. Every command says what it does as it goes, and prints one JSON object instead with `--json`.

Commands import what they need when they run, so that `penstock --help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.remote import commands
from penstock.remote.output import Json, print_json

app = typer.Typer(
    name="penstock",
    help="Fault-tolerant stateful streaming on PySpark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")
app.add_typer(commands.app)


@app.command()
def demo(
    as_json: Json = False,
    records: Annotated[int, typer.Option(help="How many orders to process.")] = 1_000_000,
    seconds: Annotated[float, typer.Option(help="Over how many seconds to spread them.")] = 15.0,
    kill: Annotated[bool, typer.Option(help="SIGKILL a worker half-way.")] = True,
) -> None:
    """Run a keyed aggregate on embedded Spark, kill a worker in the middle, and check every committed row."""
    from penstock.demo.run import Demo

    result = Demo(records=records, seconds=seconds, kill=kill, live=not as_json).run()
    if as_json:
        print_json(result.as_dict())
    raise typer.Exit(0 if result.exactly_once else 1)


@app.command()
def verify(
    simulate: Annotated[bool, typer.Option("--simulate", help="Run whole jobs in the seeded simulation.")] = False,
    rescale: Annotated[
        bool, typer.Option("--rescale", help="Simulate jobs that change their size, from every kind of snapshot.")
    ] = False,
    operators: Annotated[
        bool, typer.Option("--operators", help="Simulate jobs of every built-in operator, against Polars.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds to run; of rescaled jobs and operators, for each cell or case.")
    ] = 200,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Replay this one seed and tell its story.")] = None,
    pair: Annotated[str | None, typer.Option(help="Of rescaled jobs: only these sizes, such as 3-7.")] = None,
    kind: Annotated[str | None, typer.Option(help="Of rescaled jobs: only this kind of snapshot.")] = None,
    case: Annotated[str | None, typer.Option(help="Of operators: only this case.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes to use; one per core by default.")] = None,
    as_json: Json = False,
) -> None:
    """Check the guarantees: random jobs, schedules, modes and crashes against independently computed answers."""
    if simulate + rescale + operators != 1:
        raise typer.BadParameter("say what to verify with: --simulate, --rescale or --operators", param_hint="verify")
    if (pair or kind) and not rescale:
        raise typer.BadParameter("they choose among rescaled jobs: --rescale", param_hint="--pair, --kind")
    from penstock.simulation import command

    chosen = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    if operators:
        if seed is not None and case is None:
            raise typer.BadParameter("one run is told by its --case and its --seed", param_hint="--seed")
        ok = command.operators(chosen, _case(case), processes, as_json, story=seed is not None)
    elif case is not None:
        raise typer.BadParameter("it chooses among operators: --operators", param_hint="--case")
    elif simulate:
        ok = command.run(chosen, processes, as_json) if seed is None else command.replay(seed, as_json)
    else:
        sizes, of_kind = _cell(pair, kind)
        if seed is not None and (sizes is None or of_kind is None):
            raise typer.BadParameter("one run is told by its --pair, its --kind and its --seed", param_hint="--seed")
        ok = command.rescale(chosen, sizes, of_kind, processes, as_json, story=seed is not None)
    raise typer.Exit(0 if ok else 1)


def _case(name: str | None) -> str | None:
    from penstock.simulation.cases.catalogue import CASES

    if name is not None and name not in CASES:
        raise typer.BadParameter(f"must be one of {', '.join(map(repr, CASES))}", param_hint="--case")
    return name


def _cell(pair: str | None, kind: str | None) -> tuple[tuple[int, int] | None, str | None]:
    from penstock.simulation.command import pair_of
    from penstock.simulation.phases import KINDS

    if kind is not None and kind not in KINDS:
        raise typer.BadParameter(f"must be one of {', '.join(map(repr, KINDS))}", param_hint="--kind")
    try:
        return None if pair is None else pair_of(pair), kind
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--pair") from None


Where = Annotated[
    str, typer.Argument(help="A savepoint, a checkpoint directory, or <checkpoint directory>/checkpoints/<number>.")
]
Number = Annotated[int | None, typer.Option("--checkpoint", help="The checkpoint; the newest complete one by default.")]


@app.command()
def inspect(path: Where, checkpoint: Number = None, as_json: Json = False) -> None:
    """Show what is in a checkpoint or savepoint: sizes by operator and state, skew, files, layers, figures."""
    from penstock.observe.inspection import inspect as look
    from penstock.observe.inspection import shown
    from penstock.observe.opening import open_checkpoint

    found = look(open_checkpoint(path, checkpoint))
    if as_json:
        print_json(found)
    else:
        typer.echo(shown(found))


@app.command()
def diff(
    path: Where,
    program: Annotated[str, typer.Argument(help="The program, which is run up to where it starts its pipeline.")],
    checkpoint: Number = None,
    as_json: Json = False,
) -> None:
    """Say whether a program would restore from a checkpoint or savepoint, per operator and state."""
    from penstock.graph.diff import diff as compare
    from penstock.observe.opening import open_checkpoint, pipeline_of

    found = compare(open_checkpoint(path, checkpoint).record, pipeline_of(program).graph())
    if as_json:
        differences = [one.as_dict() for one in found.differences]
        print_json({"restorable": found.restorable, "problem": found.problem, "states": differences})
    else:
        for one in found.differences:
            state = f".{one.state}" if one.state else ""
            typer.echo(f"{one.verdict:<12} {one.uid}{state} ({one.operator})" + (f": {one.why}" if one.why else ""))
        typer.echo(found.problem or ("restores" if found.restorable else "does not restore as it is"))
    raise typer.Exit(0 if found.restorable else 1)


@app.command()
def rehash(
    path: Where,
    target: Annotated[str, typer.Argument(help="A new directory for the new savepoint.")],
    key_groups: Annotated[int, typer.Option(help="A power of two, more than there are.")],
    checkpoint: Number = None,
    as_json: Json = False,
) -> None:
    """Raise the number of key groups, the highest parallelism of keyed state: writes a new savepoint."""
    from dataclasses import asdict

    from penstock.observe.opening import open_checkpoint
    from penstock.remote.output import progress_bar
    from penstock.store.opening import open_files
    from penstock.store.rehash import rehash as divide

    with progress_bar("rehashing", quiet=as_json) as progress:
        done = divide(open_checkpoint(path, checkpoint).snapshot, open_files(target), key_groups, progress)
    if as_json:
        print_json({**asdict(done), "savepoint": target})
    else:
        typer.echo(
            f"{target}: checkpoint {done.checkpoint} with {done.key_groups} key groups instead of "
            f"{done.former_key_groups}; {done.keyed_parts} parts divided, {done.copied_parts} copied, "
            f"{done.bytes:,} bytes"
        )


@bench.command()
def backpressure(
    as_json: Json = False,
    checkpoints: Annotated[int, typer.Option(min=1, help="Checkpoints to measure in each mode.")] = 10,
    only: Annotated[str | None, typer.Option(help="One mode only, e.g. unaligned.")] = None,
) -> None:
    """Checkpoint durations under heavy backpressure, in every mode."""
    from penstock.bench.backpressure import measure, table

    figures = measure(checkpoints, only=only, say=None if as_json else typer.echo)
    if as_json:
        print_json({mode: figure.as_dict() for mode, figure in figures.items()})
    else:
        typer.echo(table(figures))


@bench.command()
def recovery(
    as_json: Json = False,
    kills: Annotated[int, typer.Option(min=1, help="How often to kill a worker in each set-up.")] = 5,
) -> None:
    """From the SIGKILL of a worker to the first new output, with and without a spare worker."""
    from penstock.bench.recovery import measure, table

    figures = measure(kills, say=None if as_json else typer.echo)
    if as_json:
        print_json({name: figure.as_dict() for name, figure in figures.items()})
    else:
        typer.echo(table(figures))


@bench.command()
def changelog(
    as_json: Json = False,
    keys: Annotated[int, typer.Option(min=100, help="Keys of the state.")] = 10_000_000,
    every: Annotated[str, typer.Option(help="Between checkpoints.")] = "100ms",
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to measure each run.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often to measure.")] = 3,
) -> None:
    """Checkpoints at short intervals with a changelog, compared with whole ones and with none."""
    from penstock.bench.changelog import measure, table

    found = measure(keys, every, seconds, rounds, say=None if as_json else typer.echo)
    if as_json:
        print_json(found.as_dict())
    else:
        typer.echo(table(found))


@bench.command()
def snapshot(
    as_json: Json = False,
    keys: Annotated[int, typer.Option(min=1, help="Keys of the state.")] = 10_000_000,
    changed: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of them that changes.")] = 0.01,
    rounds: Annotated[int, typer.Option(min=1, help="How often to measure.")] = 5,
) -> None:
    """Snapshots of a large columnar state, whole and of what changed, compared with the speed of the disk."""
    from penstock.bench.snapshot import measure, table

    figures = measure(keys, changed, rounds, say=None if as_json else typer.echo)
    if as_json:
        print_json(figures.as_dict())
    else:
        typer.echo(table(figures))


Keys = Annotated[int, typer.Option(min=1, help="How many keys the events have.")]
Workers = Annotated[int, typer.Option(min=1, help="Workers, each a process.")]
KeyTypes = Annotated[str, typer.Option("--key-type", help="int or string.")]
Skew = Annotated[bool, typer.Option("--skew", help="Four of five events have a key of the first hundredth.")]
Backend = Annotated[str, typer.Option(help="Where functions (w3) keep their state: memory, files or rocksdb.")]
Every = Annotated[str, typer.Option(help="Time between two checkpoints; none: take none.")]
Seconds = Annotated[float, typer.Option(min=1.0, help="How long to measure, once the job is warm.")]
Plot = Annotated[Path | None, typer.Option(help="Draw what was measured, as an SVG file.")]


def _workload(name: str, help: str) -> None:
    @bench.command(name, help=help)
    def run(
        as_json: Json = False,
        keys: Keys = 1_000_000,
        seconds: Seconds = 15.0,
        workers: Workers = 2,
        key_type: KeyTypes = "int",
        skew: Skew = False,
        every: Every = "1s",
        backend: Backend = "memory",
        plot: Plot = None,
    ) -> None:
        from penstock.bench import throughput
        from penstock.bench.events import KeyType
        from penstock.remote.output import progress_bar

        if key_type not in list(KeyType):
            raise typer.BadParameter(f"choose from {', '.join(KeyType)}", param_hint="--key-type")
        pause = None if every == "none" else every
        asked = throughput.run_of(name, keys, KeyType(key_type), skew, workers, seconds, pause, backend)
        with progress_bar(name, quiet=as_json) as progress:
            figure = throughput.measure(asked, say=None if as_json else typer.echo, progress=progress)
        if plot is not None:
            plot.write_text(throughput.plot(asked, figure))
        if as_json:
            print_json(figure.as_dict())
        else:
            typer.echo(throughput.table(asked, figure))


_workload("w1", "Events per second through a running count and sum per key.")
_workload("w2", "Events per second through a count and sum per key and window of 10 s.")
_workload("w3", "Events per second through a Python function per record that keeps state per key.")


@bench.command()
def polars(
    as_json: Json = False,
    keys: Keys = 1_000_000,
    events: Annotated[int, typer.Option(min=1, help="Events to group at once.")] = 20_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often to measure.")] = 5,
    key_type: KeyTypes = "int",
    skew: Skew = False,
    workload: Annotated[str, typer.Option(help="w1: by key; w2: by key and window.")] = "w1",
) -> None:
    """What one Polars group_by over the same events does on this machine: to compare w1 and w2 with."""
    from penstock.bench.events import Events, KeyType
    from penstock.bench.reference import GROUPS, measure, table

    if workload not in GROUPS:
        raise typer.BadParameter(f"choose from {', '.join(GROUPS)}", param_hint="--workload")
    made = Events(keys, key_type=KeyType(key_type), skewed=skew)
    figure = measure(made, events, rounds, workload=workload, say=None if as_json else typer.echo)
    if as_json:
        print_json(figure.as_dict())
    else:
        typer.echo(table(figure))


@bench.command()
def nexmark(
    queries: Annotated[list[str] | None, typer.Argument(help="q0, q1, ... q22, or all.")] = None,
    as_json: Json = False,
    events: Annotated[int, typer.Option(min=1, help="Persons, auctions and bids together.")] = 5_000_000,
    workers: Workers = 2,
    every: Every = "1s",
    whole: Annotated[
        bool, typer.Option("--whole", help="Make all columns, also those that a query leaves out.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the results with DuckDB's.")] = False,
) -> None:
    """Events per second through the queries of Nexmark, an auction site."""
    from penstock.bench.nexmark.events import Nexmark
    from penstock.bench.nexmark.run import chosen, measure

    try:
        names = chosen(queries or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    pause = None if every == "none" else every
    say = None if as_json else typer.echo
    figures = measure(names, Nexmark(events, whole=whole), workers, pause, verify, say=say)
    if as_json:
        print_json({name: figure.as_dict() for name, figure in figures.items()})
    if any(figure.wrong for figure in figures.values()):
        raise typer.Exit(1)


@bench.command()
def latency(
    as_json: Json = False,
    rate: Annotated[float | None, typer.Option(help="Events per second; a tenth of full load by default.")] = None,
    keys: Keys = 1_000_000,
    seconds: Seconds = 15.0,
    workers: Workers = 2,
    every: Annotated[str, typer.Option(help="Time between two checkpoints.")] = "1s",
    plot: Plot = None,
) -> None:
    """From the creation of an event to the output of its window of 100 ms, at a tenth of full load."""
    from penstock.bench import latency as bench_latency
    from penstock.bench.events import Events
    from penstock.remote.output import progress_bar

    say = None if as_json else typer.echo
    with progress_bar("latency", quiet=as_json) as progress:
        figure = bench_latency.measure(Events(keys), seconds, workers, every, rate, say=say, progress=progress)
    if plot is not None:
        plot.write_text(bench_latency.plot(figure))
    if as_json:
        print_json(figure.as_dict())
    else:
        typer.echo(bench_latency.table(figure))


@bench.command()
def rocksdb(
    as_json: Json = False,
    memory: Annotated[str, typer.Option(help="What RocksDB may use.")] = "128MB",
    times: Annotated[float, typer.Option(min=0.1, help="The state, as a multiple of that.")] = 4.0,
    changed: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the keys that changes.")] = 0.01,
) -> None:
    """User state in RocksDB larger than its memory: memory used, throughput, incremental bytes, exact recovery."""
    from penstock.api.backends import RocksDB
    from penstock.bench.rocksdb import measure, table

    figures = measure(RocksDB(memory).settings.memory, times, changed, say=None if as_json else typer.echo)
    if as_json:
        print_json(figures.as_dict())
    else:
        typer.echo(table(figures))
    raise typer.Exit(0 if figures.within_limit and figures.exact else 1)


def main() -> None:
    """Runs a command. What a user can mend is said in a sentence, as JSON where that was asked for, and ends with 1."""
    try:
        app()
    except Exception as error:
        kind = _kind(error)
        if kind is None:
            raise
        if "--json" in sys.argv:
            print_json({"error": kind, "message": str(error)})
        else:
            typer.echo(f"penstock: {error}", err=True)
        sys.exit(1)


def _kind(error: Exception) -> str | None:
    """What machines are told of an error that a user can mend; None of any other, which is a bug of Penstock."""
    from penstock.graph.errors import PipelineError
    from penstock.remote.client import CommandError
    from penstock.store import errors as store
    from penstock.store.rehash import CannotRehash
    from penstock.store.savepoints import NoSnapshot

    if isinstance(error, CommandError):
        return error.kind
    of_the_store = (store.CorruptCheckpoint, store.UnknownFormat, store.NotComplete, store.OtherJob, NoSnapshot)
    if isinstance(error, (*of_the_store, CannotRehash, PipelineError, FileExistsError, FileNotFoundError)):
        return type(error).__name__
    return None
