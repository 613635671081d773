"""The hash table behind an index of keys: from a key to its slot, and to the record that lies there.

Theory of operation. A key is some *words* of 64 bits, and maybe a *tail* of bytes, whose length the words tell. The
table holds 32 bits per place: a key's slot plus one, and above it as many bits from the middle of the key's hash as
there is room for, its *tag*; zero is empty. Its length is a power of two, the lowest bits of the hash say where to
begin, and a key that finds its place taken goes to the next one. (The highest bits say whose key it is: all keys of a
subtask may have them in common.) What is kept for a key is its *record*:

    record:  key words ... | where its tail begins, if keys have tails | call << 32 | place | payload ...

`call` is the number of the call that touched it last, and `place` how many keys that call had touched before. The tails
lie one after another in the `arena`. A tag is not the key, so a find is only true once the record has said so;
and as the memory of the record is near then, what is counted and summed up for the key is kept in its payload: a find
can add to it at once.

A lookup waits for memory twice, for the table and for the record. Rows are therefore worked on in blocks: all of a
block are looked up, then all records are read, each step asking for the memory of the next. The few rows whose tag
was that of another key are looked up again, with all they have.

Before a payload changes, it may have to be put aside (see `undo`): as an entry of the slot and of the payload, in
`aside_slots` and `aside`. `aside_count[0]` says how many there are. Slots before `copied[0]` need none any more.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from penstock.kernels.additions import ADD, ADD_FRACTION, COUNT
from penstock.kernels.memory import observe, prefetch, publish, word_at
from penstock.kernels.mixing import SEED, mix_word

BLOCK = 64
AHEAD = 16
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
    """How many keys a table of so many places may hold: nearly every key is found where it is looked for first, or in
    the same line of the cache."""
    return places // 8 * 5


@njit(nogil=True, cache=True)
def _bits(table: NDArray[np.uint32]) -> np.uint64:
    """How many of an entry's bits are the slot's."""
    bits = np.uint64(0)
    while len(table) >> bits > 1:
        bits += _ONE
    return bits


@njit(nogil=True, cache=True, inline="always")
def _tag(hashed: np.uint64, bits: np.uint64) -> np.uint64:
    """Of a key, where it stands in an entry."""
    return hashed >> _32 << bits & _LOWER


@njit(nogil=True, cache=True, inline="always")
def _is_key(
    records: NDArray[np.uint64],
    arena: NDArray[np.uint8],
    start: int | np.int64,
    words: NDArray[np.uint64],
    offsets: NDArray[np.int64] | None,
    data: NDArray[np.uint8],
    row: int,
) -> bool:
    """Whether the record that starts there is that of the row's key."""
    width = words.shape[0]
    found = records[start] == words[0, row]
    column = 1
    while found and column < width:
        found = records[start + column] == words[column, row]
        column += 1
    # Where keys have no tails, Numba compiles nothing of what stands under such a test, as long as it stands alone.
    if offsets is not None:
        kept, at, end = np.int64(records[start + width]), offsets[row], offsets[row + 1]
        if end - at >= 8:
            found = found and word_at(arena, kept + (end - at) - 8) == word_at(data, end - 8)
            while found and at + 8 < end:
                found = word_at(arena, kept) == word_at(data, at)
                kept, at = kept + 8, at + 8
        else:
            while found and at < end:
                found = arena[kept] == data[at]
                kept, at = kept + 1, at + 1
    return found


@njit(nogil=True, cache=True)
def _place_of(
    table: NDArray[np.uint32],
    records: NDArray[np.uint64],
    length: int,
    arena: NDArray[np.uint8],
    words: NDArray[np.uint64],
    offsets: NDArray[np.int64] | None,
    data: NDArray[np.uint8],
    hashes: NDArray[np.uint64],
    row: int,
) -> np.uint64:
    """Where in the table the row's key is, or the empty place where it should be."""
    mask = np.uint64(len(table) - 1)
    place, tag = hashes[row] & mask, _tag(hashes[row], _bits(table))
    while table[place]:
        entry = np.uint64(table[place])
        if entry ^ tag <= mask:
            start = (np.int64(entry & mask) - 1) * length
            if _is_key(records, arena, start, words, offsets, data, row):
                break
        place = (place + _ONE) & mask
    return place


@njit(nogil=True, cache=True)
def _add_record(
    records: NDArray[np.uint64],
    arena: NDArray[np.uint8],
    used: int,
    template: NDArray[np.uint64],
    slot: int,
    words: NDArray[np.uint64],
    offsets: NDArray[np.int64] | None,
    data: NDArray[np.uint8],
    row: int,
) -> int:
    """The row's key is new and gets this slot. Returns how much of the arena is used then."""
    width, length = words.shape[0], len(template)
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
    return used


