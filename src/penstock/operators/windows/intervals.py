"""Which spans of time become one, in columns: how rows become sessions, and sessions become one.

A span is (owner, start, last): what happened to an owner from the first to the last of some moments. Two of them are
one if less than `gap` lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Spans:
    owners: Numbers
    starts: Numbers
    lasts: Numbers

    def __len__(self) -> int:
        return len(self.owners)

    def take(self, rows: npt.NDArray[np.generic]) -> Spans:
        return Spans(self.owners[rows], self.starts[rows], self.lasts[rows])


def runs_of(owners: Numbers, times: Numbers, gap: int) -> tuple[Spans, Numbers]:
    """Moments as spans, ordered by owner and time; and of every moment the number of its span."""
    order = np.lexsort((times, owners))
    owner, time = owners[order], times[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (owner[1:] != owner[:-1]) | (time[1:] - time[:-1] >= gap)
    firsts = np.flatnonzero(begins)
    ends = np.append(firsts[1:], [len(order)]) - 1
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    return Spans(owner[firsts], time[firsts], time[ends]), numbers


def united(known: Spans, new: Spans, gap: int) -> tuple[Spans, Numbers, Numbers]:
    """Two families of spans as one, ordered by owner and start; and of every span of each family the number of the one
    that it became part of. Within a family no two spans are to become one."""
    owners = np.concatenate([known.owners, new.owners])
    starts = np.concatenate([known.starts, new.starts])
    lasts = np.concatenate([known.lasts, new.lasts])
    is_new = np.repeat([False, True], [len(known), len(new)])
    order = np.lexsort((is_new, starts, owners))
    owner, start, last, is_new = owners[order], starts[order], lasts[order], is_new[order]
    reach = np.maximum(_filled(last, ~is_new, owner), _filled(last, is_new, owner))
    begins = np.ones(len(order), np.bool_)
    same = owner[1:] == owner[:-1]
    # Compared so that nothing overflows: where there is nothing before, `reach` is not looked at.
    begins[1:] = ~same | (start[1:] - np.where(same, reach[:-1], start[1:]) >= gap)
    firsts = np.flatnonzero(begins)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    spans = Spans(owner[firsts], start[firsts], np.maximum.reduceat(last, firsts) if len(firsts) else last)
    return spans, numbers[: len(known)], numbers[len(known) :]


def _filled(values: Numbers, own: npt.NDArray[np.bool_], owners: Numbers) -> Numbers:
    """For every place the value of the nearest `own` place up to there, of the same owner; the lowest number for none.
    Within a family later spans reach further, so that it is also the highest."""
    places = np.maximum.accumulate(np.where(own, np.arange(len(values)), -1))
    there = (places >= 0) & (owners[np.maximum(places, 0)] == owners)
    return np.where(there, values[np.maximum(places, 0)], np.iinfo(np.int64).min)


def ranks(numbers: Numbers) -> Numbers:
    """Of each element, how many equal ones come before it."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    begins = np.flatnonzero(np.append([True], ordered[1:] != ordered[:-1])) if len(ordered) else ordered
    lengths = np.diff(np.append(begins, [len(ordered)]))
    result = np.empty(len(ordered), np.int64)
    result[order] = np.arange(len(ordered)) - np.repeat(begins, lengths)
    return result
