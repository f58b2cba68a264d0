"""Tests that parts counted one by one add up to the count of the whole file."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from jobs.lines.input_estimate import InputEstimate, InputEstimator
from jobs.uploads.part_counts import PartCounter

LINE = json.dumps({"custom_id": "a", "body": {"messages": [{"content": "hello there"}], "max_tokens": 7}}).encode()
PIECES = st.sampled_from([LINE, LINE, b"\n", b"\n", b"\r\n", b"", b"  ", b"\xef\xbb\xbf", b"{", b"x" * 40])
MOST = 16


def whole(content: bytes) -> InputEstimate:
    estimator = InputEstimator(default_max_tokens=MOST)
    estimator.feed(content)
    return estimator.finish()


def put_together(parts: list[bytes], *, piece_bytes: int) -> InputEstimate:
    """Count as `jobs.uploads.completing` does."""
    ends, total = InputEstimator(default_max_tokens=MOST), whole(b"")
    for part in parts:
        counter = PartCounter(default_max_tokens=MOST)
        for start in range(0, len(part), piece_bytes):
            counter.feed(part[start : start + piece_bytes])
        found = counter.finish()
        total += found.whole
        ends.feed(part[: found.head_bytes])
        ends.feed(part[len(part) - found.tail_bytes :])
    return total + ends.finish()


@given(
    pieces=st.lists(PIECES, max_size=12),
    cuts=st.lists(st.integers(0, 600), max_size=5),
    piece_bytes=st.sampled_from([1, 7, 1000]),
)
def test_parts_cut_anywhere_count_as_the_whole(pieces: list[bytes], cuts: list[int], piece_bytes: int) -> None:
    content = b"".join(pieces)
    places = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    parts = [content[start:end] for start, end in itertools.pairwise(places)]
    assert put_together(parts, piece_bytes=piece_bytes) == whole(content)


def test_the_lines_inside_a_part_are_not_read_again() -> None:
    counter = PartCounter(default_max_tokens=MOST)
    counter.feed(b"rest\n" + 1000 * (LINE + b"\n") + b"begin")
    found = counter.finish()
    assert (found.head_bytes, found.tail_bytes, found.whole.num_requests) == (5, 5, 1000)
