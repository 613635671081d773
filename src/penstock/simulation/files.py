"""A file system in memory, for the simulation and for tests that crash between any two operations."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Sequence

from penstock.state.parts import Buffer
from penstock.store.files import FileInfo

Hook = Callable[[str, str], None]
"""Called with the operation's name and its path; raises to let the operation fail."""


def _nothing(operation: str, path: str) -> None:
    pass


class MemoryFiles:
    """Keeps every file as bytes. Deterministic: listings are sorted, times come from `now`.

    `before` may raise before an operation has any effect: a crash, a full disk. `after` may raise when the effect is
    there already: an answer that got lost.
    """

    def __init__(self, before: Hook = _nothing, after: Hook = _nothing, now: Callable[[], float] = lambda: 0.0) -> None:
        self.before = before
        self.after = after
        self._now = now
        self._files: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.RLock()

    def open_write(self, path: str) -> _Writer:
        self.before("open_write", path)
        return _Writer(self, path)

    def write(self, path: str, chunks: Iterable[Buffer]) -> int:
        self.before("write", path)
        content = b"".join(chunks)
        self._put(path, content)
        self.after("write", path)
        return len(content)

    def write_in_place(self, path: str, chunks: Iterable[Buffer]) -> int:
        """Whoever is killed before the end leaves a part of the file."""
        content = b"".join(chunks)
        try:
            return self.write(path, [content])
        except Exception:
            raise
        except BaseException:
            with self._lock:
                self._files.setdefault(path, (content[: len(content) // 2], self._now()))
            raise

    def create(self, path: str, content: bytes) -> None:
        self.before("create", path)
        with self._lock:
            if path in self._files:
                raise FileExistsError(errno.EEXIST, "exists already", path)
            self._files[path] = bytes(content), self._now()
        self.after("create", path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        self.before("read", path)
        with self._lock:
            content, _ = self._found(path)
        return memoryview(content)[offset:] if length is None else memoryview(content)[offset : offset + length]

    def list(self, directory: str) -> Sequence[FileInfo]:
        self.before("list", directory)
        prefix = f"{directory.rstrip('/')}/" if directory else ""
        with self._lock:
            return [
                FileInfo(path, len(content), modified)
                for path, (content, modified) in sorted(self._files.items())
                if path.startswith(prefix)
            ]

    def names(self, directory: str) -> Sequence[str]:
        self.before("names", directory)
        prefix = f"{directory}/"
        with self._lock:
            return [path for path in self._files if path.startswith(prefix) and "/" not in path[len(prefix) :]]

    def delete(self, path: str) -> None:
        self.before("delete", path)
        with self._lock:
            self._files.pop(path, None)
        self.after("delete", path)

    def move(self, source: str, target: str) -> None:
        self.before("move", source)
        with self._lock:
            self._files[target] = self._found(source)
            if source != target:
                del self._files[source]
        self.after("move", source)

    def exists(self, path: str) -> bool:
        self.before("exists", path)
        with self._lock:
            return path in self._files

    def remove_stale(self, directory: str) -> int:
        self.before("remove_stale", directory)
        return 0

    def _put(self, path: str, content: bytes) -> None:
        with self._lock:
            self._files[path] = content, self._now()

    def _found(self, path: str) -> tuple[bytes, float]:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None


class _Writer:
    """Shows what was written so far after every chunk, as a file that is open under its own name does."""

    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._content = bytearray()
        files._put(path, b"")

    def write(self, chunk: Buffer) -> None:
        self._files.before("append", self._path)
        self._content += chunk
        self._files._put(self._path, bytes(self._content))
        self._files.after("append", self._path)

    def close(self) -> int:
        self._files.before("close", self._path)
        self._files.after("close", self._path)
        return len(self._content)

    def abandon(self) -> None:
        """What was written stays, as after a crash."""
