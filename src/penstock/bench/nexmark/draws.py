"""Random values as pure functions of an event's number, for whole columns at once.

Every field of every event has its own number, and what is drawn for it is a hash of that: no state is carried from one
event to the next, so any event can be made again, alone or among others, in any order. All arithmetic is of whole
numbers, and the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Index = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]

_FIELDS = 32
"""More than any event has."""
_PRICE_STEPS = 1024
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def bits(number: Index, field: int) -> Bits:
    """64 random bits for a field of each event: the numbers go through the finaliser of SplitMix64."""
    mixed = (number * _FIELDS + field).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def below(drawn: Bits, limit: int | Index) -> Index:
    """Evenly from 0 to just below the limit, which is less than 2^32 and may differ from row to row."""
    limits = np.uint64(limit) if isinstance(limit, int) else limit.view(np.uint64)
    return (((drawn >> np.uint64(32)) * limits) >> np.uint64(32)).view(np.int64)


def one_in(drawn: Bits, ratio: int) -> npt.NDArray[np.bool_]:
    """From the lower bits, so that the upper ones of the same draw may still choose."""
    return (drawn & np.uint64(0xFFFFFFFF)) % np.uint64(ratio) == 0


def prices(drawn: Bits) -> Index:
    """In cents, from 100 to 100 million: each digit more is as likely as the one before."""
    steps = _price_steps()
    place = (drawn >> np.uint64(54)).view(np.int64)
    rest = (drawn >> np.uint64(22) & np.uint64(0xFFFFFFFF)).view(np.int64)
    low = steps[place]
    return low + ((steps[place + 1] - low) * rest >> 32)


@cache
def _price_steps() -> Index:
    return np.array([round(100 * 10 ** (6 * step / _PRICE_STEPS)) for step in range(_PRICE_STEPS + 1)], np.int64)


def chosen(texts: pa.StringArray, drawn: Bits) -> pa.StringArray:
    """One of the texts for each row, all equally likely."""
    return texts.take(pa.array(below(drawn, len(texts))))


def fillers(count: int, shortest: int, longest: int, field: int) -> list[str]:
    """Texts of random letters. A field of a different event number than any real one keeps them apart."""
    lengths = shortest + below(bits(-1 - np.arange(count), field), longest - shortest + 1)
    ends = np.cumsum(lengths)
    letters = below(bits(-1 - np.arange(ends[-1]), field + 1), len(_LETTERS))
    text = np.frombuffer(_LETTERS.encode(), np.uint8)[letters].tobytes().decode()
    return [text[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]


def texts(values: Sequence[str]) -> pa.StringArray:
    return pa.array(values, pa.string())
