"""Blocks of memory are used again once nobody refers to them, and never before."""

from __future__ import annotations

import threading

import numpy as np

from penstock.state import blocks

SIZE = 1 << 18


def address(array: blocks.Words) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_block_is_used_again_once_nobody_refers_to_it() -> None:
    first = blocks.words(SIZE)
    where = address(first)
    view = first.reshape(2, -1)[:, 1:]
    del first
    assert address(blocks.words(SIZE)) != where  # something that lies in it is still in use
    del view
    held = [blocks.words(SIZE) for _ in range(3)]
    assert where in map(address, held)


def test_zeros_are_zeros_also_in_a_used_block() -> None:
    for _ in range(3):
        made = blocks.zeros(SIZE)
        assert not made.any()
        made.fill(7)
        del made


def test_blocks_begin_with_a_line_of_the_cache() -> None:
    for count in (10, SIZE, SIZE + 3):
        made = blocks.words(count)
        assert len(made) == count and address(made) % 64 == 0


def test_two_that_are_in_use_never_share_memory() -> None:
    held = [blocks.words(SIZE) for _ in range(20)]
    for number, array in enumerate(held):
        array.fill(number)
    assert [set(np.unique(array).tolist()) for array in held] == [{number} for number in range(20)]


def test_what_another_thread_still_reads_is_not_given_out() -> None:
    array = blocks.words(SIZE)
    where, done = address(array), threading.Event()
    thread = threading.Thread(target=lambda own: done.wait(), args=(array,))
    thread.start()
    del array
    assert address(blocks.words(SIZE)) != where
    done.set()
    thread.join()
