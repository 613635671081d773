"""The small writes of a worker's subtasks go into one file for each checkpoint, whoever comes when."""

from __future__ import annotations

import errno
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.handles import PartHandle
from penstock.core.ids import Attempt, ChainId, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.settings import LayerSettings
from penstock.runtime.clock import SystemClock
from penstock.runtime.pool import Pool
from penstock.runtime.ports import CHANNELS, STATE, Note, WriteFailed, WriteId, Written
from penstock.runtime.snapshots import AttemptFiles, PooledSnapshotWriter
from penstock.simulation.files import MemoryFiles
from penstock.state.parts import CapturedPart, PartKind
from penstock.store.layout import checkpoint_directory
from penstock.store.local import LocalFiles
from penstock.store.parts import reader

UID = Uid("sums")


class ManualPool(Pool):
    """Does what was submitted when the test says so."""

    def __init__(self) -> None:
        super().__init__("manual", 0)
        self.jobs: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []

    def submit(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def after(self, seconds: float, job: Callable[[], None]) -> Callable[[], None]:
        assert seconds == 1.0
        self.timers.append(job)
        return lambda: self.timers.remove(job) if job in self.timers else None

    def run(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    def let_time_pass(self) -> None:
        due, self.timers = self.timers, []
        for job in due:
            self.submit(job)
        self.run()


def named(number: int) -> SubtaskId:
    return SubtaskId(ChainId(f"chain {number}"), 3)


@dataclass
class Worker:
    """One attempt of a worker with some subtasks, which all run in slot 3."""

    count: int
    inline: int = 0
    shared: int = 100
    pool: ManualPool = field(default_factory=ManualPool)
    files: MemoryFiles = field(default_factory=MemoryFiles)
    notes: dict[int, list[Note]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        settings = LayerSettings(inline=self.inline, shared=self.shared, wait_for_others=1.0)
        subtasks = [named(number) for number in range(self.count)]
        self.around = AttemptFiles.of(
            self.files, self.pool, SystemClock(), Generation(2), Attempt(5), settings, subtasks
        )
        self.writers = [
            PooledSnapshotWriter(self.around, subtask, self.notes[number].append)
            for number, subtask in enumerate(subtasks)
        ]

    def write(
        self,
        number: int,
        content: bytes,
        checkpoint: int = 1,
        ticket: int = STATE,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """`meanwhile` happens while the content is encoded."""

        def encode() -> Sequence[bytes]:
            meanwhile()
            return [content[:2], content[2:]]

        part = CapturedPart("state", PartKind.LIST, encode)
        self.writers[number].write(WriteId(CheckpointId(checkpoint), ticket), {UID: [part]})

    def skip(self, number: int, checkpoint: int = 1, ticket: int = STATE) -> None:
        self.writers[number].skip(WriteId(CheckpointId(checkpoint), ticket))

    def drop(self, number: int, checkpoint: int = 1) -> None:
        for ticket in (STATE, CHANNELS):
            self.writers[number].drop(WriteId(CheckpointId(checkpoint), ticket))

    def leave(self, number: int) -> None:
        self.around.sharing.leave(named(number))

    def stored(self) -> list[str]:
        return [file.path for file in self.files.list("")]

    def content(self, note: Note) -> list[bytes]:
        assert isinstance(note, Written), note
        directory = checkpoint_directory(note.write.checkpoint)
        return [bytes(reader(self.files, directory, handle)()) for handle in note.handles]

    def contents(self) -> list[list[bytes]]:
        """What each subtask was told, read back."""
        return [[part for note in self.notes[number] for part in self.content(note)] for number in range(self.count)]


def full_disk(operation: str, path: str) -> None:
    if operation == "write":
        raise OSError(errno.ENOSPC, "no space left")


def test_subtasks_of_a_worker_share_one_file() -> None:
    worker = Worker(3)
    for number in range(3):
        worker.write(number, b"state %d" % number)
    worker.pool.run()
    assert worker.stored() == ["checkpoints/1/g2-a5.w3-0-0.data"]
    assert worker.contents() == [[b"state 0"], [b"state 1"], [b"state 2"]]
    assert worker.pool.timers == [], "nothing is left to wait for"


def test_nothing_is_written_before_all_have_spoken() -> None:
    worker = Worker(3)
    worker.write(0, b"first")
    worker.skip(1)
    worker.pool.run()
    assert worker.stored() == []
    worker.write(2, b"last")
    worker.pool.run()
    assert worker.contents() == [[b"first"], [], [b"last"]]


def test_one_who_only_skips_completes_the_file_too() -> None:
    worker = Worker(2)
    worker.write(0, b"state")
    worker.pool.run()
    worker.skip(1)
    worker.pool.run()
    assert worker.contents() == [[b"state"], []]


def test_the_smallest_go_into_the_metadata_and_the_largest_into_a_file_of_their_own() -> None:
    worker = Worker(4, inline=4, shared=8)
    for number, content in enumerate([b"tiny", b"small", b"too large to share", b"small 2"]):
        worker.write(number, content)
    worker.pool.run()
    own, shared = worker.stored()
    assert own.startswith("checkpoints/1/g2-a5-chain_2~")
    assert shared == "checkpoints/1/g2-a5.w3-0-0.data"
    assert worker.contents() == [[b"tiny"], [b"small"], [b"too large to share"], [b"small 2"]]


def test_state_and_records_in_flight_go_into_different_files() -> None:
    worker = Worker(2)
    for ticket in (STATE, CHANNELS):
        for number in range(2):
            worker.write(number, b"ticket %d" % ticket, ticket=ticket)
    worker.pool.run()
    assert worker.stored() == ["checkpoints/1/g2-a5.w3-0-0.data", "checkpoints/1/g2-a5.w3-1-0.data"]
    assert worker.contents() == [[b"ticket 0", b"ticket 1"]] * 2


def test_one_who_says_nothing_delays_the_others_no_longer_than_agreed_and_shares_the_next_file() -> None:
    worker = Worker(3)
    worker.write(0, b"a")
    worker.write(1, b"b")
    worker.pool.run()
    worker.pool.let_time_pass()
    assert worker.stored() == ["checkpoints/1/g2-a5.w3-0-0.data"]
    worker.write(2, b"c")
    worker.pool.run()
    assert worker.stored() == ["checkpoints/1/g2-a5.w3-0-0.data", "checkpoints/1/g2-a5.w3-0-1.data"]
    assert worker.contents() == [[b"a"], [b"b"], [b"c"]]


def test_one_who_has_ended_delays_nobody() -> None:
    worker = Worker(3)
    worker.leave(2)
    worker.write(0, b"a")
    worker.pool.run()
    worker.leave(1)
    worker.pool.run()
    assert worker.contents() == [[b"a"], [], []]
    worker.write(0, b"b", checkpoint=2)
    worker.pool.run()
    assert worker.contents()[0] == [b"a", b"b"]


def test_all_who_share_a_file_that_cannot_be_written_are_told() -> None:
    worker = Worker(2, files=MemoryFiles(before=full_disk))
    for number in range(2):
        worker.write(number, b"state")
    worker.pool.run()
    for number in range(2):
        (note,) = worker.notes[number]
        assert isinstance(note, WriteFailed)
        assert "no space left" in note.error


def test_one_with_a_large_state_keeps_nobody_waiting_while_it_is_written() -> None:
    ready: list[int] = []
    worker = Worker(2, shared=8, files=MemoryFiles(before=lambda operation, path: ready.append(len(worker.pool.jobs))))
    worker.write(0, b"small")
    worker.write(1, b"too large to share")
    worker.pool.run()
    assert ready == [1, 0], "the small one's file was ready to be written when the large one's began"
    assert worker.contents() == [[b"small"], [b"too large to share"]]


def test_one_whose_encoding_fails_does_not_keep_the_others_waiting() -> None:
    def broken() -> Sequence[bytes]:
        raise ValueError("cannot be encoded")

    worker = Worker(2)
    worker.write(0, b"state")
    worker.writers[1].write(WriteId(CheckpointId(1), STATE), {UID: [CapturedPart("state", PartKind.LIST, broken)]})
    worker.pool.run()
    assert worker.content(worker.notes[0][0]) == [b"state"]
    assert worker.notes[1] == [WriteFailed(WriteId(CheckpointId(1), STATE), "ValueError: cannot be encoded")]


def test_a_file_is_deleted_when_all_who_share_it_have_dropped_it() -> None:
    worker = Worker(2)
    for number in range(2):
        worker.write(number, b"state %d" % number)
    worker.pool.run()
    worker.drop(0)
    worker.pool.run()
    assert worker.content(worker.notes[1][0]) == [b"state 1"]
    worker.drop(1)
    worker.pool.run()
    assert worker.stored() == []


def test_what_is_dropped_before_the_file_is_written_is_left_out_of_it() -> None:
    worker = Worker(2)
    worker.write(0, b"unwanted")
    worker.write(1, b"wanted")
    worker.pool.jobs.pop(0)()
    worker.drop(0)
    worker.pool.run()
    assert worker.notes[0] == []
    assert bytes(worker.files.read(worker.stored()[0])) == b"wanted"


def test_what_is_dropped_while_it_is_encoded_is_left_out_too() -> None:
    worker = Worker(2)
    worker.write(0, b"unwanted", meanwhile=lambda: worker.drop(0))
    worker.write(1, b"wanted")
    worker.pool.run()
    assert worker.notes[0] == []
    assert bytes(worker.files.read(worker.stored()[0])) == b"wanted"


def test_one_who_drops_while_the_file_is_written_is_told_nothing_and_the_others_have_their_shares() -> None:
    worker = Worker(2, files=MemoryFiles(after=lambda operation, path: worker.drop(0)))
    worker.write(0, b"unwanted")
    worker.write(1, b"wanted")
    worker.pool.run()
    assert worker.contents() == [[], [b"wanted"]]


def test_an_attempt_that_has_ended_writes_nothing_more_and_leaves_no_timer() -> None:
    worker = Worker(2)
    worker.write(0, b"early")
    worker.pool.run()
    worker.around.sharing.close()
    assert worker.pool.timers == []
    worker.write(1, b"late")
    worker.pool.run()
    assert (worker.stored(), worker.pool.timers) == ([], [])


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int]]]:
    """Some subtasks and what they do, for two checkpoints: each speaks at most once for each, and may drop it, also
    while it is encoded or while a file is being written."""
    count = draw(st.integers(1, 4))
    steps = []
    for number in range(count):
        for checkpoint in (1, 2):
            steps += [(action, number, checkpoint) for action in draw(st.sampled_from(_SAID))]
        steps += [("leave", number, 0)] * draw(st.booleans())
    steps += [(action, 0, 0) for action in draw(st.lists(st.sampled_from(["run", "run", "time", "fail"]), max_size=12))]
    return count, draw(st.permutations(steps))


_SAID = [
    ["write"],
    ["write"],
    ["skip"],
    ["write", "drop"],
    ["write", "drop"],
    ["write", "drop during a write"],
    ["drop while encoded"],
    ["skip", "drop"],
    [],
]


@given(schedules())
def test_in_any_order_of_writes_drops_failures_and_ends_every_share_is_answered_and_no_file_is_left_over(
    schedule: tuple[int, list[tuple[str, int, int]]],
) -> None:
    count, steps = schedule
    failing = threading.Event()

    def disk(operation: str, path: str) -> None:
        if operation == "write" and failing.is_set():
            failing.clear()
            raise OSError(errno.EIO, "the disk is at fault")

    during_the_next_write: list[tuple[int, int]] = []

    def written_so_far(operation: str, path: str) -> None:
        if operation == "write":
            while during_the_next_write:
                worker.drop(*during_the_next_write.pop())

    worker = Worker(count, files=MemoryFiles(before=disk, after=written_so_far))
    written: set[tuple[int, int]] = set()
    dropped: set[tuple[int, int]] = set()
    for action, number, checkpoint in steps:
        match action:
            case "write":
                worker.write(number, b"state %d of %d" % (checkpoint, number), checkpoint)
                written.add((number, checkpoint))
            case "skip":
                worker.skip(number, checkpoint)
            case "drop":
                worker.drop(number, checkpoint)
                dropped.add((number, checkpoint))
            case "drop during a write":
                during_the_next_write.append((number, checkpoint))
                dropped.add((number, checkpoint))
            case "drop while encoded":
                worker.write(number, b"unwanted", checkpoint, meanwhile=partial(worker.drop, number, checkpoint))
            case "leave":
                worker.leave(number)
            case "run" if worker.pool.jobs:
                worker.pool.jobs.pop(0)()
            case "time":
                worker.pool.let_time_pass()
            case "fail":
                failing.set()
    failing.clear()
    worker.pool.run()
    worker.pool.let_time_pass()
    written_so_far("write", "")
    worker.pool.run()
    named_files = set()
    for number, checkpoint in written - dropped:
        (note,) = [note for note in worker.notes[number] if note.write.checkpoint == checkpoint]  # type: ignore[union-attr]
        if isinstance(note, Written):
            assert worker.content(note) == [b"state %d of %d" % (checkpoint, number)]
            named_files |= {f"{checkpoint_directory(note.write.checkpoint)}/{handle.path}" for handle in note.handles}
    assert set(worker.stored()) == named_files
    assert all(len(worker.notes[number]) <= 2 for number in range(count))


def test_forty_small_operators_of_one_worker_make_one_file_for_each_checkpoint(tmp_path: Path) -> None:
    """With real threads and files."""
    count, size, checkpoints = 40, 50 << 10, 3
    files, pool = LocalFiles(str(tmp_path)), Pool("snapshots", 4)
    subtasks = [named(number) for number in range(count)]
    around = AttemptFiles.of(files, pool, SystemClock(), Generation(1), Attempt(1), LayerSettings(), subtasks)
    answered = threading.Semaphore(0)
    notes: dict[SubtaskId, list[Written]] = defaultdict(list)

    def note(subtask: SubtaskId, answer: Note) -> None:
        assert isinstance(answer, Written), answer
        notes[subtask].append(answer)
        answered.release()

    def writer(subtask: SubtaskId) -> PooledSnapshotWriter:
        return PooledSnapshotWriter(around, subtask, lambda answer: note(subtask, answer))

    def state(number: int, checkpoint: int) -> bytes:
        return bytes([number, checkpoint]) * (size // 2)

    writers = [writer(subtask) for subtask in subtasks]
    for checkpoint in map(CheckpointId, range(1, checkpoints + 1)):
        for number, made in enumerate(writers):
            content = state(number, checkpoint)
            part = CapturedPart("state", PartKind.LIST, lambda content=content: [content])  # type: ignore[misc]
            made.write(WriteId(checkpoint, STATE), {UID: [part]})
            made.skip(WriteId(checkpoint, CHANNELS))
        for _ in range(count):
            assert answered.acquire(timeout=30)
        assert len(files.list(checkpoint_directory(checkpoint))) == 1
    assert pool.close(10)
    for number, subtask in enumerate(subtasks):
        for answer in notes[subtask]:
            (handle,) = answer.handles
            assert isinstance(handle, PartHandle)
            content = reader(files, checkpoint_directory(answer.write.checkpoint), handle)()
            assert bytes(content) == state(number, answer.write.checkpoint)
