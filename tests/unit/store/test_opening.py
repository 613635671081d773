"""From an address to files."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.store.local import LocalFiles
from penstock.store.objects import ObjectFiles
from penstock.store.opening import open_files


@pytest.mark.parametrize("prefix", ["", "file://", "file://localhost"])
def test_a_path_is_a_local_directory(tmp_path: Path, prefix: str) -> None:
    files = open_files(f"{prefix}{tmp_path}/job one")
    assert isinstance(files, LocalFiles)
    files.write("f", [b"x"])
    assert (tmp_path / "job one" / "f").read_bytes() == b"x"


@pytest.mark.parametrize("uri", ["s3://bucket/orders", "gs://bucket/orders", "az://container/orders"])
def test_object_stores_are_reached_through_their_own_preconditions(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "nobody")
    files = open_files(uri)
    assert isinstance(files, ObjectFiles)
    assert "orders" in repr(files)


def test_a_scheme_without_conditional_create_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hdfs:// is not supported.*s3://.*mounted as a directory"):
        open_files("hdfs://namenode/orders")


def test_an_address_that_names_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="the checkpoint directory is empty"):
        open_files("")
    with pytest.raises(ValueError, match=r"name no host; use file:///server/share"):
        open_files("file://server/share")
    with pytest.raises(ValueError, match="not a usable address"):
        open_files("az://")
