"""One checkpoint at one subtask, from its first sign to its last: a *round*. One class for each mode.

                      holds a channel   takes the snapshot when                          then
  AlignedRound        at its barrier    the barrier is at the head of every queue        done
  StopTheWorldRound   as aligned        as aligned                                       pauses a triggered source
  AtLeastOnceRound    never             the barrier is at the head of every queue        done
  UnalignedRound      never             the first barrier is announced (or triggered)    records until all are announced
  AdaptiveRound       as aligned        as aligned, or as unaligned once its patience    done, or records
                                        ends or somebody upstream has overtaken

"Every queue" leaves out channels that have ended; a recording leaves out channels whose end is announced. A subtask
without running predecessors gets its barrier from the coordinator (`triggered`), which stands for one more input
that has no queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.core.alignment.events import (
    Hold,
    Instruction,
    PauseSource,
    Recorded,
    RecordingComplete,
    Release,
    Snapshot,
)
from penstock.core.barrier import Barrier, Mode
from penstock.core.ids import ChannelId

Instructions = list[Instruction]


@dataclass(slots=True)
class Channels:
    """The input channels of the subtask and how far each has come, shared by all its rounds. Dicts serve as ordered
    sets, so that instructions come in the same order in every run."""

    all: dict[ChannelId, None]
    ending: set[ChannelId] = field(default_factory=set)
    ended: set[ChannelId] = field(default_factory=set)

    @classmethod
    def of(cls, channels: Iterable[ChannelId]) -> Channels:
        return cls(dict.fromkeys(channels))


class Round:
    """What all modes share: who has announced, who has been reached, and whether the snapshot was taken."""

    def __init__(self, barrier: Barrier, channels: Channels, now: float) -> None:
        self.barrier = barrier
        self.channels = channels
        self.announced: set[ChannelId] = set()
        self.reached: dict[ChannelId, None] = {}
        self.recording: dict[ChannelId, None] = {}
        self.triggered = False
        self.taken = False
        self._announced_at = now
        self._reached_at: float | None = None

    # ---- events; every mode overrides what differs ----
    def on_announced(self, channel: ChannelId, barrier: Barrier, now: float) -> Instructions:
        self.announced.add(channel)
        return []

    def on_reached(self, channel: ChannelId, now: float) -> Instructions:
        raise NotImplementedError

    def on_triggered(self, now: float) -> Instructions:
        self.triggered = True
        return self._take_if_aligned(now)

    def on_ending(self, channel: ChannelId) -> Instructions:
        return self._record_until(channel)

    def on_ended(self, now: float) -> Instructions:
        return self._take_if_aligned(now)

    def on_patience_over(self, now: float) -> Instructions:
        return []

    # ---- what is known ----
    @property
    def wake_at(self) -> float | None:
        return None

    @property
    def done(self) -> bool:
        """Nothing that can still come in matters to this round."""
        return self.taken and not self.recording

    @property
    def held(self) -> tuple[ChannelId, ...]:
        """The channels that wait for this round."""
        return () if self.taken else tuple(self.reached)

    @property
    def started(self) -> bool:
        """It has come to where the order of checkpoints counts: a barrier at the head of a queue, or the snapshot."""
        return self.taken or self.triggered or bool(self.reached)

    # ---- shared moves ----
    def _note_reached(self, channel: ChannelId, now: float) -> None:
        self.reached[channel] = None
        if self._reached_at is None:
            self._reached_at = now

    @property
    def _aligned(self) -> bool:
        started = self.triggered or bool(self.reached)
        return started and all(c in self.reached or c in self.channels.ended for c in self.channels.all)

    def _take_if_aligned(self, now: float) -> Instructions:
        if self.taken or not self._aligned:
            return []
        waiting = self.held
        self.taken = True
        answer: Instructions = [self._snapshot(now)]
        return [*answer, Release(waiting)] if waiting else answer

    def _snapshot(self, now: float) -> Snapshot:
        return Snapshot(self.barrier, announced_at=self._announced_at, reached_at=self._reached_time(now))

    def _reached_time(self, now: float) -> float:
        return now if self._reached_at is None else self._reached_at

    def _overtake(self, now: float) -> Instructions:
        waiting = self.held
        self.taken = True
        self.recording = {
            c: None for c in self.channels.all if c not in self.announced and c not in self.channels.ending
        }
        answer: Instructions = [
            Snapshot(
                self.barrier.overtaking(),
                overtaking=True,
                recording=tuple(self.recording),
                behind=tuple(self.reached),
                announced_at=self._announced_at,
                reached_at=self._reached_time(now),
            )
        ]
        if waiting:
            answer.append(Release(waiting))
        if not self.recording:
            answer.append(RecordingComplete(self.barrier.checkpoint))
        return answer

    def _record_until(self, channel: ChannelId) -> Instructions:
        if channel not in self.recording:
            return []
        del self.recording[channel]
        answer: Instructions = [Recorded(self.barrier.checkpoint, channel)]
        return answer if self.recording else [*answer, RecordingComplete(self.barrier.checkpoint)]


class AlignedRound(Round):
    def on_reached(self, channel: ChannelId, now: float) -> Instructions:
        if self.taken:
            return []
        self._note_reached(channel, now)
        return self._take_if_aligned(now) or [Hold(channel)]


class StopTheWorldRound(AlignedRound):
    def on_triggered(self, now: float) -> Instructions:
        answer = super().on_triggered(now)
        return [*answer, PauseSource(self.barrier.checkpoint)] if self.taken else answer


class AtLeastOnceRound(Round):
    """Its channels are not held; those that stopped at the end of their data (see `BarrierHandler.must_wait`) are
    released."""

    def on_reached(self, channel: ChannelId, now: float) -> Instructions:
        self._note_reached(channel, now)
        return self._take_if_aligned(now)


class UnalignedRound(Round):
    def on_announced(self, channel: ChannelId, barrier: Barrier, now: float) -> Instructions:
        self.announced.add(channel)
        return self._record_until(channel) if self.taken else self._overtake(now)

    def on_reached(self, channel: ChannelId, now: float) -> Instructions:
        return []

    def on_triggered(self, now: float) -> Instructions:
        self.triggered = True
        return [] if self.taken else self._overtake(now)


class AdaptiveRound(AlignedRound):
    def __init__(self, barrier: Barrier, channels: Channels, now: float) -> None:
        super().__init__(barrier, channels, now)
        self._deadline = now + barrier.patience_ms / 1000.0

    @property
    def wake_at(self) -> float | None:
        return None if self.taken else self._deadline

    def on_announced(self, channel: ChannelId, barrier: Barrier, now: float) -> Instructions:
        self.announced.add(channel)
        if self.taken:
            return self._record_until(channel)
        self._deadline = min(self._deadline, now + barrier.patience_ms / 1000.0)
        if barrier.mode is Mode.UNALIGNED:
            return self._overtake(now)
        return self.on_patience_over(now)

    def on_triggered(self, now: float) -> Instructions:
        return super().on_triggered(now) or self.on_patience_over(now)

    def on_patience_over(self, now: float) -> Instructions:
        return self._overtake(now) if not self.taken and now >= self._deadline else []

    def _snapshot(self, now: float) -> Snapshot:
        left = self.barrier.with_patience((self._deadline - now) * 1000.0)
        return Snapshot(
            left, deadline=self._deadline, announced_at=self._announced_at, reached_at=self._reached_time(now)
        )


ROUNDS: dict[Mode, type[Round]] = {
    Mode.ALIGNED: AlignedRound,
    Mode.AT_LEAST_ONCE: AtLeastOnceRound,
    Mode.UNALIGNED: UnalignedRound,
    Mode.ADAPTIVE: AdaptiveRound,
    Mode.STOP_THE_WORLD: StopTheWorldRound,
}
