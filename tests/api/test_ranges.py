"""Tests of the Range header of RFC 9110: its own examples and edge cases."""

from __future__ import annotations

import pytest

from api.ranges import ByteRange, UnsatisfiableRangeError, parse_range


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-499", 0, 500),
        ("bytes=500-999", 500, 1000),
        ("bytes=-500", 9500, 10000),
        ("bytes=9500-", 9500, 10000),
        ("bytes=0-0", 0, 1),
        ("bytes=9999-9999", 9999, 10000),
        ("bytes=0-999999", 0, 10000),
        ("bytes=-999999", 0, 10000),
    ],
)
def test_a_range_names_its_bytes_inclusively(header: str, start: int, end: int) -> None:
    assert parse_range(header, 10_000) == ByteRange(start=start, end=end)


@pytest.mark.parametrize("header", [None, "", "bytes=", "bytes=-", "bytes=5-4", "lines=1-2", "bytes=0-1,4-5", "x"])
def test_what_is_no_single_byte_range_means_the_whole_object(header: str | None) -> None:
    assert parse_range(header, 10_000) is None


@pytest.mark.parametrize(("header", "size"), [("bytes=10000-", 10_000), ("bytes=-0", 10_000), ("bytes=0-", 0)])
def test_a_range_behind_the_end_cannot_be_satisfied(header: str, size: int) -> None:
    with pytest.raises(UnsatisfiableRangeError):
        parse_range(header, size)