@njit(nogil=True, cache=True)
def find_slots(
    table: NDArray[np.uint32],
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
    pictured: int,
    aside_count: NDArray[np.int64],
    aside_slots: NDArray[np.int32],
    aside: NDArray[np.uint64],
    copied: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    values: NDArray[np.uint64],
    slots: NDArray[np.int64],
    first_rows: NDArray[np.int64],
    places: NDArray[np.int32],
    touched: NDArray[np.int32],
    sums: NDArray[np.uint64],
) -> None:
    """Fills in, from row `state[0]` on: `slots` of every row's key, new ones for new keys; `first_rows`, in which each
    of these keys occurs first in this call; `places` of every row's key among these; and `touched`, the slots that no
    call after `since` had touched. `kinds` says what is done with each word of the payload (see `additions`); `values`
    are what is added, and `sums` what comes out of it by place, both with a row for each word. `sums` may have no
    columns. The payloads of slots that no call after `pictured` had touched are put aside, if there is room for any and
    the slots were not `copied`.

    `records` is flat; a new one is a copy of `template`, with its key. `words` are those of the keys, a row per column;
    `offsets` and `data` their tails, empty if they have none. Stops before a block for which the table, the records,
    the arena or what is put aside may have no room. `state`: the row that it stopped at, how many keys there are, how
    much of the arena is used, and how many of `first_rows` and of `touched` are filled.
    """
    width, rows, length = words.shape[0], words.shape[1], len(template)
    touch_at = width
    if offsets is not None:
        touch_at += 1
    payload_at = touch_at + 1
    kept_words = length - payload_at
    mask, bits = np.uint64(len(table) - 1), _bits(table)
    most = min(room(len(table)), len(records) // length)
    stamp, after, pictured_after = np.uint64(call) << _32, np.uint64(since + 1) << _32, np.uint64(pictured + 1) << _32
    begin, count, used, distinct, fresh = state[0], state[1], state[2], state[3], state[4]
    fractions, more, tell, keeps = (
        records.view(np.float64),
        values.view(np.float64),
        sums.shape[1] > 0,
        len(aside_slots) > 0,
    )
    while begin < rows:
        end = min(rows, begin + BLOCK)
        if count + (end - begin) > most or (keeps and aside_count[0] + (end - begin) > len(aside_slots)):
            break
        if offsets is not None:  # noqa: SIM102
            if used + offsets[end] - offsets[begin] > len(arena):
                break
        for row in range(begin, end):
            prefetch(table, np.int64(hashes[row] & mask))
        for row in range(begin, end):
            place, tag = hashes[row] & mask, _tag(hashes[row], bits)
            while True:
                entry = np.uint64(table[place])
                if not entry:
                    slot = count
                    count += 1
                    table[place] = tag | np.uint64(count)
                    used = _add_record(records, arena, used, template, slot, words, offsets, data, row)
                    break
                if entry ^ tag <= mask:
                    slot = np.int64(entry & mask) - 1
                    break
                place = (place + _ONE) & mask
            slots[row] = slot
            prefetch(records, slot * length)
        if offsets is not None:
            for row in range(begin, end):
                prefetch(arena, np.int64(records[slots[row] * length + width]))
        for row in range(begin, end):
            if not _is_key(records, arena, slots[row] * length, words, offsets, data, row):
                place = _place_of(table, records, length, arena, words, offsets, data, hashes, row)
                if not table[place]:
                    used = _add_record(records, arena, used, template, count, words, offsets, data, row)
                    count += 1
                    table[place] = _tag(hashes[row], bits) | np.uint64(count)
                slots[row] = np.int64(np.uint64(table[place]) & mask) - 1
            slot = slots[row]
            start = slot * length
            touch = records[start + touch_at]
            if touch < stamp:
                if touch < after:
                    touched[fresh] = slot
                    fresh += 1
                if keeps and touch < pictured_after:
                    if slot >= copied[0]:
                        _put_aside(records, start + payload_at, kept_words, slot, aside_count, aside_slots, aside)
                    else:
                        observe()  # whoever has copied the slot was through with it before it changes
                touch = stamp | np.uint64(distinct)
                records[start + touch_at] = touch
                first_rows[distinct] = row
                distinct += 1
            places[row] = np.int32(touch & _LOWER)
            for word in range(len(kinds)):
                at = start + payload_at + word
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


@njit(nogil=True, cache=True, inline="always")
def _put_aside(
    records: NDArray[np.uint64],
    start: int,
    words: int,
    slot: int | np.int64,
    aside_count: NDArray[np.int64],
    aside_slots: NDArray[np.int32],
    aside: NDArray[np.uint64],
) -> None:
    entry = aside_count[0]
    for word in range(words):
        aside[entry * words + word] = records[start + word]
    aside_slots[entry] = slot
    # Whoever sees a change has to find what was before it.
    publish()
    aside_count[0] = entry + 1
    publish()


@njit(nogil=True, cache=True)
def put_aside(
    records: NDArray[np.uint64],
    length: int,
    words: int,
    slots: NDArray[np.int64],
    aside_count: NDArray[np.int64],
    aside_slots: NDArray[np.int32],
    aside: NDArray[np.uint64],
) -> None:
    """The payloads of these slots, the last words of their records."""
    for row in range(len(slots)):
        start = (slots[row] + 1) * length - words
        _put_aside(records, start, words, slots[row], aside_count, aside_slots, aside)


@njit(nogil=True, cache=True)
def put_back_run(
    payloads: NDArray[np.uint64],
    begin: int,
    end: int,
    first: int,
    aside_count: NDArray[np.int64],
    aside_slots: NDArray[np.int32],
    aside: NDArray[np.uint64],
) -> None:
    """Replaces the payloads of the slots from `begin` to before `end`, of which each has a column, by those of all
    entries from `first` on that there are by now. The first one counts."""
    words = payloads.shape[0]
    # Of every change that was copied, the entry is there.
    observe()
    for entry in range(aside_count[0] - 1, first - 1, -1):
        slot = aside_slots[entry]
        if begin <= slot < end:
            for word in range(words):
                payloads[word, slot - begin] = aside[entry * words + word]


@njit(nogil=True, cache=True)
def put_back(
    payloads: NDArray[np.uint64],
    slots: NDArray[np.int64],
    first: int,
    aside_count: NDArray[np.int64],
    aside_slots: NDArray[np.int32],
    aside: NDArray[np.uint64],
) -> None:
    """As `put_back_run`, for these slots, which ascend."""
    words = payloads.shape[0]
    # Of every change that was copied, the entry is there.
    observe()
    for entry in range(aside_count[0] - 1, first - 1, -1):
        slot = aside_slots[entry]
        if slot < slots[0] or slot > slots[-1]:
            continue
        low, high = 0, len(slots) - 1
        while low < high:
            middle = (low + high) >> 1
            if slots[middle] < slot:
                low = middle + 1
            else:
                high = middle
        if slots[low] == slot:
            for word in range(words):
                payloads[word, low] = aside[entry * words + word]


@njit(nogil=True, cache=True)
def tell(number: NDArray[np.int64], value: int) -> None:
    """Whoever sees the number as this value sees all that was done before."""
    publish()
    number[0] = value


@njit(nogil=True, cache=True)
def copy_words(
    records: NDArray[np.uint64], length: int, first: int, slots: NDArray[np.int64], copied: NDArray[np.uint64]
) -> None:
    """Some words of some records, from the first one on, each of which has a row of `copied`."""
    words = copied.shape[0]
    for row in range(len(slots)):
        if row + AHEAD < len(slots):
            prefetch(records, slots[row + AHEAD] * length + first)
        start = slots[row] * length + first
        for word in range(words):
            copied[word, row] = records[start + word]


@njit(nogil=True, cache=True)
def copy_run(
    records: NDArray[np.uint64], length: int, first: int, begin: int, end: int, copied: NDArray[np.uint64]
) -> None:
    """As `copy_words`, of the slots from `begin` to before `end`."""
    for word in range(copied.shape[0]):
        for slot in range(begin, end):
            copied[word, slot - begin] = records[slot * length + first + word]


@njit(nogil=True, cache=True)
def look_up(
    table: NDArray[np.uint32],
    records: NDArray[np.uint64],
    length: int,
    arena: NDArray[np.uint8],
    words: NDArray[np.uint64],
    offsets: NDArray[np.int64] | None,
    data: NDArray[np.uint8],
    hashes: NDArray[np.uint64],
) -> NDArray[np.int64]:
    """The slot of every row's key, -1 where it has none. Otherwise as `find_slots`; a record has so many words."""
    rows = words.shape[1]
    mask = np.uint64(len(table) - 1)
    slots = np.empty(rows, np.int64)
    for begin in range(0, rows, BLOCK):
        end = min(rows, begin + BLOCK)
        for row in range(begin, end):
            prefetch(table, np.int64(hashes[row] & mask))
        for row in range(begin, end):
            place = _place_of(table, records, length, arena, words, offsets, data, hashes, row)
            slots[row] = np.int64(np.uint64(table[place]) & mask) - 1
    return slots


@njit(nogil=True, cache=True)
def enter_slots(table: NDArray[np.uint32], hashes: NDArray[np.uint64], first: int) -> None:
    """Enters the slots from `first` on, whose keys have these hashes and are not in the table yet."""
    mask, bits = np.uint64(len(table) - 1), _bits(table)
    rows = len(hashes)
    for begin in range(0, rows, BLOCK):
        end = min(rows, begin + BLOCK)
        for row in range(begin, end):
            prefetch(table, np.int64(hashes[row] & mask))
        for row in range(begin, end):
            place = hashes[row] & mask
            while table[place]:
                place = (place + _ONE) & mask
            table[place] = _tag(hashes[row], bits) | np.uint64(first + row + 1)


@njit(nogil=True, cache=True)
def gather_tails(arena: NDArray[np.uint8], starts: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The tails that begin there in the arena, one after another; `offsets` are where each of them is to lie."""
    data = np.empty(offsets[-1], np.uint8)
    for row in range(len(starts)):
        start = starts[row]
        for byte in range(offsets[row + 1] - offsets[row]):
            data[offsets[row] + byte] = arena[start + byte]
    return data
