from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.states import Priority
from workers.slots import MOST_ABOVE, Slots

URGENT, NORMAL, BULK = Priority.URGENT, Priority.NORMAL, Priority.BULK


def opened(num_slots: int, *classes: Priority) -> Slots:
    slots = Slots(num_slots)
    for priority in classes:
        slots.open(priority)
    return slots


def test_a_free_slot_is_for_every_class() -> None:
    assert opened(2, BULK).classes == [URGENT, NORMAL, BULK]
    assert opened(2, BULK).has_room_for_all


def test_above_the_slots_there_is_room_for_better_work_than_the_worst() -> None:
    assert opened(2, BULK, BULK).classes == [URGENT, NORMAL]
    assert opened(2, BULK, BULK, NORMAL).classes == [URGENT]
    assert opened(2, BULK, BULK, URGENT).classes == [URGENT]
    assert opened(2, BULK, BULK, URGENT, URGENT).classes == []
    assert opened(2, NORMAL, URGENT).classes == [URGENT]
    assert opened(2, URGENT, URGENT).classes == []


def test_what_has_ended_makes_room() -> None:
    slots = opened(1, BULK, URGENT)
    slots.close(BULK)
    assert slots.classes == []
    slots.close(URGENT)
    assert slots.has_room_for_all


@given(st.integers(1, 4), st.lists(st.sampled_from(list(Priority))))
def test_no_more_than_two_are_open_above_the_slots(num_slots: int, wanted: list[Priority]) -> None:
    slots, num_open = Slots(num_slots), 0
    for priority in wanted:
        if priority in slots.classes:
            slots.open(priority)
            num_open += 1
    assert num_open <= num_slots + MOST_ABOVE
