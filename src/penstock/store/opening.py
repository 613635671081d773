"""From the address of a directory to the files in it."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from penstock.store.files import Files
from penstock.store.local import LocalFiles

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss", "azure", "adl"})


def open_files(uri: str) -> Files:
    """A local path, `file://`, or an object store: `s3://bucket/orders`, `gs://...`, `az://...`. The directory need not
    exist.

    Anything else is refused: a store of checkpoints must offer a conditional create, which is what keeps two drivers
    apart.
    """
    parts = urlsplit(uri)
    if parts.scheme == "":
        if not uri:
            raise ValueError("the checkpoint directory is empty: give a path or an address such as s3://bucket/orders")
        return LocalFiles(uri)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{uri}: file:// addresses name no host; use file:///{parts.netloc}{parts.path}")
        return LocalFiles(unquote(parts.path))
    if parts.scheme in OBJECT_STORES:
        from penstock.store.objects import open_objects  # it needs an optional dependency

        return open_objects(uri)
    known = ", ".join(sorted(f"{scheme}://" for scheme in OBJECT_STORES))
    raise ValueError(
        f"{uri}: {parts.scheme}:// is not supported for checkpoints and sinks. Use a path, file://, or one of {known}; "
        "other file systems (HDFS, NFS) work where they are mounted as a directory with hard links and atomic rename"
    )
