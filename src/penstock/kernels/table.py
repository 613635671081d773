"""The hash table behind an index of keys: from a key to its slot, and to the record that lies there.

Theory of operation. A key is some *words* of 64 bits, and maybe a *tail* of bytes, whose length the words tell. The
table holds one word per place: the upper half of a key's hash, and its slot plus one; zero is empty. Its length is a
power of two, the lower bits of the hash say where to begin, and a key that finds its place taken goes to the next one.
What is kept for a key is its *record*:

    record:  key words ... | where its tail begins, if keys have tails | call << 32 | place | payload ...

`call` is the number of the call that touched it last, and `place` how many keys that call had touched before. The tails
lie one after another in the `arena`. Half a hash is not the key, so a find is only true once the record has said so;
and as the memory of the record is near then, what is counted and summed up for the key is kept in its payload: a find
can add to it at once.

A lookup waits for memory twice, for the table and for the record. Rows are therefore worked on in blocks: all of a
block are looked up, then all records are read, each step asking for the memory of the next.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from penstock.kernels.additions import ADD, ADD_FRACTION, COUNT
from penstock.kernels.memory import prefetch, word_at
from penstock.kernels.mixing import SEED, mix_word

BLOCK = 64
_ONE, _8, _32 = np.uint64(1), np.uint64(8), np.uint64(32)
_LOWER = np.uint64(0xFFFFFFFF)


@njit(nogil=True, cache=True)
def hash_keys(
    words: NDArray[np.uint64], offsets: NDArray[np.int64] | None, data: NDArray[np.uint8]
) -> NDArray[np.uint64]:
    """The hash of every key, of its words and its tail. Not the stable one: it is never written down."""
    width, rows = words.shape
    hashes = np.empty(rows, np.uint64)
    for row in range(rows):
        hashes[row] = mix_word(SEED ^ words[0, row])
    for column in range(1, width):
        for row in range(rows):
            hashes[row] = mix_word(hashes[row] ^ words[column, row])
    if offsets is not None:
        for row in range(rows):
            at, end, hashed, last = offsets[row], offsets[row + 1], hashes[row], np.uint64(0)
            if end - at < 8:
                for byte in range(at, end):
                    last = last << _8 | np.uint64(data[byte])
            else:
                last = word_at(data, end - 8)
                while at + 8 < end:
                    hashed = mix_word(hashed ^ word_at(data, at))
                    at += 8
            hashes[row] = mix_word(hashed ^ last)
    return hashes


@njit(nogil=True, cache=True)
def room(places: int) -> int:
    """How many keys a table of so many places may hold. Half of them: nearly every key is found where it is looked for
    first. (Two thirds would save a sixth of the memory and cost a sixth of the speed.)"""
    return places // 2


@njit(nogil=True, cache=True)
def find_slots(
    table: NDArray[np.uint64],
    records: NDArray[np.uint64],
    arena: NDArray[np.uint8],
    template: NDArray[np.uint64],
    words: NDArray[np.uint64],
    offsets: NDArray[np.int64] | None,
    data: NDArray[np.uint8],
    hashes: NDArray[np.uint64],
    state: NDArray[np.int64],
    call: int,
    since: int,
    kinds: NDArray[np.uint8],
    values: NDArray[np.uint64],
    slots: NDArray[np.int64],
    first_rows: NDArray[np.int64],
    places: NDArray[np.int32],
    touched: NDArray[np.uint32],
    sums: NDArray[np.uint64],
) -> bool:
    """Fills in, from row `state[0]` on: `slots` of every row's key, new ones for new keys; `first_rows`, in which each
    of these keys occurs first in this call; `places` of every row's key among these; and `touched`, the slots that no
    call after `since` had touched. `kinds` says what is done with each word of the payload (see `additions`); `values`
    are what is added, and `sums` what comes out of it by place, both with a row for each word. `sums` may have no
    columns.

    `records` is flat; a new one is a copy of `template`, with its key. `words` are those of the keys, a row per column;
    `offsets` and `data` their tails, empty if they have none. Stops before a block for which the table, the records or
    the arena may have no room, and at a row whose key has half its hash in common with another
    one: then it returns True, and the row is the caller's. `state`: the row that it stopped at, how many keys there
    are, how much of the arena is used, and how many of `first_rows` and of `touched` are filled.
    """
    width, rows, length = words.shape[0], words.shape[1], len(template)
    touch_at = width
    if offsets is not None:
        touch_at += 1
    mask = np.uint64(len(table) - 1)
    most = min(room(len(table)), len(records) // length)
    stamp, after = np.uint64(call) << _32, np.uint64(since + 1) << _32
    begin, count, used, distinct, fresh = state[0], state[1], state[2], state[3], state[4]
    fractions, more, tell = records.view(np.float64), values.view(np.float64), sums.shape[1] > 0
    while begin < rows:
        end = min(rows, begin + BLOCK)
        if count + (end - begin) > most:
            break
        # Where keys have no tails, Numba compiles nothing of what stands under such a test, as long as it stands alone.
        if offsets is not None:  # noqa: SIM102
            if used + offsets[end] - offsets[begin] > len(arena):
                break
        for row in range(begin, end):
            prefetch(table, np.int64(hashes[row] & mask))
        for row in range(begin, end):
            place, half = hashes[row] & mask, hashes[row] >> _32
            while True:
                entry = table[place]
                if entry >> _32 == half and entry:
                    slot = np.int64(entry & _LOWER) - 1
                    break
                if not entry:
                    slot = count
                    count += 1
                    table[place] = half << _32 | np.uint64(count)
                    start = slot * length
                    for word in range(width, length):
                        records[start + word] = template[word]
                    for column in range(width):
                        records[start + column] = words[column, row]
                    if offsets is not None:
                        records[start + width] = np.uint64(used)
                        for byte in range(offsets[row], offsets[row + 1]):
                            arena[used] = data[byte]
                            used += 1
                    break
                place = (place + _ONE) & mask
            slots[row] = slot
            prefetch(records, slot * length)
        if offsets is not None:
            for row in range(begin, end):
                prefetch(arena, np.int64(records[slots[row] * length + width]))
        for row in range(begin, end):
            start = slots[row] * length
            found = records[start] == words[0, row]
            column = 1
            while found and column < width:
                found = records[start + column] == words[column, row]
                column += 1
            if offsets is not None:
                kept, at, end_at = np.int64(records[start + width]), offsets[row], offsets[row + 1]
                if end_at - at >= 8:
                    found = found and word_at(arena, kept + (end_at - at) - 8) == word_at(data, end_at - 8)
                    while found and at + 8 < end_at:
                        found = word_at(arena, kept) == word_at(data, at)
                        kept, at = kept + 8, at + 8
                else:
                    while found and at < end_at:
                        found = arena[kept] == data[at]
                        kept, at = kept + 1, at + 1
            if not found:
                state[0], state[1], state[2], state[3], state[4] = row, count, used, distinct, fresh
                return True
            touch = records[start + touch_at]
            if touch < stamp:
                if touch < after:
                    touched[fresh] = slots[row]
                    fresh += 1
                touch = stamp | np.uint64(distinct)
                records[start + touch_at] = touch
                first_rows[distinct] = row
                distinct += 1
            places[row] = np.int32(touch & _LOWER)
            for word in range(len(kinds)):
                at = start + touch_at + 1 + word
                if kinds[word] == COUNT:
                    records[at] += _ONE
                elif kinds[word] == ADD:
                    records[at] += values[word, row]
                elif kinds[word] == ADD_FRACTION:
                    fractions[at] += more[word, row]
                if tell:
                    sums[word, touch & _LOWER] = records[at]
        begin = end
    state[0], state[1], state[2], state[3], state[4] = begin, count, used, distinct, fresh
    return False


@njit(nogil=True, cache=True)
def look_up(
    table: NDArray[np.uint64],
    records: NDArray[np.uint64],
    length: int,
    arena: NDArray[np.uint8],
    words: NDArray[np.uint64],
    offsets: NDArray[np.int64] | None,
    data: NDArray[np.uint8],
    hashes: NDArray[np.uint64],
) -> NDArray[np.int64]:
    """The slot of every row's key, -1 where it has none. Otherwise as `find_slots`; a record has so many words."""
    width, rows = words.shape
    mask = np.uint64(len(table) - 1)
    slots = np.full(rows, -1, np.int64)
    for begin in range(0, rows, BLOCK):
        end = min(rows, begin + BLOCK)
        for row in range(begin, end):
            prefetch(table, np.int64(hashes[row] & mask))
        for row in range(begin, end):
            place, half = hashes[row] & mask, hashes[row] >> _32
            while table[place]:
                slot = np.int64(table[place] & _LOWER) - 1
                same = table[place] >> _32 == half
                column = 0
                while same and column < width:
                    same = records[slot * length + column] == words[column, row]
                    column += 1
                if offsets is not None:
                    at, kept = offsets[row], np.int64(records[slot * length + width])
                    while same and at < offsets[row + 1]:
                        same = arena[kept] == data[at]
                        at, kept = at + 1, kept + 1
                if same:
                    slots[row] = slot
                    break
                place = (place + _ONE) & mask
    return slots


