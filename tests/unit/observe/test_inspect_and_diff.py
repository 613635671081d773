"""`penstock inspect` and `penstock diff` on a real checkpoint directory and real programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.core.barrier import Mode, Purpose
from penstock.core.handles import KeyGroupRange, PartKind
from penstock.core.ids import Attempt, CheckpointId, SubtaskId
from penstock.core.record import CheckpointRecord, SubtaskRecord
from penstock.graph.errors import PipelineError
from penstock.graph.record import graph_record
from penstock.observe.opening import pipeline_of
from penstock.state.parts import CapturedPart
from penstock.store import layout
from penstock.store.checkpoints import CheckpointStore
from penstock.store.local import LocalFiles
from penstock.store.parts import write_parts
from penstock.store.savepoints import NoSnapshot

PROGRAM = """
import penstock as ps

class Keep(ps.KeyedFunction):
    total = ps.value({total}, default=0)
    names = ps.list(str)

    def process(self, row, ctx):
        pass

p = ps.Pipeline("orders", parallelism=1)
rows = p.source(ps.sources.Generator(10, {{"user": lambda i: i}}), uid="in")
rows.key_by("user").process(Keep, returns={{"user": int}}, uid="keep").sink(ps.sinks.Discard(), uid="out")
{end}
"""


def program(directory: Path, total: str = "int", end: str = "p.run()") -> str:
    path = directory / f"app_{total}.py"
    path.write_text(PROGRAM.format(total=total, end=end))
    return str(path)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Of a job with one complete checkpoint."""
    graph = pipeline_of(program(tmp_path)).graph()
    files = LocalFiles(str(tmp_path / "checkpoints-of-orders"))
    store = CheckpointStore(files, "orders")
    generation = store.claim().generation
    subtasks = []
    for chain in graph.chains:
        subtask = SubtaskId(chain.id, 0)
        parts = {
            spec.uid: [
                CapturedPart(state.name, PartKind.KEYED, lambda: (b"x" * 10,), key_groups=KeyGroupRange(0, 128))
                for state in spec.states
            ]
            for spec in chain.operators
        }
        path = layout.data_path(CheckpointId(1), generation, Attempt(1), subtask, 0)
        subtasks.append(SubtaskRecord(subtask, tuple(write_parts(files, path, parts))))
    store.complete(
        CheckpointRecord(
            CheckpointId(1),
            generation,
            Attempt(1),
            Mode.ALIGNED,
            Purpose.CHECKPOINT,
            1,
            2,
            graph_record(graph),
            tuple(subtasks),
        )
    )
    store.record_statistics({"checkpoint": 1, "duration_ms": 5})
    return str(tmp_path / "checkpoints-of-orders")


def run(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout)


def test_inspect_shows_sizes_by_operator_and_state_files_and_figures(directory: str) -> None:
    code, found = run("inspect", directory)
    assert (code, found["job"], found["checkpoint"], found["state_bytes"]) == (0, "orders", 1, 20)
    (keep,) = [operator for operator in found["operators"] if operator["uid"] == "keep"]
    assert [(state["name"], state["kind"], state["type"], state["bytes"]) for state in keep["states"]] == [
        ("total", "value", "int", 10),
        ("names", "list", "list[str]", 10),
    ]
    assert keep["states"][0]["key_groups"] == [{"start": 0, "end": 128, "bytes": 10}]
    assert keep["states"][0]["skew"] == 1.0
    assert keep["key"] == ["user: int64"]
    assert sum(file["bytes"] for file in found["files"]) == 20
    assert found["statistics"]["duration_ms"] == 5


def test_inspect_takes_the_directory_of_one_checkpoint_and_speaks_to_people(directory: str) -> None:
    result = CliRunner().invoke(app, ["inspect", f"{directory}/checkpoints/1"], catch_exceptions=False)
    assert "checkpoint 1 of job 'orders'" in result.stdout
    assert "total: value of int, 10 bytes" in result.stdout


@pytest.mark.parametrize("chosen", [(), ("--checkpoint", "1")])
def test_inspect_says_what_is_no_checkpoint_directory(tmp_path: Path, chosen: tuple[str, ...]) -> None:
    with pytest.raises(NoSnapshot, match="is no checkpoint directory"):
        run("inspect", str(tmp_path), *chosen)


def test_inspect_and_diff_take_a_savepoint(directory: str, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    CheckpointStore(LocalFiles(directory), "orders").export(CheckpointId(1), LocalFiles(saved))
    code, found = run("inspect", saved)
    assert (code, found["job"], found["savepoint"], found["state_bytes"]) == (0, "orders", True, 20)
    assert found["duration_ms"] == 1 and found["restorable"] == []
    assert [file["path"] for file in found["files"]] == ["data/0.data"]
    assert (tmp_path / "saved" / "data" / "0.data").stat().st_size == 20
    shown = CliRunner().invoke(app, ["inspect", saved], catch_exceptions=False).stdout
    assert "savepoint of checkpoint 1 of job 'orders'" in shown and "taken in 1 ms" in shown
    code, found = run("diff", saved, program(tmp_path))
    assert (code, found["restorable"]) == (0, True)


def test_inspect_tells_how_long_it_took_and_who_was_slowest(directory: str) -> None:
    _, found = run("inspect", directory)
    assert found["duration_ms"] == 5
    assert {"sync_ms", "async_ms", "alignment_ms"} <= found["subtasks"]["keep[0]"]["figures"].keys()
    shown = CliRunner().invoke(app, ["inspect", directory], catch_exceptions=False).stdout
    assert "taken in 5 ms" in shown and "slowest subtask" in shown


def test_diff_of_the_same_program_restores_and_nothing_was_started(directory: str, tmp_path: Path) -> None:
    code, found = run("diff", directory, program(tmp_path))
    assert (code, found["restorable"], found["problem"]) == (0, True, "")
    assert {state["verdict"] for state in found["states"]} == {"same"}


def test_diff_names_the_state_that_cannot_be_read(directory: str, tmp_path: Path) -> None:
    code, found = run("diff", directory, program(tmp_path, "bytes"))
    verdicts = {(state["uid"], state["state"]): state for state in found["states"]}
    assert (code, found["restorable"]) == (1, False)
    assert verdicts["keep", "total"]["verdict"] == "incompatible"
    assert "int cannot become bytes" in verdicts["keep", "total"]["why"]
    assert verdicts["keep", "names"]["verdict"] == "same"


def test_a_program_that_only_makes_its_pipeline_is_compared_too(directory: str, tmp_path: Path) -> None:
    _, found = run("diff", directory, program(tmp_path, "float", end=""))
    assert {state["verdict"] for state in found["states"]} == {"same", "changed"}


def test_a_program_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1")
    with pytest.raises(PipelineError, match="makes no pipeline"):
        pipeline_of(str(empty))
