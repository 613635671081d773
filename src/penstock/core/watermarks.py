"""The event time of a task: the smallest of what its input channels say.

A channel that is *idle* has nothing to say and is left out; so is one that has *ended*. While every channel is idle
or ended (and not all have ended) time stands still: nobody knows better. The end of time is reached only when every
channel has said so: an idle one may still have records. Time never goes back: a channel that comes back from idleness
with an older watermark holds the time where it is until it has caught up. Channels that are not *heard* have no say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.core.ids import ChannelId

NO_TIME = -(1 << 63)
"""Before the first watermark."""
END_OF_TIME = (1 << 63) - 1
"""The last watermark of a channel: no record will follow there."""


class WatermarkCombiner:
    def __init__(self, channels: Iterable[ChannelId], unheard: Collection[ChannelId] = ()) -> None:
        self._unheard = frozenset(unheard)
        self._open_unheard = set(unheard)
        self._times: dict[ChannelId, int] = {channel: NO_TIME for channel in channels if channel not in self._unheard}
        self._silent: set[ChannelId] = set()
        self._ended: set[ChannelId] = set()
        self.time = NO_TIME

    @property
    def idle(self) -> bool:
        """No channel has anything to say about time, but one may again."""
        return bool(self._silent) and len(self._silent) + len(self._ended) == len(self._times)

    @property
    def all_ended(self) -> bool:
        return len(self._ended) == len(self._times) and not self._open_unheard

    def watermark(self, channel: ChannelId, time: int) -> bool:
        """True: `time` of the task has advanced."""
        if channel in self._unheard:
            return False
        before = self._times[channel]
        if time <= before:
            return False
        self._times[channel] = time
        return before <= self.time and self._recompute()

    def silence(self, channel: ChannelId, idle: bool) -> bool:
        if channel in self._ended or channel in self._unheard:
            return False
        (self._silent.add if idle else self._silent.discard)(channel)
        return self._recompute()

    def end(self, channel: ChannelId) -> bool:
        if channel in self._unheard:
            self._open_unheard.discard(channel)
            return False
        self._ended.add(channel)
        self._silent.discard(channel)
        return self._recompute()

    def capture(self) -> dict[ChannelId, tuple[int, bool]]:
        """Time and idleness of the channels that have said anything and may say more."""
        return {
            channel: (time, channel in self._silent)
            for channel, time in self._times.items()
            if channel not in self._ended and (time != NO_TIME or channel in self._silent)
        }

    def restore(self, captured: Mapping[ChannelId, tuple[int, bool]], time: int) -> None:
        """Takes up what `capture` gave; channels that are not there any more are left out."""
        for channel, (at, idle) in captured.items():
            if channel in self._times:
                self._times[channel] = at
                if idle:
                    self._silent.add(channel)
        self.time = time

    def _recompute(self) -> bool:
        left_out = self._silent, self._ended
        if left_out[0] or left_out[1]:
            speaking = [t for c, t in self._times.items() if c not in left_out[0] and c not in left_out[1]]
        else:
            speaking = list(self._times.values())
        if not speaking:
            return False
        time = min(speaking)
        if time <= self.time or (time == END_OF_TIME and not self._all_at_the_end()):
            return False
        self.time = time
        return True

    def _all_at_the_end(self) -> bool:
        return all(time == END_OF_TIME or channel in self._ended for channel, time in self._times.items())
