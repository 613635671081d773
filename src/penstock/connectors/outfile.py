"""One output file on its way: batches are gathered, encoded in steps of bounded size, and in the end sealed.

A file is written by its task's thread. Once it takes no more batches it may be sealed (encoded to the end and made
durable) by any thread, once: the work happens in the first call, every later call has the same outcome.
"""

from __future__ import annotations

import threading

import pyarrow as pa

from penstock.connectors.encoders import new_encoder
from penstock.store.files import Files, FileWriter


class OutputFile:
    def __init__(self, files: Files, path: str, schema: pa.Schema, format: str, compression: str):
        self.path = path
        self.rows = 0
        self._files = files
        self._file = _Counted(files.open_write(path))
        self._encoder = new_encoder(format, self._file, schema, compression)
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._sealing = threading.Lock()
        self._failure: BaseException | None = None
        self.sealed = False

    @property
    def bytes(self) -> int:
        """Written so far; what is gathered but not encoded yet does not count."""
        return self._file.bytes

    def write(self, batch: pa.RecordBatch) -> None:
        for piece in _cut(batch, self._encoder.step_bytes):
            self._gathered.append(piece)
            self._gathered_bytes += piece.nbytes
            if self._gathered_bytes >= self._encoder.step_bytes:
                self._encode()
        self.rows += batch.num_rows

    def seal(self) -> None:
        """Raises what went wrong, in this call or an earlier one."""
        with self._sealing:
            self.raise_failure()
            if self.sealed:
                return
            try:
                self._encode()
                self._encoder.finish()
                self._file.close()
            except Exception as error:
                self._failure = error
                raise
            self.sealed = True

    def raise_failure(self) -> None:
        if self._failure is not None:
            # After a failed write or sync the file's content is unknown, whatever a second try says.
            raise OSError(f"{self.path} could not be written: {self._failure}") from self._failure

    def abandon(self) -> None:
        """The file will never be wanted. Never raises."""
        self._gathered = []
        self._file.abandon()
        try:
            self._files.delete(self.path)
        except OSError:
            # Readers do not see it, and the committer removes leftovers at the job's next start.
            return

    def _encode(self) -> None:
        if self._gathered:
            self._encoder.write(self._gathered)
            self._gathered = []
            self._gathered_bytes = 0


class _Counted:
    """A `FileWriter` that knows how much went through it."""

    def __init__(self, file: FileWriter):
        self._file = file
        self.bytes = 0

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._file.write(chunk)
        self.bytes += len(chunk)

    def close(self) -> int:
        return self._file.close()

    def abandon(self) -> None:
        self._file.abandon()


def _cut(batch: pa.RecordBatch, limit: int) -> list[pa.RecordBatch]:
    if batch.nbytes <= 2 * limit or batch.num_rows == 1:
        return [batch]
    half = batch.num_rows // 2
    return _cut(batch.slice(0, half), limit) + _cut(batch.slice(half), limit)
