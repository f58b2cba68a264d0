"""Tests that few long lines are prepared at once, in order."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from workers.chunks.room import Room
from workers.prompt_lengths import Unwanted


class Visitor(threading.Thread):
    """Waits to enter, and stays until it may leave."""

    def __init__(self, room: Room, size_bytes: int) -> None:
        super().__init__()
        self._room, self._size_bytes = room, size_bytes
        self.is_in, self.may_leave = threading.Event(), threading.Event()
        self.is_wanted, self.was_turned_away = True, False
        self.start()

    def run(self) -> None:
        try:
            with self._room.inside(self._size_bytes, is_wanted=lambda: self.is_wanted):
                self.is_in.set()
                assert self.may_leave.wait(60)
        except Unwanted:
            self.was_turned_away = True

    def leave(self) -> None:
        self.may_leave.set()
        self.join(60)


def test_what_fits_is_in_together_and_what_does_not_waits_in_its_turn() -> None:
    room = Room(max_bytes=10)
    first, second = Visitor(room, 4), Visitor(room, 6)
    assert first.is_in.wait(60)
    assert second.is_in.wait(60)
    third = Visitor(room, 6)
    while not room._queue:
        third.join(0.01)
    fourth = Visitor(room, 1)
    first.leave()
    assert not third.is_in.is_set()
    assert not fourth.is_in.is_set(), "it came after the third"
    second.leave()
    assert third.is_in.wait(60)
    assert fourth.is_in.wait(60)
    third.leave()
    fourth.leave()


def test_what_is_larger_than_the_room_is_in_alone() -> None:
    room = Room(max_bytes=10)
    large = Visitor(room, 100)
    assert large.is_in.wait(60)
    small = Visitor(room, 1)
    assert not small.is_in.is_set()
    large.leave()
    assert small.is_in.wait(60)
    small.leave()


def test_who_is_no_longer_wanted_leaves_the_queue() -> None:
    room = Room(max_bytes=10)
    with room.inside(10, is_wanted=lambda: True):
        waiting = Visitor(room, 1)
        waiting.is_wanted = False
        waiting.join(60)
        assert waiting.was_turned_away
    with pytest.raises(Unwanted), room.inside(1, is_wanted=lambda: False):
        pass
    with room.inside(10, is_wanted=lambda: True):
        pass


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another allocator than glibc's")
def test_who_leaves_gives_the_memory_that_it_has_freed_back() -> None:
    """Below a block that is still allocated, the allocator keeps freed memory in the thread's own heap."""
    room, resident, kept = Room(), [], []

    def work() -> None:
        with room.inside(1, is_wanted=lambda: True):
            blocks = [b"x" * size for size in range(40_000, 42_500)]
            resident.append(resident_bytes())
            kept.append(blocks.pop())
            del blocks
        resident.append(resident_bytes())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    full, left = resident
    assert full - left > 50_000_000


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
