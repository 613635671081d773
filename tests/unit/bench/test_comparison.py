"""The comparison with other systems: what is measured when, what is kept of it, and what is said about it."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.comparison import running
from bench.comparison.cases import RUNS, Case, System, Variant, Workload, cases, schedule
from bench.comparison.plot import chart
from bench.comparison.processes import members, run
from bench.comparison.report import BEGIN, END, into, markdown, show
from bench.comparison.results import OtherSettings, Results, Run
from bench.comparison.summary import Summary, goals
from bench.comparison.systems import QUICK, Settings, command
from rich.console import Console

W1 = Case(System.PENSTOCK, Workload.W1)
FLINK_W1 = Case(System.FLINK, Workload.W1)
FLINK_W3 = Case(System.FLINK, Workload.W3)


def measured(case: Case, rate: float, round: int = 0, **figures: Any) -> Run:
    return Run(round, case, {"events_per_s": rate, "checkpoints": 10, **figures})


def silent(line: str) -> None:
    """Says nothing."""


# ---- what is measured ----
def test_every_system_runs_what_it_can_of_what_was_asked_for() -> None:
    chosen = cases(list(System), list(Workload), variants=False)
    assert {(case.system, case.workload) for case in chosen} == {
        (system, workload) for system, workloads in RUNS.items() for workload in workloads
    }
    assert len(chosen) == len(set(chosen))


def test_the_latency_of_a_system_that_must_be_told_its_load_comes_after_what_tells_it() -> None:
    chosen = cases([System.FLINK], [Workload.LATENCY])
    assert chosen == [Case(System.FLINK, Workload.W2), Case(System.FLINK, Workload.LATENCY)]


@pytest.mark.parametrize("rounds", [1, 3, 7])
def test_every_case_has_its_turn_in_every_round(rounds: int) -> None:
    chosen = cases(list(System), list(Workload))
    planned = schedule(chosen, rounds)
    assert sorted(planned, key=str) == sorted(((number, case) for number in range(rounds) for case in chosen), key=str)
    for number in range(rounds):
        workloads = [list(Workload).index(case.workload) for of_round, case in planned if of_round == number]
        assert workloads == sorted(workloads)


def test_another_system_begins_every_round() -> None:
    planned = schedule(cases([System.PENSTOCK, System.FLINK, System.SPARK], [Workload.W1], variants=False), 3)
    begin = [next(case.system for of_round, case in planned if of_round == number) for number in range(3)]
    assert begin == [System.PENSTOCK, System.FLINK, System.SPARK]


def test_penstock_is_asked_for_the_variant_that_is_meant(tmp_path: Path) -> None:
    def asked(variant: Variant) -> list[str]:
        return command(Case(System.PENSTOCK, Workload.W1, variant), Settings(), tmp_path, None, silent)

    assert asked(Variant.PLAIN)[-2:] == ["--seconds", "15"]
    assert "10000000" in asked(Variant.MANY_KEYS)
    assert asked(Variant.STRING_KEYS)[-2:] == ["--key-type", "string"]
    assert asked(Variant.SKEWED)[-1] == "--skew"


# ---- what is kept ----
def test_an_interrupted_comparison_goes_on_with_what_it_has_and_tries_again_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "results" / "compare.json"
    first = Results(path, QUICK)
    first.add(measured(W1, 5e6))
    first.add(Run(0, FLINK_W1, failure="it did not start"))
    again = Results(path, QUICK, resume=True)
    assert again.has(0, W1)
    assert not again.has(1, W1)
    assert not again.has(0, FLINK_W1)
    assert again.rates(W1) == [5e6]


def test_without_resume_a_comparison_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    Results(path, QUICK).add(measured(W1, 5e6))
    assert Results(path, QUICK).runs == []


def test_results_of_other_settings_are_not_put_together(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    Results(path, QUICK).add(measured(W1, 5e6))
    with pytest.raises(OtherSettings, match="another file"):
        Results(path, Settings(), resume=True)


# ---- what is made of it ----
def test_ratios_are_those_of_medians() -> None:
    rates = {W1: (10e6, 30e6, 20e6), FLINK_W1: (1e6, 4e6, 2e6)}
    summary = Summary([measured(case, rate, n) for case, of in rates.items() for n, rate in enumerate(of)])
    assert summary.ratio(Workload.W1, System.FLINK) == 10.0
    assert summary.ratio(Workload.W1, System.SPARK) is None


def test_the_better_mode_of_a_peer_counts_but_no_easier_variant_of_penstock() -> None:
    threads = Case(System.FLINK, Workload.W3, Variant.THREADS)
    skewed = Case(System.PENSTOCK, Workload.W1, Variant.SKEWED)
    summary = Summary([measured(FLINK_W3, 2e3), measured(threads, 5e3), measured(W1, 1e6), measured(skewed, 9e6)])
    assert summary.rate(System.FLINK, Workload.W3) == 5e3
    assert summary.rate(System.PENSTOCK, Workload.W1) == 1e6
    assert summary.variant(Variant.SKEWED) == 9.0


def test_goals_are_met_missed_or_not_measured() -> None:
    latency = Run(0, Case(System.PENSTOCK, Workload.LATENCY), {"p50_ms": 9.0, "p99_ms": 120.0})
    found = {goal.what: goal.is_met for goal in goals(Summary([measured(W1, 10e6), measured(FLINK_W1, 1e6), latency]))}
    assert found["w1 against flink"] is True
    assert found["w2 against flink"] is None
    assert found["latency at a tenth of full load, p50"] is True
    assert found["latency at a tenth of full load, p99"] is False


def test_failures_and_missing_checkpoints_are_said_in_every_table() -> None:
    runs = [
        measured(W1, 10e6),
        Run(0, FLINK_W1, failure="no such thing\nand a long story"),
        measured(Case(System.SPARK, Workload.W1), 2e5, checkpoints=0),
    ]
    summary = Summary(runs)
    assert "| failed | 50 x (without a checkpoint) |" in markdown(summary)
    out = io.StringIO()
    show(Console(file=out, width=200), summary)
    assert "failed: no such thing" in out.getvalue()
    assert "long story" not in out.getvalue()
    assert "no checkpoint completed" in out.getvalue()


def test_the_table_takes_the_place_of_an_earlier_one() -> None:
    readme = f"# Penstock\n{BEGIN}\nold\n{END}\nmore"
    once = into(readme, "new")
    assert once == f"# Penstock\n{BEGIN}\nnew\n{END}\nmore"
    assert into(once, "new") == once
    with pytest.raises(ValueError, match="no place"):
        into("# Penstock", "new")


def test_the_table_names_the_versions_that_are_installed() -> None:
    head = markdown(Summary([measured(W1, 10e6)])).splitlines()[0]
    assert re.search(r"Flink \d+\.\d+ \| Spark Structured Streaming \d+\.\d+ \| Bytewax \d+\.\d+", head)


def test_the_table_says_what_it_rests_on() -> None:
    threads = Case(System.FLINK, Workload.W3, Variant.THREADS)
    runs = [measured(W1, 10e6), measured(W1, 10e6, round=1), measured(FLINK_W3, 2e3), measured(threads, 2e3)]
    assert markdown(Summary(runs)).splitlines()[-1] == (
        "2 rounds. PyFlink (w3) was tried with: small bundles, thread mode."
    )


def test_a_quick_comparison_leaves_the_slow_variants_out() -> None:
    chosen = cases([System.PENSTOCK, System.FLINK], [Workload.W1, Workload.W3], slow=False)
    assert Case(System.PENSTOCK, Workload.W1, Variant.MANY_KEYS) in chosen
    assert [case for case in chosen if case.system is System.FLINK] == [FLINK_W1, FLINK_W3]


def test_the_chart_shows_every_rate() -> None:
    drawn = chart(Summary([measured(W1, 10e6), measured(FLINK_W1, 1e6)]))
    texts = [text.text for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"Penstock", "Flink", "10.00 M", "1.00 M (1/10.0)"} <= set(texts)


# ---- running ----
FIGURES = {"events_per_s": 5, "checkpoints": 1}


def outcome_of(program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, timeout: float = 60.0) -> Run:
    monkeypatch.setattr(running, "command", lambda *asked: [sys.executable, "-c", program])
    monkeypatch.setattr(running, "timeout", lambda settings: timeout)
    return running.measure(0, W1, QUICK, Results(tmp_path / "compare.json", QUICK), silent)


def test_figures_are_read_past_what_else_a_system_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = outcome_of(f"print('hello'); print('''{json.dumps(FIGURES)}''')", monkeypatch, tmp_path)
    assert run.figures == FIGURES
    assert not run.failure


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ("raise SystemExit('the disk is full')", "the disk is full"),
        ("import os; os.kill(os.getpid(), 9)", "it said nothing"),
        ("print('hello')", "no figures"),
    ],
)
def test_a_system_that_fails_is_a_result_too(
    program: str, failure: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = outcome_of(program, monkeypatch, tmp_path)
    assert run.failure.startswith(failure)
    assert not run.figures


def test_a_system_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = outcome_of("import time; time.sleep(600)", monkeypatch, tmp_path, timeout=0.5)
    assert run.failure.startswith("not done after")


def test_the_latency_of_a_peer_without_a_known_load_fails_with_the_reason(tmp_path: Path) -> None:
    latency = Case(System.FLINK, Workload.LATENCY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.comparison.systems.interpreter", lambda peer, say: Path(sys.executable))
        run = running.measure(0, latency, QUICK, Results(tmp_path / "compare.json", QUICK), silent)
    assert "tenth of its full load" in run.failure


LEAVES_A_DAEMON = """
import os, subprocess, sys
code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0)
child.stdout.readline()
print(os.getsid(0))
"""


def test_nothing_that_a_measurement_started_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.comparison.processes._GRACE_SECONDS", 0.5)
    began = time.monotonic()
    ended = run([sys.executable, "-c", LEAVES_A_DAEMON], timeout=60, say=silent)
    assert ended.code == 0
    assert members(int(ended.output)) == []
    assert time.monotonic() - began < 30


def test_what_a_measurement_says_is_heard_line_by_line() -> None:
    heard: list[str] = []
    run([sys.executable, "-c", "import sys; print('one\\ntwo', file=sys.stderr)"], timeout=60, say=heard.append)
    assert heard == ["one", "two"]
