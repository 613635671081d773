"""The rates of a comparison as a chart."""

from __future__ import annotations

from penstock.bench.svg import COLOURS, Bar, bars

from .cases import System, Workload
from .report import NAMES, WORK
from .summary import Summary


def chart(summary: Summary) -> str:
    """Events per second by workload, an SVG document."""
    shown = []
    for workload, work in WORK.items():
        for number, system in enumerate(System):
            rate = summary.rate(system, workload)
            if rate:
                name = NAMES[system].replace("`", "")
                shown.append(Bar(name, rate, _rate(rate, summary, workload, system), COLOURS[number], work))
    return bars("Events per second (logarithmic), medians, checkpoints every second", shown)


def _rate(rate: float, summary: Summary, workload: Workload, system: System) -> str:
    text = f"{rate / 1e6:.2f} M" if rate >= 1e5 else f"{rate / 1e3:.1f} k"
    own = summary.rate(System.PENSTOCK, workload)
    return text if own is None or system is System.PENSTOCK else f"{text} (1/{own / rate:.1f})"
