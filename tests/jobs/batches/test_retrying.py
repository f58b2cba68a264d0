"""Tests of finding a batch's failed lines in its files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jobs.batches.retrying import RetrySource, failed_lines
from jobs.lines.output_lines import error_line
from jobs.storage import Storage

MIB = 2**20
SOURCE = RetrySource(batch_id="b", num_failed=12, input_key="in", errors_key="errors")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


def put(storage: Storage, failed: list[int]) -> None:
    """Store sixteen lines, and an error file with a MiB per failed line."""
    storage.put("in", b"".join(b"line %d\n" % line_no for line_no in range(16)))
    message = "x" * MIB
    errors = [error_line("b", line_no, "a", code="engine_failure", message=message) for line_no in failed]
    storage.put("errors", b"\n".join(errors) + b"\n")


def test_the_error_file_is_read_no_further_than_the_lines_are_wanted(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(storage, list(range(1, 13)))
    num_reads: Counter[str] = Counter()
    read_range = storage.read_range

    def counted(key: str, *args: Any) -> bytes:
        num_reads[key] += 1
        return read_range(key, *args)

    monkeypatch.setattr(storage, "read_range", counted)
    lines = failed_lines(storage, SOURCE)
    assert next(lines) == b"line 1"
    assert num_reads["errors"] == 1
    assert list(lines) == [b"line %d" % line_no for line_no in range(2, 13)]
    assert num_reads["errors"] == 4


def test_a_failed_line_that_the_input_lacks_is_no_silent_loss(storage: Storage) -> None:
    put(storage, [2, 16])
    with pytest.raises(RuntimeError, match="not in the input of b"):
        list(failed_lines(storage, SOURCE))
