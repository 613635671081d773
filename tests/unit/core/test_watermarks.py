from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import ChannelId, EdgeId
from penstock.core.watermarks import END_OF_TIME, NO_TIME, WatermarkCombiner

A, B, C = (ChannelId(EdgeId(0), source, 0) for source in range(3))


def test_time_is_the_smallest_of_all_channels() -> None:
    time = WatermarkCombiner([A, B])
    assert not time.watermark(A, 10)
    assert time.time == NO_TIME
    assert time.watermark(B, 5)
    assert time.time == 5
    assert not time.watermark(A, 20)
    assert time.watermark(B, 15)
    assert time.time == 15


def test_a_watermark_that_goes_back_is_ignored() -> None:
    time = WatermarkCombiner([A])
    time.watermark(A, 10)
    assert not time.watermark(A, 5)
    assert time.time == 10


def test_an_idle_channel_does_not_hold_time_back() -> None:
    time = WatermarkCombiner([A, B])
    time.watermark(A, 10)
    assert time.silence(B, True)
    assert time.time == 10


def test_a_channel_that_comes_back_holds_time_until_it_has_caught_up() -> None:
    time = WatermarkCombiner([A, B])
    time.silence(B, True)
    time.watermark(A, 10)
    time.silence(B, False)
    time.watermark(B, 3)
    assert not time.watermark(A, 20)
    assert time.time == 10
    assert time.watermark(B, 12)
    assert time.time == 12


def test_a_task_is_idle_when_no_channel_has_anything_to_say() -> None:
    time = WatermarkCombiner([A, B])
    time.silence(A, True)
    assert not time.idle
    time.end(B)
    assert time.idle
    time.silence(A, False)
    assert not time.idle


def test_a_task_whose_channels_have_all_ended_is_not_idle() -> None:
    time = WatermarkCombiner([A, B])
    time.silence(A, True)
    time.end(A)
    time.end(B)
    assert time.all_ended and not time.idle


def test_a_channel_that_has_ended_does_not_hold_time_back() -> None:
    time = WatermarkCombiner([A, B])
    time.watermark(A, 10)
    assert time.end(B)
    assert time.time == 10


def test_time_stands_still_while_all_are_silent() -> None:
    time = WatermarkCombiner([A, B])
    time.watermark(A, 10)
    time.watermark(B, 5)
    time.silence(A, True)
    assert not time.silence(B, True)
    assert time.time == 5


def test_time_ends_only_when_every_channel_has_ended_it() -> None:
    time = WatermarkCombiner([A, B])
    time.silence(B, True)
    assert not time.watermark(A, END_OF_TIME)
    assert time.end(B)
    assert time.time == END_OF_TIME


def test_a_restored_task_goes_on_from_its_channels_times() -> None:
    before = WatermarkCombiner([A, B, C])
    before.watermark(A, 10)
    before.watermark(B, 7)
    before.silence(C, True)
    after = WatermarkCombiner([A, B, C])
    after.restore(before.capture(), before.time)
    assert after.time == 7
    assert not after.watermark(B, 6)
    assert after.watermark(B, 9)
    assert after.time == 9


def test_channels_that_have_said_nothing_are_not_stored() -> None:
    time = WatermarkCombiner([A, B, C])
    time.watermark(A, 10)
    time.end(B)
    assert time.capture() == {A: (10, False)}


@given(st.lists(st.tuples(st.sampled_from("wise"), st.integers(0, 2), st.integers(0, 50)), max_size=60))
def test_time_never_goes_back_and_never_passes_a_channel_that_speaks(moves: list[tuple[str, int, int]]) -> None:
    channels = [A, B, C]
    time = WatermarkCombiner(channels)
    said = dict.fromkeys(channels, NO_TIME)
    silent: set[ChannelId] = set()
    ended: set[ChannelId] = set()
    for kind, place, at in moves:
        channel, before = channels[place], time.time
        if kind == "w" and channel not in ended:
            said[channel] = max(said[channel], at)
            advanced = time.watermark(channel, at)
        elif kind in "is" and channel not in ended:
            (silent.add if kind == "i" else silent.discard)(channel)
            advanced = time.silence(channel, kind == "i")
        elif kind == "e":
            ended.add(channel)
            advanced = time.end(channel)
        else:
            continue
        speaking = [said[c] for c in channels if c not in silent and c not in ended]
        assert advanced == (time.time > before)
        assert time.time >= before
        if advanced:
            assert time.time == min(speaking)


def test_a_channel_that_is_not_heard_says_nothing_but_has_to_end() -> None:
    time = WatermarkCombiner([A, B], unheard=[B])
    assert time.watermark(A, 10)
    assert not time.watermark(B, 5)
    assert not time.silence(B, True)
    assert time.time == 10
    assert not time.idle
    time.silence(A, True)
    assert time.idle
    time.silence(A, False)
    assert time.watermark(A, END_OF_TIME)
    time.end(A)
    assert not time.all_ended
    time.end(B)
    assert time.all_ended
    assert B not in time.capture()
