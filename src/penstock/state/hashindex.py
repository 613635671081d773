"""The compiled form of a key index: a hash table over the words and tails of keys (see `kernels.table`).

Records of slots in use keep their keys for ever, and the arena is only added to, so that a capture of the keys needs no
copy: what grows is replaced by a longer copy, and the capture keeps the one that it has.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.gathering import gathered
from penstock.kernels.hashing import Scalar, read_only
from penstock.state import blocks, pages
from penstock.state.index import CapturedEntries, Found, Payload, Places, Slots, keys_at
from penstock.state.keys import KeyColumns
from penstock.state.keywords import Encoded, KeyWords, Words
from penstock.state.touched import FEW, Numbers, Touched
from penstock.state.undo import NO_ENTRIES, NONE_COPIED, Entries, UndoLog

_INITIAL_KEYS = 1024
_INITIAL_ARENA = 1 << 14
_CALL = 1 << 32
"""What a call adds to the word that says when a key was touched."""
_LAST_CALL = (1 << 32) - 1
_PORTION = 1 << 18
"""Keys that are entered into a new table at a time."""
_SPARE = 4
"""So many portions of pictures at most are kept to be used again: one is copied while others are read."""
_COPIED = FEW
"""Up to so many records are copied at once, which takes a few milliseconds if none of them is near."""
_MANY, _AHEAD = 1 << 22, 8
"""From so many words of records on, room is made for so many times as many."""


@dataclass(frozen=True, slots=True)
class Additions:
    """What a find does with the payload of each row's key: `kinds` as in `kernels.additions`, and the `values` that are
    added. `sums`: what comes out of it, by place. Both have a row for each word."""

    kinds: npt.NDArray[np.uint8]
    values: Words
    sums: Words


_NO_PAYLOAD = np.empty(0, np.uint64)
_NOTHING = Additions(
    read_only(np.empty(0, np.uint8)), read_only(np.empty((0, 0), np.uint64)), np.empty((0, 0), np.uint64)
)


class HashIndex:
    def __init__(
        self,
        keys: KeyColumns,
        kernels: ModuleType,
        *,
        nulls: bool,
        short: bool = False,
        payload: Payload = _NO_PAYLOAD,
    ) -> None:
        """`nulls` and `short` as in `KeyWords`; `payload`: the words of a new key."""
        self._words = KeyWords(keys.types, nulls=nulls, short=short)
        self._kernels = kernels
        self.fresh = payload
        self._touch_at = self._words.width + self._words.tailed
        self._template = np.concatenate([np.zeros(self._touch_at + 1, np.uint64), payload])
        self._records = _records(_INITIAL_KEYS, len(self._template))
        self._table = self._empty_table(_INITIAL_KEYS)
        self._arena = np.zeros(_INITIAL_ARENA if self._words.tailed else 0, np.uint8)
        self._count = self._used = 0
        self._call = 0
        """Of the last `find`."""
        self._since = 0
        """The last call before the slots that were touched were taken."""
        self._pictured = 0
        """The last call before the newest picture was taken."""
        self._log: weakref.ref[UndoLog] | None = None
        """Of the records as they are now, if there is a picture of them."""
        self._last_log: weakref.ref[UndoLog] | None = None
        self._blocks: list[Entries] = []
        """Of the last log. Once that is gone, so that nobody reads them, their memory serves the next one."""
        self._spare: deque[Words] = deque(maxlen=_SPARE)
        self._touched = Touched()

    def takes(self, columns: list[pa.Array]) -> bool:
        return self._words.takes(columns)

    def __len__(self) -> int:
        return self._count

    @property
    def payload(self) -> Payload:
        return self._records[:, self._touch_at + 1 :]

    # ---- finding ----
    def find(self, columns: list[pa.Array], additions: Additions = _NOTHING) -> Found:
        keys = self._words.encode(columns)
        hashes = self._kernels.hash_keys(keys.words, keys.offsets, keys.data)
        rows = len(hashes)
        self._begin_call()
        found = Found(np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int32))
        touched = np.empty(rows, np.int32)
        state = np.array([0, self._count, self._used, 0, 0])
        while state[0] < rows:
            log = self._make_room(keys, int(state[0]))
            entries, copied = (NO_ENTRIES, NONE_COPIED) if log is None else (log.entries, log.copied)
            self._kernels.find_slots(
                self._table,
                self._records.reshape(-1),
                self._arena,
                self._template,
                keys.words,
                keys.offsets,
                keys.data,
                hashes,
                state,
                self._call,
                self._since,
                self._pictured,
                entries.count,
                entries.slots,
                entries.aside,
                copied,
                additions.kinds,
                additions.values,
                found.slots,
                found.first_rows,
                found.places,
                touched,
                additions.sums,
            )
            self._count, self._used = int(state[1]), int(state[2])
        if state[4]:
            self._touched.add(touched[: state[4]].copy())
        return Found(found.slots, found.first_rows[: state[3]], found.places)

    def look_up(self, columns: list[pa.Array]) -> Slots:
        """The slot of every row's key, -1 where it has none; no slot counts as touched."""
        if not self.takes(columns):  # there are none of those that it does not take
            takes = self._words.takes_rows(columns)
            slots = np.full(len(takes), -1, np.int64)
            if takes.any():
                slots[takes] = self.look_up([column.filter(pa.array(takes)) for column in columns])
            return slots
        keys = self._words.encode(columns)
        hashes = self._kernels.hash_keys(keys.words, keys.offsets, keys.data)
        records, length = self._records.reshape(-1), len(self._template)
        found: Slots = self._kernels.look_up(
            self._table, records, length, self._arena, keys.words, keys.offsets, keys.data, hashes
        )
        return found

    def _begin_call(self) -> None:
        if self._call == _LAST_CALL:
            self._records[:, self._touch_at] = 0
            touched = self._touched.numbers()
            self._records[touched, self._touch_at] = _CALL
            self._call, self._since, self._touched = 1, 0, Touched([touched])
            self._pictured = self._call  # so payloads may be put aside once more
        self._call += 1

    # ---- room ----
    def expect(self, keys: int) -> None:
        """So many keys will come: room for all of them is made at once, instead of again and again as they come."""
        if keys > len(self._records):
            records = _records(keys, len(self._template))
            records[: self._count] = self._records[: self._count]
            self._records, self._log = records, None
        if keys > self._kernels.room(len(self._table)):
            self._table = self._empty_table(keys)
            for begin in range(0, self._count, _PORTION):
                known = self._encoded(begin, min(self._count, begin + _PORTION))
                hashes = self._kernels.hash_keys(known.words, known.offsets, known.data)
                self._kernels.enter_slots(self._table, hashes, begin)

    @property
    def capacity(self) -> int:
        return len(self._records)

    def clear(self) -> None:
        """Forgets all keys; nothing that was captured may be read any more."""
        self._table[:] = 0
        self._count = self._used = self._call = self._since = self._pictured = 0
        self._log, self._touched = None, Touched()

    def _empty_table(self, keys: int) -> npt.NDArray[np.uint32]:
        size = _power_of_two(keys)
        places = size if keys <= self._kernels.room(size) else 2 * size
        if self._records.size > blocks.MOST:  # such an index stays, and would leave a table behind with each growth
            return pages.words(places // 2).view(np.uint32)
        return blocks.zeros(places // 2).view(np.uint32)

    def _make_room(self, keys: Encoded, begin: int) -> UndoLog | None:
        """For the rows of the next block to be all new, and all put aside if there is a log."""
        rows = min(self._kernels.BLOCK, keys.words.shape[1] - begin)
        self.expect(self._count + rows)
        if keys.offsets is not None:
            needed = self._used + int(keys.offsets[begin + rows] - keys.offsets[begin])
            if needed > len(self._arena):
                self._arena = _grown(self._arena, _power_of_two(needed))
        log = self._living_log()
        if log is not None:
            log.make_room(rows)
            self._blocks = log.blocks
        return log

    def _living_log(self) -> UndoLog | None:
        log = None if self._log is None else self._log()
        if log is None:
            self._log = None
        return log

    def _encoded(self, begin: int, end: int) -> Encoded:
        """The keys of some slots, in whose order their tails lie in the arena."""
        width = self._words.width
        words = read_only(np.ascontiguousarray(self._records[begin:end, :width].T))
        if not self._words.tailed:
            return Encoded(words)
        last = self._used if end == self._count else self._records[end, width]
        offsets = np.append(self._records[begin:end, width], np.uint64(last)).astype(np.int64)
        return Encoded(words, read_only(offsets), read_only(self._arena[: self._used]))

    def take_over(self, columns: list[pa.Array], touched: Numbers, payload: Payload) -> None:
        """Gives these keys, all different, the slots from 0 on, and remembers which of them count as touched."""
        keys = self._words.encode(columns)
        rows, width = keys.words.shape[1], self._words.width
        self._count = rows
        self._records, self._log = _records(rows, len(self._template)), None
        self._records[:rows] = self._template
        self._records[:rows, :width] = keys.words.T
        self.payload[:rows] = payload
        if keys.offsets is not None:
            self._records[:rows, width] = (keys.offsets[:-1] - keys.offsets[0]).view(np.uint64)
            self._used = int(keys.offsets[-1] - keys.offsets[0])
            self._arena = np.zeros(_power_of_two(self._used), np.uint8)
            self._arena[: self._used] = keys.data[keys.offsets[0] : keys.offsets[-1]]
        self._table = self._empty_table(rows)
        hashes = self._kernels.hash_keys(keys.words, keys.offsets, keys.data)
        self._kernels.enter_slots(self._table, hashes, 0)
        self._call, self._since, self._touched = 1, 0, Touched([touched])
        self._records[touched, self._touch_at] = _CALL

    # ---- captures ----
    def captured(self) -> Callable[[Slots | slice | None], list[pa.Array]]:
        """The key columns of all slots as they are now, or of some of them; to be called later, on any thread."""
        records, kernels = self._records[: self._count], self._kernels
        words, length = self._words, len(self._template)
        needed, decode = words.width + words.tailed, self._decoder()

        def columns(slots: Slots | slice | None) -> list[pa.Array]:
            if isinstance(slots, np.ndarray):
                own = np.empty((needed, len(slots)), np.uint64)
                kernels.copy_words(records.reshape(-1), length, 0, read_only(slots.view()), own)
            else:
                own = np.ascontiguousarray((records if slots is None else records[slots])[:, :needed].T)
            return decode(own)

        return columns

    def _decoder(self) -> Callable[[Words], list[pa.Array]]:
        """From the first words of records, of which each has a row, to the columns of their keys; on any thread."""
        words, arena, kernels = self._words, self._arena, self._kernels

        def columns(own: Words) -> list[pa.Array]:
            starts = own[words.width] if words.tailed else None
            return words.decode(
                own[: words.width], lambda begin, offsets: kernels.gather_tails(arena, begin, offsets), starts
            )

        return columns

    def captured_entries(self, slots: Numbers | Slots | None) -> CapturedEntries:
        if slots is not None and len(slots) <= _COPIED:
            return self._copied_entries(slots)
        keys = keys_at(self.captured(), slots)
        if not len(self.fresh):
            return CapturedEntries(keys, lambda places: [])
        return CapturedEntries(keys, self.captured_payload(slots))

    def _copied_entries(self, slots: Numbers | Slots) -> CapturedEntries:
        """A record is a line of the cache or less: with its payload comes its key, which need not be fetched again."""
        copied = np.empty((len(self._template), len(slots)), np.uint64)
        wanted = read_only(slots.astype(np.int64))
        self._kernels.copy_words(self._records.reshape(-1), len(self._template), 0, wanted, copied)
        keys, payload, decode = copied[: self._touch_at], copied[self._touch_at + 1 :], self._decoder()

        def payloads(places: Places) -> list[Words]:
            return [word[places] if isinstance(places, slice) else gathered(word, places) for word in payload]

        return CapturedEntries(lambda places: decode(keys[:, places]), payloads)

    def captured_payload(self, slots: Numbers | Slots | None) -> Callable[[Places], list[Words]]:
        """The payloads of some slots in use, which ascend, or of all, as they are now. To be called later, on any one
        thread: gives an array for each word, of some of these slots, by their place among them."""
        log = self._living_log()
        if log is None:
            records, length = self._records.reshape(-1), len(self._template)
            free = [] if self._last_log is not None and self._last_log() is not None else self._blocks
            log = UndoLog(self._kernels, records, length, len(self.fresh), self._spare, free)
            self._log = self._last_log = weakref.ref(log)
            self._blocks = log.blocks
        self._pictured = self._call
        rows = self._count if slots is None else len(slots)
        picture = log.picture(slots, rows)
        if rows <= _COPIED:
            picture.copy()
        return picture.payloads

    def keep(self, slots: Slots) -> None:
        log = self._living_log()
        if log is not None:
            log.keep(slots)

    # ---- what was found ----
    def take_touched(self) -> Touched:
        touched, self._touched, self._since = self._touched, Touched(), self._call
        return touched


def _power_of_two(least: int) -> int:
    return max(_INITIAL_KEYS, 1 << (least - 1).bit_length())


def _records(rows: int, words: int) -> Words:
    """Of any content: a record is written when its slot is given out. A small one lies within a line of the cache. Room
    for many is made for even more, as memory that is not written to is not used: so they are not moved again and again,
    and there are not twice as many for a moment."""
    rows = _power_of_two(rows)
    if rows * words > _MANY:
        rows *= _AHEAD
    return blocks.words(rows * words).reshape(rows, words)


def _grown(array: npt.NDArray[Scalar], length: int) -> npt.NDArray[Scalar]:
    grown = np.zeros((length, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
