"""Tests of results in the order of their lines, one of which may be too long to read at once."""

from __future__ import annotations

import pytest

from jobs.batches import ordered_results
from jobs.batches.ordered_results import OrderedResults
from jobs.errors import ServiceError
from jobs.lines.output_lines import output_line
from jobs.storage import Storage

KEY = "t1/files/results"
NAMES = ["first", 'a "long" one', "last"]


def put(storage: Storage, *lines: bytes) -> None:
    storage.put(KEY, b"".join(line + b"\n" for line in lines))


def test_a_line_that_is_too_long_is_an_error_of_its_request_and_no_end(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_results, "MAX_LINE_BYTES", 1000)
    texts = ["", "x" * 1000, ""]
    lines = [
        output_line("b1", number, name, status_code=200, body={"text": text})
        for number, (name, text) in enumerate(zip(NAMES, texts, strict=True))
    ]
    put(storage, *lines)
    results = OrderedResults(storage, KEY)
    taken = [results.take(name) for name in NAMES]
    assert [line and line["error"] and line["error"]["code"] for line in taken] == [None, "result_too_long", None]
    assert taken[1] is not None
    assert taken[1]["error"]["message"] == f"its result has {len(lines[1]) + 1:,} bytes, and 1,000 can be read"


def test_a_long_line_that_no_batch_has_written_is_refused(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_results, "MAX_LINE_BYTES", 10)
    put(storage, b"what is this", b"x" * 20)
    with pytest.raises(ServiceError, match="line 1 of 't1/files/results' is longer than a line can be, and no result"):
        OrderedResults(storage, KEY)
