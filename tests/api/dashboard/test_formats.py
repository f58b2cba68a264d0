"""Tests of the formats of numbers, durations and shares."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from api.dashboard import formats
from jobs.lines.document_bodies import PREPARE_MODEL


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0"), (9999, "9,999"), (10_000, "10.0k"), (412_345, "412k"), (3_141_592, "3.1M"), (2e12, "2.0T")],
)
def test_counts_are_short(value: float | None, shown: str) -> None:
    assert formats.number(value) == shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"), [(0, 0, "–"), (1, 3, "33 %"), (999, 1000, "99 %"), (5, 5, "100 %")]
)
def test_what_is_not_all_is_never_called_all(part: float, whole: float, shown: str) -> None:
    assert formats.share(part, whole) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (-3, "0 s"), (59, "59 s"), (61, "1 min"), (3700, "1 h 1 min"), (180_000, "2 d 2 h")],
)
def test_lengths_of_time_have_two_units(seconds: float | None, shown: str) -> None:
    assert formats.span(seconds) == shown


def test_moments_are_told_from_now() -> None:
    now = datetime.now(UTC)
    assert formats.ago(now - timedelta(minutes=5)) == "5 min ago"
    assert formats.until(now + timedelta(hours=2, seconds=30)) == "in 2 h 0 min"
    assert formats.until(now - timedelta(minutes=5)) == "5 min ago"
    assert formats.stamp(0) == "1970-01-01 00:00 UTC"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        ((720, 540, 1200), "in 12 min (9 min to 20 min)"),
        ((-5, -9, -1), "in 0 s (0 s to 0 s)"),
        ((720, None, None), "in 12 min"),
    ],
)
def test_an_end_is_told_with_its_interval_and_never_in_the_past(
    seconds: tuple[int, int | None, int | None], shown: str
) -> None:
    now = int(datetime.now(UTC).timestamp()) + 1
    expected, earliest, latest = (None if one is None else now + one for one in seconds)
    assert expected is not None
    assert formats.between(expected, earliest, latest) == shown


def test_what_comes_round_all_the_time_is_just_now() -> None:
    now = datetime.now(UTC)
    assert {formats.ago(now - timedelta(seconds=seconds)) for seconds in (-1, 0, 2, 4)} == {"just now"}
    assert formats.ago(now - timedelta(seconds=7)) == "7 s ago"


@pytest.mark.parametrize(("part", "shown"), [(None, "–"), (0.0, "0.0 %"), (0.9994, "99.9 %"), (1.0, "100.0 %")])
def test_measures_have_a_decimal(part: float | None, shown: str) -> None:
    assert formats.percent(part) == shown


def test_what_no_model_does_is_named_for_what_it_does() -> None:
    assert (formats.model_name("org/tiny"), formats.model_name(PREPARE_MODEL)) == ("org/tiny", "documents")
