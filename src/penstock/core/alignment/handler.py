"""Barrier handling of one subtask: which checkpoint is acted on, in what order, and which signs of one are too late.

Theory of operation
-------------------
Barriers of one checkpoint come in on every input channel; `rounds` says what one checkpoint does with them in each
mode. This module keeps the rounds of different checkpoints apart:

  * A checkpoint is *open* from its first sign (announced, reached, triggered) until its round is done, it is
    aborted, or it is superseded. Several may be open at once: a barrier that is only announced waits its turn
    behind an older one.
  * An id *starts* when a channel is held for it or its snapshot is taken. That supersedes every older open id: some
    sender has skipped the older one, so it can never become complete here. It is declined, its channels are
    released, then the newer one takes what it needs. Two at-least-once checkpoints hold nobody, so the older one is
    superseded only by the snapshot.
  * An id is *answered* once this subtask took its snapshot, declined it or was told that it is aborted. Nothing of
    an answered id is acted on again; so an abort notice that overtakes its barrier is remembered, and a second
    trigger does nothing. A barrier of an id that is older than one that has started, and was never answered, is
    late: declined, once.

    announced --> open --+--> snapshot --> (recording) --> done
                         +--> superseded by a newer id        --> declined
                         +--> abort notice                    --> dropped

Barriers of done ids may still lie in the queues after an overtaking snapshot. They are answered, so reaching them
does nothing.

The source of a stop-the-world checkpoint is paused from its snapshot to the notice of its end, whichever that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from penstock.core.alignment.events import (
    Aborted,
    Announced,
    Completed,
    Ended,
    Ending,
    Event,
    Hold,
    PatienceOver,
    PauseSource,
    Reached,
    Release,
    ResumeSource,
    Snapshot,
    Superseded,
    Triggered,
)
from penstock.core.alignment.rounds import ROUNDS, AtLeastOnceRound, Channels, Instructions, Round
from penstock.core.barrier import Barrier
from penstock.core.ids import ChannelId, CheckpointId

REMEMBERED_IDS = 256
"""How far back answered ids are remembered. An older barrier cannot be under way any more; were it, it would be
declined again, which the coordinator ignores."""

STORY_LENGTH = 64

_Step = Callable[[Round], Instructions]


class BarrierHandler:
    """Feed it every event with `handle`, in order, and do what it answers, in order. `wake_at` says when it wants
    `PatienceOver`."""

    def __init__(self, channels: Iterable[ChannelId]) -> None:
        self._channels = Channels.of(channels)
        self._open: dict[CheckpointId, Round] = {}
        self._answered: set[CheckpointId] = set()
        self._newest_started = CheckpointId(-1)
        self._paused_for: CheckpointId | None = None
        self._story: deque[tuple[float, Event, Instructions]] = deque(maxlen=STORY_LENGTH)

    @property
    def wake_at(self) -> float | None:
        if not self._open:
            return None
        times = [time for round in self._open.values() if (time := round.wake_at) is not None]
        return min(times) if times else None

    def must_wait(self, channel: ChannelId) -> bool:
        """Whether the end of data on this channel has to wait: its barrier was reached, but the snapshot is still
        to come. Only an at-least-once round lets anything through at all then. Were the end let through, the
        snapshot would say that all input had ended, and a restore from it would refuse the records that the
        channel's sender replays."""
        return any(channel in round.reached and not round.taken for round in self._open.values())

    def handle(self, event: Event, now: float) -> Instructions:
        answer = self._decide(event, now)
        self._story.append((now, event, answer))
        return answer

    def story(self) -> str:
        """The last events with their answers, for a person who looks at a failure."""
        return "\n".join(f"{now:.3f} {event} -> {answer}" for now, event, answer in self._story)

    def _decide(self, event: Event, now: float) -> Instructions:
        match event:
            case Announced(channel, barrier):
                round, answer = self._round_of(barrier, now)
                return answer if round is None else self._advance(round, round.on_announced(channel, barrier, now))
            case Reached(channel, barrier):
                known = self._open.get(barrier.checkpoint)
                return [] if known is None else self._advance(known, known.on_reached(channel, now))
            case Triggered(barrier):
                round, answer = self._round_of(barrier, now)
                if round is None or round.triggered:
                    return answer
                return self._advance(round, round.on_triggered(now))
            case PatienceOver():
                return self._each(lambda round: round.on_patience_over(now))
            case Ending(channel):
                self._channels.ending.add(channel)
                return self._each(lambda round: round.on_ending(channel))
            case Ended(channel):
                self._channels.ended.add(channel)
                return self._each(lambda round: round.on_ended(now))
            case Aborted(checkpoint):
                return self._abort(checkpoint)
            case Completed(checkpoint):
                return self._complete(checkpoint)

    def _round_of(self, barrier: Barrier, now: float) -> tuple[Round | None, Instructions]:
        """The round that a sign belongs to; None for a sign that is too late, with what to say about it."""
        checkpoint = barrier.checkpoint
        known = self._open.get(checkpoint)
        if known is not None or checkpoint in self._answered:
            return known, []
        if checkpoint < self._newest_started:
            self._answer(checkpoint)
            return None, [Superseded(checkpoint)]
        fresh = ROUNDS[barrier.mode](barrier, self._channels, now)
        self._open[checkpoint] = fresh
        self._open = dict(sorted(self._open.items()))
        return fresh, []

    def _each(self, step: _Step) -> Instructions:
        answer: Instructions = []
        for checkpoint, round in list(self._open.items()):
            if checkpoint in self._open:
                answer += self._advance(round, step(round))
        return answer

    def _advance(self, round: Round, answer: Instructions) -> Instructions:
        """Puts in front of a round's answer what it means for older rounds, and closes the round when it is done."""
        checkpoint = round.barrier.checkpoint
        before: Instructions = []
        if any(isinstance(instruction, Hold | Snapshot) for instruction in answer):
            self._newest_started = checkpoint
            for older in [id for id in self._open if id < checkpoint]:
                before += self._drop(older)
                before.append(Superseded(older))
        for instruction in answer:
            if isinstance(instruction, PauseSource):
                self._paused_for = checkpoint
        if round.done:
            self._answer(checkpoint)
            del self._open[checkpoint]
        return before + answer if before else answer

    def _drop(self, checkpoint: CheckpointId) -> Instructions:
        self._answer(checkpoint)
        round = self._open.pop(checkpoint, None)
        return [Release(round.held)] if round is not None and round.held else []

    def _abort(self, checkpoint: CheckpointId) -> Instructions:
        return self._drop(checkpoint) + (self._resume() if checkpoint == self._paused_for else [])

    def _complete(self, checkpoint: CheckpointId) -> Instructions:
        return self._resume() if self._paused_for is not None and checkpoint >= self._paused_for else []

    def _resume(self) -> Instructions:
        assert self._paused_for is not None
        paused_for, self._paused_for = self._paused_for, None
        return [ResumeSource(paused_for)]

    def _answer(self, checkpoint: CheckpointId) -> None:
        self._answered.add(checkpoint)
        if len(self._answered) > 2 * REMEMBERED_IDS:
            self._answered = set(sorted(self._answered)[-REMEMBERED_IDS:])

    def validate(self) -> None:
        """Raises `AssertionError` with the story where an invariant does not hold."""
        channels = self._channels
        holding = [r for r in self._open.values() if r.held and not isinstance(r, AtLeastOnceRound)]
        facts = {
            "only known channels end": channels.ended <= channels.ending <= set(channels.all),
            "an open id is not answered": not self._answered & set(self._open),
            "open ids are in order": list(self._open) == sorted(self._open),
            "no open round is done": not any(r.done for r in self._open.values()),
            "only one checkpoint holds channels": len(holding) <= 1,
            "a held channel has not ended": not any(set(r.held) & channels.ended for r in holding),
            "what is recorded is still to come": not any(
                set(r.recording) & (r.announced | channels.ending) for r in self._open.values()
            ),
            "an aligned round with all barriers is taken": not any(
                r.reached.keys() | channels.ended >= channels.all.keys() and r.reached and not r.taken
                for r in self._open.values()
            ),
            "nothing older than what has started is open": all(id >= self._newest_started for id in self._open),
        }
        broken = [fact for fact, holds in facts.items() if not holds]
        assert not broken, f"barrier handler: broken: {'; '.join(broken)}\n{self.story()}"
