from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.states import Priority
from workers.slots import MOST_ABOVE, Slots

URGENT, NORMAL, BULK = Priority.URGENT, Priority.NORMAL, Priority.BULK


def opened(num_slots: int, *classes: Priority, tenant_id: str = "a") -> Slots:
    slots = Slots(num_slots)
    for priority in classes:
        slots.open(priority, tenant_id)
    return slots


def classes_for(slots: Slots, tenant_id: str) -> list[Priority]:
    wanted = slots.wanted
    return list(wanted.classes if tenant_id in wanted.present else wanted.all_classes)


def test_a_free_slot_is_for_every_class() -> None:
    assert classes_for(opened(2, BULK), "a") == list(Priority)
    assert opened(2, BULK).has_room_for_all


def test_above_the_slots_there_is_room_for_better_work_than_the_worst() -> None:
    assert classes_for(opened(2, BULK, BULK), "a") == [URGENT, NORMAL]
    assert classes_for(opened(2, BULK, BULK, NORMAL), "a") == [URGENT]
    assert classes_for(opened(2, BULK, BULK, URGENT), "a") == [URGENT]
    assert classes_for(opened(2, BULK, BULK, URGENT, URGENT), "a") == []
    assert classes_for(opened(2, NORMAL, URGENT), "a") == [URGENT]
    assert classes_for(opened(2, URGENT, URGENT), "a") == []


def test_a_tenant_with_nothing_open_finds_one_more_for_work_no_worse_than_the_worst() -> None:
    assert classes_for(opened(2, NORMAL, NORMAL), "b") == [URGENT, NORMAL]
    assert classes_for(opened(2, URGENT, URGENT), "b") == [URGENT]
    slots = opened(2, BULK, BULK)
    slots.open(BULK, "b")
    assert classes_for(slots, "c") == [URGENT, NORMAL], "the place of newcomers is taken"
    assert classes_for(slots, "a") == [URGENT, NORMAL], "and takes nothing from better work of the others"


def test_the_place_of_newcomers_is_free_again_when_its_work_ends() -> None:
    slots = opened(1, BULK)
    slots.open(BULK, "b")
    slots.close(BULK, "a")
    assert slots.has_room_for_all
    slots.open(BULK, "a")
    assert classes_for(slots, "c") == [URGENT, NORMAL]
    slots.close(BULK, "b")
    assert classes_for(slots, "c") == [URGENT, NORMAL, BULK]
    assert classes_for(slots, "a") == [URGENT, NORMAL]


def test_work_that_turned_out_to_be_of_another_class_takes_nobodys_place() -> None:
    """An urgent chunk whose priority is lowered when it is claimed: its tenant is at its limit of urgent work."""
    slots = opened(1, NORMAL)
    slots.open(NORMAL, "b")
    slots.open(NORMAL, "c")
    assert classes_for(slots, "d") == [URGENT]
    for tenant_id in ("b", "c", "a"):
        slots.close(NORMAL, tenant_id)
    assert classes_for(slots, "a") == list(Priority)


def test_what_has_ended_makes_room() -> None:
    slots = opened(1, BULK, URGENT)
    slots.close(BULK, "a")
    assert classes_for(slots, "a") == []
    slots.close(URGENT, "a")
    assert slots.has_room_for_all


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(list(Priority)), st.sampled_from("abc"))))
def test_no_more_than_three_are_opened_above_the_slots(num_slots: int, wanted: list[tuple[Priority, str]]) -> None:
    slots, num_open = Slots(num_slots), 0
    for priority, tenant_id in wanted:
        if priority in classes_for(slots, tenant_id):
            slots.open(priority, tenant_id)
            num_open += 1
    assert num_open <= num_slots + MOST_ABOVE - 1, "the last one is for surprises"
