"""Tests of the two parts of the bar of lines."""

from __future__ import annotations

import pytest

from api.dashboard.bars import bar, full_bar


@pytest.mark.parametrize(
    ("completed", "failed", "total", "ends"),
    [
        (0, 0, 0, ("0", "0")),
        (0, 3, 0, ("0", "0")),
        (0, 0, 14, ("0", "0")),
        (7, 0, 14, ("500", "0")),
        (14, 0, 14, ("1000", "0")),
        (1, 13, 14, ("71", "1000")),
        (0, 14, 14, ("0", "1000")),
        (0, 7, 14, ("0", "500")),
        (999_999, 1, 1_000_000, ("990", "1000")),
        (0, 1, 1_000_000, ("0", "10")),
    ],
)
def test_what_failed_is_a_part_of_the_bar_and_never_too_short_to_be_seen(
    completed: int, failed: int, total: int, ends: tuple[str, str]
) -> None:
    found = bar("b", completed=completed, failed=failed, total=total)
    assert (found["b.done"], found["b.failing"]) == ends


def test_what_has_no_lines_and_is_done_has_a_full_bar() -> None:
    assert full_bar("0") == {"0.done": "1000", "0.failing": "0"}
