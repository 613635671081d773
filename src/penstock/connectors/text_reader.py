"""Reading JSON lines and CSV block by block.

A block is a run of whole records: it begins where a record begins and is cut behind the last record end within its
size. In CSV a line break inside quotes belongs to a value; a line break ends a record if the number of quotes before it
is even, which holds as long as quotes stand where the format wants them, and that is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.readers import BadFile, Position

BLOCK_BYTES = 256 << 10
"""What one step reads and parses: about 5 ms."""
MOST_RECORD_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'


class TextFormat(Protocol):
    """What a reader needs to know of a text format."""

    @property
    def delimiter(self) -> int | None:
        """Set if values may stand in quotes, with line breaks in them: the byte between two values."""
        ...

    def parse(self, block: bytes) -> pa.RecordBatch:
        """Whole records to rows. Raises `pa.ArrowInvalid` for what does not fit."""
        ...


class TextReader:
    """`start` is where the first record begins (behind a mark of the encoding or a header)."""

    def __init__(self, file: pa.NativeFile, path: str, size: int, start: int, format: TextFormat, position: Position):
        self._file = file
        self._path = path
        self._size = size
        self._format = format
        self.position = position if position != Position() else Position(start)
        self._next = self.position.at
        self._skip = self.position.rows
        self._left: pa.RecordBatch | None = None

    @property
    def exhausted(self) -> bool:
        return self._left is None and self._next >= self._size

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        if self._left is None and not self._parse_block():
            return None
        assert self._left is not None
        batch = self._left.slice(0, max_rows)
        if max_rows < self._left.num_rows:
            self._left = self._left.slice(max_rows)
            self.position = Position(self.position.at, self.position.rows + batch.num_rows)
        else:
            self._left = None
            self.position = Position(self._next)
        return batch

    def close(self) -> None:
        self._file.close()

    def _parse_block(self) -> bool:
        """One step; False if there is nothing to show from it."""
        if self._next >= self._size:
            return False
        start = self._next
        block = read_records(self._file, self._path, start, self._size, self._format.delimiter)
        self._next = start + len(block)
        rows = self._parsed(start, block)
        if self._skip >= rows.num_rows:
            # The rows to pass over count from the position, however many blocks that takes.
            self._skip -= rows.num_rows
            if not self._skip:
                self.position = Position(self._next)
            return False
        if not self._skip:
            self.position = Position(start)
        self._left = rows.slice(self._skip)
        self._skip = 0
        return True

    def _parsed(self, start: int, block: bytes) -> pa.RecordBatch:
        try:
            return self._parse(block)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            ends = record_ends(block, self._format.delimiter).tolist()
            if not ends or ends[-1] != len(block):
                ends.append(len(block))
            bad = _first_bad(block, ends, self._parse)
            begin = ends[bad - 1] if bad else 0
            line = _lines_before(self._file, start) + block.count(b"\n", 0, begin) + 1
            record = block[begin : ends[bad]].rstrip(b"\r\n").decode(errors="replace")
            shown = record if len(record) <= 200 else f"{record[:200]}..."
            reason = _reason(block[begin : ends[bad]], self._parse) or str(error)
            raise BadFile(f"{self._path}, line {line}: {reason}: {shown}") from error

    def _parse(self, block: bytes) -> pa.RecordBatch:
        block.decode()  # pyarrow does not look whether JSON is UTF-8
        return self._format.parse(block)


def read_records(file: pa.NativeFile, path: str, start: int, size: int, delimiter: int | None) -> bytes:
    """The whole records from `start` on: a block, or one record if it is larger than a block."""
    wanted = BLOCK_BYTES
    while True:
        file.seek(start)
        block = file.read(min(wanted, size - start))
        if len(block) < min(wanted, size - start):
            raise BadFile(
                f"{path} has become shorter while it was read; files must not change once they have their name"
            )
        if start + len(block) == size:
            return _with_good_quotes(file, path, start, block, delimiter)
        end = _last_end(block, delimiter)
        if end:
            return _with_good_quotes(file, path, start, block[:end], delimiter)
        if wanted >= MOST_RECORD_BYTES:
            raise BadFile(
                f"{path}: the record at byte {start} does not end within {MOST_RECORD_BYTES} bytes; is a quote left"
                " open, or is this another format?"
            )
        wanted *= 4


def record_ends(block: bytes, delimiter: int | None) -> npt.NDArray[np.int64]:
    """Where each record ends, behind its line break."""
    data = np.frombuffer(block, np.uint8)
    breaks = np.flatnonzero(data == _NEWLINE)
    if delimiter is not None and b'"' in block:
        quotes = np.flatnonzero(data == _QUOTE)
        breaks = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
    return breaks + 1


def _last_end(block: bytes, delimiter: int | None) -> int:
    if delimiter is None or b'"' not in block:
        return block.rfind(b"\n") + 1
    ends = record_ends(block, delimiter)
    return int(ends[-1]) if len(ends) else 0


def _with_good_quotes(file: pa.NativeFile, path: str, start: int, block: bytes, delimiter: int | None) -> bytes:
    """Refuses a quote that opens in the middle of a value: nobody can say then which line breaks end a record."""
    if delimiter is None or b'"' not in block:
        return block
    data = np.frombuffer(block, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    opening = quotes[::2]
    before = np.where(opening > 0, data[opening - 1], _NEWLINE)
    stray = opening[~np.isin(before, (delimiter, _NEWLINE, _RETURN, _QUOTE))]
    if len(stray) or len(quotes) % 2:
        at = int(stray[0] if len(stray) else quotes[-1])
        line = _lines_before(file, start) + block.count(b"\n", 0, at) + 1
        what = "a quote in the middle of a value" if len(stray) else "a quote that is never closed"
        raise BadFile(f'{path}, line {line}: {what}; write the whole value in quotes, and quotes within it as ""')
    return block


def _first_bad(block: bytes, ends: list[int], parse: Callable[[bytes], pa.RecordBatch]) -> int:
    """The index of the first record with which the block does not parse."""
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if _parses(block[: ends[middle]], parse):
            low = middle + 1
        else:
            high = middle
    return low


def _parses(block: bytes, parse: Callable[[bytes], pa.RecordBatch]) -> bool:
    try:
        parse(block)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return False
    return True


def _reason(record: bytes, parse: Callable[[bytes], pa.RecordBatch]) -> str | None:
    """What is wrong with the record alone; None if it is not wrong alone."""
    try:
        parse(record)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        return str(error)
    return None


def _lines_before(file: pa.NativeFile, offset: int) -> int:
    """Only for messages: reads the file up to there once more."""
    file.seek(0)
    lines = 0
    while offset > 0:
        piece = file.read(min(offset, 1 << 20))
        if not piece:
            break
        lines += piece.count(b"\n")
        offset -= len(piece)
    return lines


def text_start(file: pa.NativeFile) -> int:
    """Behind the byte order mark that some programs write."""
    file.seek(0)
    return len(_BOM) if file.read(len(_BOM)) == _BOM else 0
