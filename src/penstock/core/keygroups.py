"""Key groups: the unit in which keyed state is divided and moved.

A key's stable 64-bit hash falls into one of `total` groups (a power of two, fixed while a job runs and between its
checkpoints); the groups are dealt to subtasks in contiguous ranges, so that another parallelism moves whole groups and
no key is ever hashed again.
"""

from __future__ import annotations

from penstock.core.handles import KeyGroupRange

MAX_KEY_GROUPS = 1 << 15


def check_total(total: int) -> None:
    if not 1 <= total <= MAX_KEY_GROUPS or total & (total - 1):
        raise ValueError(f"key_groups must be a power of two from 1 to {MAX_KEY_GROUPS}, not {total}")


def range_of(total: int, parallelism: int, index: int) -> KeyGroupRange:
    """The groups that subtask `index` of `parallelism` owns: none for some where there are more subtasks than groups,
    which is refused for keyed operators when a job is built."""
    return KeyGroupRange(
        (index * total + parallelism - 1) // parallelism, ((index + 1) * total + parallelism - 1) // parallelism
    )


def owner_of(total: int, parallelism: int, group: int) -> int:
    """The subtask that owns `group`; the inverse of `range_of`."""
    return group * parallelism // total