@njit(nogil=True, cache=True)
def enter_slots(table: NDArray[np.uint64], hashes: NDArray[np.uint64], first: int) -> None:
    """Enters the slots from `first` on, whose keys have these hashes and are not in the table yet."""
    mask = np.uint64(len(table) - 1)
    rows = len(hashes)
    for begin in range(0, rows, BLOCK):
        end = min(rows, begin + BLOCK)
        for row in range(begin, end):
            prefetch(table, np.int64(hashes[row] & mask))
        for row in range(begin, end):
            place = hashes[row] & mask
            while table[place]:
                place = (place + _ONE) & mask
            table[place] = hashes[row] >> _32 << _32 | np.uint64(first + row + 1)


@njit(nogil=True, cache=True)
def gather_words(records: NDArray[np.uint64], length: int, words: int, slots: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The first words of some records, each of which has a row of the result."""
    gathered = np.empty((words, len(slots)), np.uint64)
    for row in range(len(slots)):
        start = slots[row] * length
        for word in range(words):
            gathered[word, row] = records[start + word]
    return gathered


@njit(nogil=True, cache=True)
def gather_tails(arena: NDArray[np.uint8], starts: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The tails that begin there in the arena, one after another; `offsets` are where each of them is to lie."""
    data = np.empty(offsets[-1], np.uint8)
    for row in range(len(starts)):
        start = starts[row]
        for byte in range(offsets[row + 1] - offsets[row]):
            data[offsets[row] + byte] = arena[start + byte]
    return data
