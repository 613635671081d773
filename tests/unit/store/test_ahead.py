"""Encoding ahead changes nothing about what is written, and leaves no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.store.ahead import BUNDLE, BUNDLES_AHEAD, INLINE, ahead

_CHUNK = INLINE // 4


def chunks(count: int, breaks_at: int | None = None) -> Iterator[bytes]:
    for number in range(count):
        if number == breaks_at:
            raise ValueError("cannot be encoded")
        yield number.to_bytes(2, "little") + bytes(_CHUNK if number < 8 else 1)


def encoding_threads() -> int:
    return sum(thread.name == "encoding ahead" for thread in threading.enumerate())


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8 + 3 * BUNDLES_AHEAD])
def test_the_same_chunks_come_in_the_same_order(count: int) -> None:
    assert list(ahead(chunks(count))) == list(chunks(count))
    assert encoding_threads() == 0


@pytest.mark.parametrize("breaks_at", [0, 2, 6, 8 + 2 * BUNDLES_AHEAD])
def test_what_the_encoder_raises_is_raised_after_what_came_before(breaks_at: int) -> None:
    taken = []
    with pytest.raises(ValueError, match="cannot be encoded"):
        for chunk in ahead(chunks(10 + 2 * BUNDLES_AHEAD, breaks_at)):
            taken.append(chunk)
    assert len(taken) == breaks_at
    assert encoding_threads() == 0


def test_a_writer_that_gives_up_ends_the_encoding() -> None:
    made: list[int] = []

    def endless() -> Iterator[bytes]:
        while True:
            made.append(1)
            yield bytes(_CHUNK)

    content = ahead(endless())
    for _ in range(6):
        next(content)
    content.close()  # type: ignore[attr-defined]
    assert encoding_threads() == 0
    assert len(made) <= 6 + 2 * BUNDLES_AHEAD


def test_small_chunks_come_in_their_order_and_up_to_the_one_that_broke() -> None:
    def small() -> Iterator[bytes]:
        yield bytes(INLINE)
        for number in range(5):
            yield b"%d" % number * (BUNDLE // 4)
        raise ValueError("broken")

    found = list[bytes]()
    with pytest.raises(ValueError, match="broken"):
        found.extend(chunk[:1] for chunk in ahead(small()))  # type: ignore[misc, index]
    assert found == [bytes(1), b"0", b"1", b"2", b"3", b"4"]
