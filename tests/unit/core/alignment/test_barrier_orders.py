"""Random orders of events: a model of the queues feeds the handler and checks what it answers against the rules."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.alignment import (
    Aborted,
    Announced,
    BarrierHandler,
    Ended,
    Ending,
    Event,
    Hold,
    PatienceOver,
    Reached,
    Recorded,
    RecordingComplete,
    Release,
    Snapshot,
    Superseded,
)
from penstock.core.barrier import Barrier, Mode
from penstock.core.ids import ChannelId, CheckpointId, EdgeId

END = "end"


class Queues:
    """Channels with numbered records and barriers in front of a handler, as a task has them."""

    def __init__(self, width: int) -> None:
        self.channels = [ChannelId(EdgeId(0), i, 0) for i in range(width)]
        self.queues: dict[ChannelId, deque[object]] = {c: deque() for c in self.channels}
        self.sent = dict.fromkeys(self.channels, 0)
        self.processed = dict.fromkeys(self.channels, 0)
        self.cut: dict[tuple[int, ChannelId], int] = {}
        """How many records the sender had sent before its barrier."""
        self.held: set[ChannelId] = set()
        self.ended: set[ChannelId] = set()
        self.last_id = dict.fromkeys(self.channels, 0)
        self.now = 0.0
        self.handler = BarrierHandler(self.channels)
        self.snapshots: dict[int, dict[ChannelId, int]] = {}
        """Records of each channel that the snapshot accounts for: processed before it, or recorded."""
        self.recording: dict[ChannelId, int] = {}
        self.complete: set[int] = set()
        self.declined: list[int] = []
        self.aborted: set[int] = set()

    def send_record(self, channel: ChannelId) -> None:
        self.sent[channel] += 1
        self.queues[channel].append(self.sent[channel])
        if channel in self.recording:
            self.snapshots[self.recording[channel]][channel] += 1

    def send_barrier(self, channel: ChannelId, barrier: Barrier) -> None:
        self.last_id[channel] = barrier.checkpoint
        self.cut[barrier.checkpoint, channel] = self.sent[channel]
        if barrier.mode is not Mode.UNALIGNED:
            self.queues[channel].append(barrier)
        self.tell(Announced(channel, barrier))
        self.settle()

    def end(self, channel: ChannelId) -> None:
        self.ended.add(channel)
        self.queues[channel].append(END)
        self.tell(Ending(channel))
        self.settle()

    def process(self, channel: ChannelId) -> None:
        queue = self.queues[channel]
        if queue and channel not in self.held:
            assert isinstance(queue.popleft(), int)
            self.processed[channel] += 1
            self.settle()

    def settle(self) -> None:
        """No queue that is not held begins with anything but a record."""
        changed = True
        while changed:
            changed = False
            for channel, queue in self.queues.items():
                if queue and channel not in self.held and not isinstance(queue[0], int):
                    head = queue.popleft()
                    self.tell(Reached(channel, head) if isinstance(head, Barrier) else Ended(channel))
                    changed = True

    def tell(self, event: Event) -> None:
        for instruction in self.handler.handle(event, self.now):
            match instruction:
                case Hold(channel):
                    assert channel not in self.held
                    self.held.add(channel)
                case Release(channels):
                    self.held -= set(channels)
                case Snapshot():
                    self.take(instruction)
                case Recorded(checkpoint, channel):
                    assert self.recording.pop(channel) == checkpoint
                case RecordingComplete(checkpoint):
                    self.complete.add(checkpoint)
                case Superseded(checkpoint):
                    assert checkpoint not in self.declined and checkpoint not in self.aborted
                    self.declined.append(checkpoint)
                    self.recording = {c: id for c, id in self.recording.items() if id != checkpoint}
        self.handler.validate()

    def take(self, order: Snapshot) -> None:
        id = order.barrier.checkpoint
        assert id not in self.snapshots and id not in self.aborted and id not in self.declined
        assert not self.recording
        self.snapshots[id] = dict(self.processed)
        if not order.overtaking:
            self.complete.add(id)
            return
        self.recording = dict.fromkeys(order.recording, id)
        for channel, queue in self.queues.items():
            if channel in order.behind:
                continue
            for element in queue:
                if isinstance(element, Barrier) and element.checkpoint == id:
                    break
                self.snapshots[id][channel] += isinstance(element, int)

    def drop(self, id: int) -> None:
        self.aborted.add(id)
        self.recording = {c: i for c, i in self.recording.items() if i != id}
        self.tell(Aborted(CheckpointId(id)))
        self.settle()

    def check(self) -> None:
        """A snapshot accounts for exactly what came before its barrier, on every channel that delivered one."""
        for id in self.complete - self.aborted - set(self.declined):
            for channel in self.channels:
                accounted = self.snapshots[id][channel]
                if (id, channel) in self.cut:
                    assert accounted == self.cut[id, channel], f"{id} {channel}\n{self.handler.story()}"
                else:
                    assert channel in self.ended, f"{id} is complete without {channel}\n{self.handler.story()}"
                    assert accounted == self.sent[channel]


EXACT = [mode for mode in Mode if mode.exactly_once]
MOVES = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=80)


def play(world: Queues, mode: Mode, moves: list[tuple[int, int]], newest: int = 4) -> None:
    for kind, detail in moves:
        channel = world.channels[detail % len(world.channels)]
        if kind < 35 and channel not in world.ended:
            world.send_record(channel)
        elif kind < 60 and channel not in world.ended:
            # A sender skips ids that were aborted before they got to it, and may overtake on its own.
            id = world.last_id[channel] + 1 + (detail // 10 == 9)
            if id <= newest:
                sent = Mode.UNALIGNED if mode is Mode.ADAPTIVE and detail % 7 == 0 else mode
                world.send_barrier(channel, Barrier(CheckpointId(id), sent, patience_ms=float(detail % 3) * 10))
        elif kind < 88:
            world.process(channel)
        elif kind < 92:
            world.now += 0.01
            if (world.handler.wake_at or world.now + 1) <= world.now:
                world.tell(PatienceOver())
                world.settle()
        elif kind < 96:
            world.drop(1 + detail % newest)
        elif channel not in world.ended:
            world.end(channel)


@given(st.sampled_from(EXACT), st.integers(1, 3), MOVES)
@settings(max_examples=200, deadline=None)
def test_a_snapshot_accounts_for_exactly_what_came_before_its_barriers(
    mode: Mode, width: int, moves: list[tuple[int, int]]
) -> None:
    world = Queues(width)
    play(world, mode, moves)
    world.check()


@given(st.sampled_from(list(Mode)), st.integers(1, 3), MOVES)
@settings(max_examples=150, deadline=None)
def test_whatever_happened_before_the_next_checkpoint_completes(
    mode: Mode, width: int, moves: list[tuple[int, int]]
) -> None:
    world = Queues(width)
    play(world, mode, moves)
    running = [c for c in world.channels if c not in world.ended]
    for channel in running:
        world.send_barrier(channel, Barrier(CheckpointId(9), mode, patience_ms=10.0))
    for channel in world.channels * (max(world.sent.values()) + 1):
        world.process(channel)
    assert not world.held
    assert 9 in world.complete or not running
    assert world.handler.wake_at is None


@given(st.integers(2, 3), MOVES)
@settings(max_examples=80, deadline=None)
def test_at_least_once_never_holds_a_channel_and_never_misses_a_record(
    width: int, moves: list[tuple[int, int]]
) -> None:
    world = Queues(width)
    play(world, Mode.AT_LEAST_ONCE, moves)
    assert not world.held
    for id in world.complete:
        for channel in world.channels:
            cut = world.cut.get((id, channel), 0)
            assert world.snapshots[id][channel] >= cut
