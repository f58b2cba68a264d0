"""Tests of the cache of recent results: each is found for its time, and not kept longer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from api.dashboard.recent import Recent


def test_a_value_is_read_anew_once_it_is_too_old() -> None:
    moment, numbers, found = [0.0], count(), []
    recent = Recent(now=lambda: moment[0])
    for moment[0] in (0.0, 4.9, 5.0, 9.9):
        found.append(recent.get("a", lambda: next(numbers), seconds=5))
    assert found == [0, 0, 1, 1]


def test_what_is_too_old_is_forgotten_and_nothing_else() -> None:
    moment, numbers = [0.0], count()
    recent = Recent(now=lambda: moment[0])
    for key, seconds in (("brief", 1), ("long", 10)):
        recent.get(key, lambda: next(numbers), seconds=seconds)
    moment[0] = 2.0
    recent.forget()
    moment[0] = 0.5
    assert recent.get("brief", lambda: next(numbers), seconds=1) == 2, "it was forgotten"
    assert recent.get("long", lambda: next(numbers), seconds=1) == 1


def test_what_is_unknown_of_several_is_read_together() -> None:
    recent, asked = Recent(now=lambda: 0.0), []

    def read(keys: Sequence[str]) -> list[str]:
        asked.append(list(keys))
        return [key.upper() for key in keys]

    assert recent.get_all(["a", "b", "a"], read, seconds=5) == ["A", "B", "A"]
    assert recent.get_all(["c", "b"], read, seconds=5) == ["C", "B"]
    assert asked == [["a", "b"], ["c"]]
