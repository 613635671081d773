"""The comparison as people read it: tables on the terminal, and the one that the README quotes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from .cases import Case, System, Variant, Workload
from .environments import version
from .summary import Goal, Line, Spread, Summary, goals

BEGIN, END = "<!-- compare: begin -->", "<!-- compare: end -->"
"""In the README, around what a comparison writes."""
NAMES = {
    System.PENSTOCK: "Penstock",
    System.FLINK: "Flink",
    System.SPARK: "Spark Structured Streaming",
    System.BYTEWAX: "Bytewax",
    System.POLARS: "Polars `group_by`",
}
PACKAGES = {System.FLINK: "apache-flink", System.SPARK: "pyspark", System.BYTEWAX: "bytewax"}
WORK = {
    Workload.W1: "w1: running count and sum per key",
    Workload.W2: "w2: count and sum per key and window of 10 s",
    Workload.W3: "w3: a Python function per record, with state per key",
}
PYFLINK = (System.FLINK, Workload.W3)
NONE = "-"


def show(console: Console, summary: Summary) -> None:
    console.print(_figures(summary.lines.values()))
    latencies = [line for case, line in summary.lines.items() if case.workload is Workload.LATENCY]
    if latencies:
        console.print(_latencies(latencies))
    console.print(_goals(goals(summary)))
    console.print("For the README:\n")
    console.print(markdown(summary), markup=False, highlight=False, soft_wrap=True)


def _figures(lines: Iterable[Line]) -> Table:
    table = Table(title="Medians over the rounds (least..most)")
    for name in ("", "events/s", "checkpoints", "p50", "p99", "written", ""):
        table.add_column(name, justify="left" if not name else "right")
    ordered = sorted(lines, key=lambda line: (list(Workload).index(line.case.workload), line.case.variant != ""))
    for line in ordered:
        if line.case.workload is not Workload.LATENCY:
            table.add_row(
                str(line.case),
                _rate(line.spread("events_per_s")),
                _number(line.median("checkpoints"), ""),
                _number(line.median("checkpoint_ms_p50"), " ms"),
                _number(line.median("checkpoint_ms_p99"), " ms"),
                _number((line.median("bytes") or 0) / 1e6 or None, " MB"),
                line.remark,
            )
    return table


def _latencies(lines: Sequence[Line]) -> Table:
    table = Table(title="Latency from an event's creation to its window's output, at a tenth of full load")
    for name in ("", "events/s", "a window lasts", "p50", "p99", "p99.9", ""):
        table.add_column(name, justify="left" if not name else "right")
    for line in lines:
        shown = [_number(line.median(name), " ms", 1) for name in ("window_ms", "p50_ms", "p99_ms", "p999_ms")]
        table.add_row(str(line.case), _rate(line.spread("rate")), *shown, line.remark)
    return table


def _goals(wanted: Sequence[Goal]) -> Table:
    table = Table(title="Goals")
    for name in ("", "measured", "goal", "met"):
        table.add_column(name, justify="left" if not name else "right")
    for goal in wanted:
        met = {None: NONE, True: "yes", False: "NO"}[goal.is_met]
        bound = f"{'at most' if goal.at_most else 'at least'} {goal.bound:g}{goal.unit}"
        table.add_row(goal.what, _short(goal.value, goal.unit), bound, met)
    return table


def markdown(summary: Summary) -> str:
    """Ratios only: how many times as many events per second as each other system Penstock does."""
    peers = [system for system in System if system is not System.PENSTOCK]
    versions = {system: f" {version(package)}" for system, package in PACKAGES.items()}
    heads = [NAMES[system] + versions.get(system, "") for system in peers]
    lines = [
        "| events/s of Penstock, as a multiple of | " + " | ".join(heads) + " |",
        "|---|" + "---:|" * len(peers),
    ]
    for workload, work in WORK.items():
        if summary.rate(System.PENSTOCK, workload) is not None:
            cells = [_cell(summary, workload, system) for system in peers]
            lines.append(f"| {work} | " + " | ".join(cells) + " |")
    said = [
        f"{variant} {share:.0%}"
        for variant in (Variant.MANY_KEYS, Variant.STRING_KEYS, Variant.SKEWED)
        if (share := summary.variant(variant)) is not None
    ]
    if said:
        lines += ["", f"w1 with other keys, compared with 1 M uniform whole numbers: {', '.join(said)}."]
    latency = Case(System.PENSTOCK, Workload.LATENCY)
    figures = [summary.figure(latency, name) for name in ("p50_ms", "p99_ms", "p999_ms")]
    if None not in figures:
        p50, p99, p999 = figures
        lines.append(f"Latency at a tenth of full load: p50 {p50:.1f} ms, p99 {p99:.1f} ms, p99.9 {p999:.1f} ms.")
    return "\n".join([*lines, "", _conditions(summary)])


def _conditions(summary: Summary) -> str:
    """What the figures rest on, which is not always a whole comparison."""
    rounds = {run.round for line in summary.lines.values() for run in line.runs}
    said = f"{len(rounds)} {'round' if len(rounds) == 1 else 'rounds'}."
    modes = [case.variant or "small bundles" for case in summary.lines if (case.system, case.workload) == PYFLINK]
    return said + (f" PyFlink (w3) was tried with: {', '.join(modes)}." if modes else "")


def into(text: str, block: str) -> str:
    """A document with the block in the place of an earlier one, between the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no place for the table: it goes between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def _cell(summary: Summary, workload: Workload, system: System) -> str:
    ratio = summary.ratio(workload, system)
    line = summary.best(system, workload)
    if ratio is None:
        return NONE if line is None else "failed"
    no_checkpoint = line is not None and "no checkpoint" in line.remark
    return _short(ratio, " x") + (" (without a checkpoint)" if no_checkpoint else "")


def _rate(spread: Spread | None) -> str:
    if spread is None:
        return NONE
    scale, unit = (1e6, " M") if spread.median >= 1e6 else (1e3, " k")
    return f"{spread.median / scale:.2f}{unit} ({spread.low / scale:.2f}..{spread.high / scale:.2f})"


def _number(value: float | None, unit: str, digits: int = 0) -> str:
    return NONE if value is None else f"{value:,.{digits}f}{unit}"


def _short(value: float | None, unit: str) -> str:
    """Two significant digits are what such a measurement gives."""
    if value is None:
        return NONE
    return f"{value:.0f}{unit}" if value >= 10 else f"{value:.1f}{unit}" if value >= 1 else f"{value:.2f}{unit}"
