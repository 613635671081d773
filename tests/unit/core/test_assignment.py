"""Who holds which slot."""

from penstock.core.assignment import Slots
from penstock.core.ids import WorkerId

A, B, C, D = (WorkerId(name) for name in "abcd")


def test_slots_are_filled_in_the_order_of_the_candidates():
    slots = Slots(2)
    slots.fill([A, B, C])
    assert slots.holders == (A, B) and slots.vacant == 0


def test_too_few_candidates_leave_slots_vacant():
    slots = Slots(3)
    slots.fill([A])
    assert slots.holders == (A, None, None) and slots.vacant == 2


def test_survivors_keep_their_slots_and_the_lost_ones_slot_goes_to_the_first_spare():
    slots = Slots(3)
    slots.fill([A, B, C])
    assert slots.release(B) == 1
    slots.fill([A, C, D])
    assert slots.holders == (A, D, C)


def test_a_worker_without_a_slot_releases_nothing():
    slots = Slots(1)
    slots.fill([A])
    assert slots.release(B) is None and slots.of(B) is None and slots.of(A) == 0


def on_hosts(slots: Slots, **hosts: str) -> Slots:
    for worker, host in hosts.items():
        slots.locate(WorkerId(worker), host)
    return slots


def test_a_lost_ones_slot_goes_to_a_worker_of_the_same_host_before_all_others():
    slots = on_hosts(Slots(2), a="here", b="there", c="there", d="here")
    slots.fill([A, B])
    slots.release(A)
    slots.release(B)
    slots.fill([C, D])
    assert slots.holders == (D, C)


def test_a_slot_goes_to_another_host_rather_than_to_nobody():
    slots = on_hosts(Slots(1), a="here", b="there")
    slots.fill([A])
    slots.release(A)
    slots.fill([B])
    assert slots.holders == (B,)
