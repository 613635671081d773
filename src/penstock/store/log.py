"""The log of a job's directory: reads what counts, appends by conditional create. What entries mean is in
`core/store.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.core.store import Completed, DamagedLog, Log, LogEntry, check_last, counting, read_log
from penstock.store import layout
from penstock.store.documents import decode_entry, encode_entry
from penstock.store.errors import NO_OTHER_LOG, CorruptCheckpoint
from penstock.store.files import Files

_PATIENCE = 100
"""Every lost race means that somebody else appended; so many in a row mean that something is wrong."""


class LogFiles:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._seen: set[str] = set()
        """Metadata files that are there, as far as this driver knows. If another one has deleted some, it has claimed
        the directory first, and the next entry of this one is refused."""

    def numbers(self) -> list[int]:
        """Of all entries that are there, also those that no longer count."""
        found = map(layout.log_number, self._files.names(layout.LOG))
        return sorted(number for number in found if number is not None)

    def _numbers_from(self, number: int) -> list[int]:
        """As `numbers`, of the entry with this number and those after it."""
        own = layout.log_path(number)
        later = (path for path in self._files.names(layout.LOG) if path >= own or len(path) > len(own))
        return [number for path in later if (number := layout.log_number(path) or 0)]

    def read(self, known: Log | None = None) -> Log:
        """The entries that count; reads only those, and none if they are those that are known: no entry ever
        changes."""
        numbers = self.numbers()
        if not numbers:
            return Log()
        try:
            if known is not None and known.entries and known.entries[-1].number == numbers[-1]:
                counting(numbers, known.entries[-1])
                return known
            last = self._entry(numbers[-1])
            return read_log([*(self._entry(number) for number in counting(numbers, last)[:-1]), last])
        except DamagedLog as damage:
            raise CorruptCheckpoint(layout.log_path(damage.number), str(damage), NO_OTHER_LOG) from damage

    def existing(self, log: Log) -> set[str]:
        """The metadata files that the log names and that are there."""
        self._seen = {entry.metadata for entry in log.completions if self._files.exists(entry.metadata)}
        return set(self._seen)

    def _believed(self, log: Log) -> set[str]:
        """As `existing`; looks only for those of which it does not know that they are there."""
        named = (entry.metadata for entry in log.completions)
        self._seen = {path for path in named if path in self._seen or self._files.exists(path)}
        return self._seen

    def gone(self, paths: Collection[str]) -> None:
        """This driver has deleted them."""
        self._seen.difference_update(paths)

    def append(
        self, log: Log, decide: Callable[[Log, Collection[str]], LogEntry | None]
    ) -> tuple[Log, LogEntry | None]:
        """Appends what `decide` makes of the log. When another entry is there already, reads on and decides anew;
        `decide` raises `Fenced`, or answers None when there is nothing left to append. Returns the log as it is
        then."""
        existing = self._believed(log)
        for _ in range(_PATIENCE):
            entry = decide(log, existing)
            if entry is None:
                return log, None
            try:
                self._files.create(layout.log_path(entry.number), encode_entry(entry))
            except FileExistsError:
                log = self.read()
                existing = self.existing(log)
                continue
            check_last(self._numbers_from(entry.number), entry.number)
            if isinstance(entry, Completed):
                self._seen.add(entry.metadata)
            return log.with_entry(entry), entry
        raise OSError(f"gave up after losing {_PATIENCE} races for the next entry of {layout.LOG}/")

    def delete(self, number: int) -> None:
        self._files.delete(layout.log_path(number))

    def _entry(self, number: int) -> LogEntry:
        path = layout.log_path(number)
        try:
            return decode_entry(path, number, self._files.read(path))
        except FileNotFoundError as error:
            raise DamagedLog(number, f"log entry {number} vanished while the log was read") from error
