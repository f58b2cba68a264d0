"""Tests of following an extraction or an index: lines in a log, bars in a terminal, and an end from outside."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from rich.console import Console

from cli.calls import Calls
from cli.watching import stages
from cli.watching.live_stages import LiveStages
from cli.watching.stages import PlainStages, until_ended


def extraction(*counts: tuple[int, int, int] | None, reason: str | None = None, status: str = "in_progress") -> Any:
    """Return an extraction with stages; of each the completed, failed and all lines."""
    names = ("read", "ask", "ground")
    numbers = ("completed", "failed", "total")
    of_stages = [None if one is None else dict(zip(numbers, one, strict=True)) for one in counts]
    found = [{"name": name, "request_counts": one} for name, one in zip(names, of_stages, strict=False)]
    return {"status": status, "reason": reason, "stages": found}


def test_a_log_has_a_line_for_each_stage_and_reason_and_every_ten_seconds() -> None:
    stream, now = io.StringIO(), [0.0]
    display = PlainStages(stream, monotonic=lambda: now[0])
    for second, shown in (
        (1, extraction()),
        (2, extraction((0, 0, 4))),
        (3, extraction((1, 1, 4))),
        (11, extraction((2, 1, 4))),
        (12, extraction((2, 1, 4), reason="waits for 3 documents")),
        (13, extraction((2, 1, 4), reason="waits for 2 documents")),
        (15, extraction((3, 1, 4), None)),
        (25, extraction((3, 1, 4), (1, 0, 3))),
    ):
        now[0] = second
        display.show(shown)
    assert stream.getvalue().splitlines() == [
        "read 0/4",
        "read 3/4 · waits for 3 documents",
        "read 4/4 · ask 0/0",
        "read 4/4 · ask 1/3",
    ]


def test_a_terminal_has_a_row_for_each_stage_and_the_reason_below() -> None:
    display = LiveStages()
    display.show(extraction((3, 1, 4), (1, 0, 3), None, reason="waits for a worker"))
    console = Console(file=io.StringIO(), width=40, color_system=None)
    console.print(display.rendered())
    rows = cast(io.StringIO, console.file).getvalue().splitlines()
    assert [(row.split()[0], row.split()[-1]) for row in rows[:2]] == [("read", "4/4"), ("ask", "1/3")]
    assert (rows[2].split()[0], rows[3].strip()) == ("ground", "waits for a worker")


class Answers(Calls):
    """A server that gives these answers one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.client: Any = None
        self._answers = iter(answers)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return cast(dict[str, Any], next(self._answers))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_POLL_SECONDS", 0.0)


def test_what_has_ended_is_returned() -> None:
    calls = Answers(extraction(), extraction((0, 0, 1)), extraction((1, 0, 1), status="completed"))
    assert until_ended(calls, "/extractions/1")["status"] == "completed"


def test_between_polls_the_command_may_end_it() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        until_ended(Answers(extraction()), "/extractions/1", on_poll=stop)


def test_a_long_text_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from cli.extracting.records import text_of_document

    parts = [
        {"text": "ab", "end": 2, "num_characters": 5},
        {"text": "cd", "end": 4, "num_characters": 5},
        {"text": "e", "end": 5, "num_characters": 5},
    ]
    assert text_of_document(Answers(*parts), "collection_1", "document_1") == "abcde"
