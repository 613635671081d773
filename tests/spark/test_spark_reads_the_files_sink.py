"""Spark as a reader of what the files sink has committed, while more is pending."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.connectors.support import context, written

from penstock.connectors.files_sink import Files
from penstock.core.ids import CheckpointId, Uid
from penstock.spark.session import session_for

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("is_mount", [False, True])
def test_spark_sees_committed_records_once_and_pending_ones_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mount: bool
) -> None:
    target = tmp_path / "orders"
    if is_mount:
        target.mkdir()
        monkeypatch.setattr("os.path.ismount", lambda path: path == str(target))
    sink = Files(target)
    monkeypatch.undo()
    writer = sink.writer()
    writer.open(context(uid="out"))
    committer = sink.committer(Uid("out"), "job")
    for checkpoint, number in enumerate((1, 2, 100), start=1):
        writer.write(pa.record_batch({"n": [number]}))
        committables = writer.prepare(CheckpointId(checkpoint))
        written(writer.capture(), 0)
        if number < 100:
            committer.commit(CheckpointId(checkpoint), committables)
    assert list(tmp_path.rglob("*.parquet.pending"))
    read = session_for(2, None).read.parquet(str(target))
    assert sorted(row.n for row in read.collect()) == [1, 2]
