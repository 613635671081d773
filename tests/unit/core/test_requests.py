"""When the next checkpoint may start."""

import math

from penstock.core.barrier import Mode, Purpose
from penstock.core.requests import Request, Requests
from penstock.core.settings import CheckpointSettings


def started(every: float = 10.0, pause: float = 0.0, concurrent: int = 1, mode: Mode = Mode.ALIGNED) -> Requests:
    settings = CheckpointSettings(every=every, minimum_pause=pause, maximum_concurrent=concurrent, mode=mode)
    requests = Requests(settings)
    requests.attempt_started(now=100.0)
    return requests


def choose(requests: Requests, now: float, under_way: int = 0) -> Request:
    request = requests.choose(now, under_way)
    assert request is not None
    return request


def test_the_first_checkpoint_comes_one_interval_after_the_start():
    requests = started(every=10.0)
    assert requests.choose(109.9, 0) is None and requests.wake(0) == 110.0
    assert choose(requests, 110.0).periodic


def test_the_next_one_comes_one_interval_after_the_last_start():
    requests = started(every=10.0)
    choose(requests, 110.0)
    requests.ended(111.0)
    assert requests.choose(119.9, 0) is None
    assert choose(requests, 120.0).periodic


def test_missed_intervals_make_one_checkpoint_not_several():
    requests = started(every=10.0)
    choose(requests, 150.0)
    requests.ended(150.0)
    assert requests.choose(150.0, 0) is None and requests.wake(0) == 160.0


def test_the_pause_counts_from_the_end_of_the_last_one():
    requests = started(every=10.0, pause=5.0)
    choose(requests, 110.0)
    requests.ended(118.0)
    assert requests.choose(120.0, 0) is None and requests.wake(0) == 123.0
    assert choose(requests, 123.0).periodic


def test_explicit_requests_wait_for_neither_interval_nor_pause():
    requests = started(every=10.0, pause=5.0)
    requests.ended(100.0)
    asked = requests.ask(Purpose.SAVEPOINT)
    assert choose(requests, 100.0) == asked


def test_a_request_that_waits_for_the_limit_is_not_lost():
    requests = started(concurrent=1)
    asked = requests.ask(Purpose.SAVEPOINT)
    assert requests.choose(200.0, 1) is None and requests.wake(1) is None
    assert requests.waiting == (asked,)
    assert choose(requests, 201.0, 0) == asked and requests.waiting == ()


def test_final_goes_before_savepoint_before_checkpoint_whatever_their_age():
    requests = started()
    for purpose in (Purpose.CHECKPOINT, Purpose.SAVEPOINT, Purpose.FINAL):
        requests.ask(purpose)
    order = [choose(requests, 100.0).purpose for _ in range(3)]
    assert order == [Purpose.FINAL, Purpose.SAVEPOINT, Purpose.CHECKPOINT]


def test_requests_of_one_kind_go_by_age_and_those_planned_again_go_first():
    requests = started()
    first, second = requests.ask(Purpose.SAVEPOINT), requests.ask(Purpose.SAVEPOINT)
    assert choose(requests, 100.0) == first
    requests.ask_again(first)
    again = choose(requests, 100.0)
    assert again.id == first.id and again.again
    assert choose(requests, 100.0) == second


def test_a_periodic_one_that_is_planned_again_starts_at_once():
    requests = started(every=10.0, pause=5.0)
    periodic = choose(requests, 110.0)
    requests.ended(110.5)
    requests.ask_again(periodic)
    assert choose(requests, 110.5).id == periodic.id


def test_a_request_may_be_put_off():
    requests = started(every=1000.0)
    requests.ask(Purpose.FINAL, not_before=105.0)
    assert requests.choose(104.0, 0) is None and requests.wake(0) == 105.0
    assert choose(requests, 105.0).purpose is Purpose.FINAL


def test_several_run_at_once_only_in_modes_that_allow_it():
    limits = {mode: started(concurrent=3, mode=mode).limit for mode in Mode}
    assert limits == {
        Mode.ALIGNED: 3,
        Mode.AT_LEAST_ONCE: 3,
        Mode.UNALIGNED: 1,
        Mode.ADAPTIVE: 1,
        Mode.STOP_THE_WORLD: 1,
    }


def test_a_new_attempt_keeps_what_people_asked_for_and_forgets_the_last_ones_own():
    requests = started()
    periodic = choose(requests, 110.0)
    requests.ask_again(periodic)
    requests.ask(Purpose.FINAL)
    asked = requests.ask(Purpose.SAVEPOINT)
    requests.attempt_started(now=200.0)
    assert requests.waiting == (asked,)


def test_without_an_interval_nothing_is_due_by_itself():
    requests = started(every=math.inf)
    assert requests.choose(1e12, 0) is None and requests.wake(0) is None


def test_a_changed_interval_counts_from_the_last_start():
    requests = started(every=1000.0)
    requests.configure(CheckpointSettings(every=5.0))
    assert requests.wake(0) == 105.0
