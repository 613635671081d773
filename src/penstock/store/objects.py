"""Files in an object store: S3, Google Cloud Storage, Azure.

The log of a job's directory needs a conditional create. `pyarrow.fs` offers none, so this goes through `obstore` (the
Rust `object_store`), which sends the stores' own preconditions. Objects appear all at once, so there are no temporary
files. `move` is copy and delete: the target appears at once, but a crash may leave the source as well; whoever moves
repeats it. Credentials, regions and endpoints come from the environment, as the stores' own tools read them.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.state.parts import Buffer
from penstock.store.files import FileInfo

try:
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
    from obstore.store import from_url
except ImportError as missing:
    raise ImportError(
        "object stores need the package obstore: install penstock[objects] on the driver and on all workers"
    ) from missing

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SMALL = 8 << 20
"""Up to here an object is sent in one request, beyond in parts."""


def open_objects(uri: str) -> ObjectFiles:
    try:
        return ObjectFiles(from_url(uri), uri)
    except (BaseError, ValueError) as error:
        raise ValueError(f"{uri} is not a usable address of an object store: {_first_line(error)}") from error


class ObjectFiles:
    def __init__(self, store: ObjectStore, address: str) -> None:
        self._store = store
        self._address = address.rstrip("/")

    def __repr__(self) -> str:
        return f"ObjectFiles({self._address!r})"

    def _named(self, path: str) -> str:
        """For error messages."""
        return f"{self._address}/{path}"

    def open_write(self, path: str) -> _Writer:
        return _Writer(self._store, path, self._named(path))

    def write_in_place(self, path: str, chunks: Iterable[Buffer]) -> int:
        return self.write(path, chunks)

    def write(self, path: str, chunks: Iterable[Buffer]) -> int:
        size = 0

        def counted() -> Iterator[Buffer]:
            nonlocal size
            for chunk in chunks:
                size += memoryview(chunk).nbytes
                yield chunk

        with _explained("write", self._named(path)):
            content = counted()
            start: list[Buffer] = []
            for chunk in content:
                start.append(chunk)
                if size > _SMALL:
                    obstore.put(self._store, path, _chained(start, content))
                    return size
            obstore.put(self._store, path, b"".join(start), use_multipart=False)
        return size

    def create(self, path: str, content: bytes) -> None:
        with _explained("create", self._named(path)):
            obstore.put(self._store, path, content, mode="create", use_multipart=False)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        with _explained("read", self._named(path)):
            if offset == 0 and length is None:
                return memoryview(obstore.get(self._store, path).bytes())
            # Stores differ in what they answer to a range beyond the end; a reader wants to know how much there is.
            left = max(0, obstore.head(self._store, path)["size"] - offset)
            wanted = left if length is None else min(left, length)
            if wanted == 0:
                return memoryview(b"")
            return memoryview(obstore.get_range(self._store, path, start=offset, length=wanted))

    def list(self, directory: str) -> Sequence[FileInfo]:
        with _explained("list", self._named(directory)):
            found = [
                FileInfo(entry["path"], entry["size"], entry["last_modified"].timestamp())
                for page in obstore.list(self._store, directory or None)
                for entry in page
            ]
        return sorted(found, key=lambda file: file.path)

    def names(self, directory: str) -> Sequence[str]:
        with _explained("list", self._named(directory)):
            found = obstore.list_with_delimiter(self._store, directory)["objects"]
        return [entry["path"] for entry in found]

    def delete(self, path: str) -> None:
        with _explained("delete", self._named(path)), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def move(self, source: str, target: str) -> None:
        with _explained("move", self._named(source)):
            obstore.rename(self._store, source, target, overwrite=True)

    def exists(self, path: str) -> bool:
        with _explained("look for", self._named(path)):
            try:
                obstore.head(self._store, path)
            except FileNotFoundError:
                return False
            return True

    def remove_stale(self, directory: str) -> int:
        """Parts of an upload that was never finished are not objects; the bucket's lifecycle rules remove them."""
        return 0


class _Writer:
    def __init__(self, store: ObjectStore, path: str, name: str) -> None:
        self._name = name
        self._size = 0
        with _explained("open", name):
            self._upload = obstore.open_writer(store, path)

    def write(self, chunk: Buffer) -> None:
        with _explained("write", self._name):
            self._upload.write(chunk)
        self._size += memoryview(chunk).nbytes

    def close(self) -> int:
        with _explained("write", self._name):
            self._upload.close()
        return self._size

    def abandon(self) -> None:
        """An upload that is never closed makes no object."""


def _chained(start: list[Buffer], rest: Iterator[Buffer]) -> Iterator[Buffer]:
    yield from start
    yield from rest


@contextlib.contextmanager
def _explained(action: str, name: str) -> Iterator[None]:
    """Errors of the store as `OSError`, as the rest of Penstock expects them."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, f"cannot {action} {name}: it exists already") from error
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, f"cannot {action} {name}: no such object") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        advice = "The credentials in the environment of driver and workers must allow reading, writing and deleting"
        raise PermissionError(errno.EACCES, f"cannot {action} {name}: {_first_line(error)}. {advice}") from error
    except BaseError as error:
        raise OSError(errno.EIO, f"cannot {action} {name}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
