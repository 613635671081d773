"""What is kept for people: the deciders' stories and the checkpoints' figures."""

import json

from penstock.core.barrier import Mode, Purpose
from penstock.core.causes import Cause
from penstock.core.handles import SnapshotFigures
from penstock.core.ids import Attempt, ChainId, CheckpointId, SubtaskId
from penstock.core.statistics import CheckpointStatistics, History, Status
from penstock.core.story import Story

MAP = SubtaskId(ChainId("map"), 1)


def statistics(number: int, status: Status = Status.COMPLETED) -> CheckpointStatistics:
    figures = SnapshotFigures(state_bytes=7, in_flight_bytes=3, unaligned=True)
    cause = Cause.DECLINED if status is Status.FAILED else None
    return CheckpointStatistics(
        CheckpointId(number),
        Attempt(1),
        Purpose.CHECKPOINT,
        Mode.ADAPTIVE,
        status,
        1_000,
        12.5,
        2,
        0,
        {MAP: figures},
        cause,
    )


def test_a_story_keeps_the_last_events_in_order_and_finds_those_about_something():
    story = Story(limit=2)
    for number in (1, 2, 3):
        story.tell(float(number), "ack", f"checkpoint {number}")
    assert len(story.lines()) == 2 and "checkpoint 1" not in str(story)
    assert [line.split()[-1] for line in story.lines(about="checkpoint 3")] == ["3"]


def test_sizes_are_summed_over_the_subtasks():
    assert (statistics(1).state_bytes, statistics(1).in_flight_bytes, statistics(1).unaligned) == (7, 3, True)


def test_an_entry_is_plain_json_with_the_cause_and_every_subtask():
    entry = json.loads(json.dumps(statistics(4, Status.FAILED).as_entry()))
    assert entry["cause"] == "declined" and entry["subtasks"]["map[1]"]["state_bytes"] == 7


def test_history_counts_all_and_keeps_the_last():
    history = History(limit=2)
    for number in (1, 2, 3):
        history.add(statistics(number))
    history.add(statistics(4, Status.FAILED))
    assert (history.completed, history.failed) == (3, 1)
    assert [entry.checkpoint for entry in history.last()] == [3, 4]
