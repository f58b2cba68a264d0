"""Tests of progress in terminals and in pipes."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from cli.watching.display import PlainDisplay, progress_display
from cli.watching.lines_bar import LinesBar
from cli.watching.live_display import LiveDisplay
from cli.watching.progress import (
    BatchProgress,
    Rate,
    Waiting,
    clock,
    figures,
    money,
)
from cli.watching.watch import describe_end


def progress(
    done: int, *, total: int = 100, tokens: int = 0, failed: int = 0, status: str = "in_progress"
) -> BatchProgress:
    return BatchProgress(status=status, done=done, failed=failed, total=total, output_tokens=tokens)


def ended(counts: SimpleNamespace | None, **changes: object) -> SimpleNamespace:
    """Return an openai Batch with the fields read here; it took ten seconds."""
    known: dict[str, object] = {
        "status": "completed", "request_counts": counts, "usage": None, "errors": None, "error_file_id": None,
        "created_at": 1_000, "completed_at": 1_010, "failed_at": None, "expired_at": None, "cancelled_at": None,
    }  # fmt: skip
    return SimpleNamespace(**(known | changes))


def test_the_end_of_a_batch_says_where_to_read_why_lines_failed() -> None:
    counts = SimpleNamespace(completed=5000, failed=2, total=5002)
    batch = ended(counts, usage=SimpleNamespace(output_tokens=1234), error_file_id="file_9")
    assert describe_end(batch).splitlines() == [
        "completed with failures: 5,000 done, 2 failed of 5,002, 123 output tok/s",
        "  why lines failed: tokenmill files download file_9 -o errors.jsonl",
    ]


@pytest.mark.parametrize("counts", [None, SimpleNamespace(completed=0, failed=0, total=0)])
def test_a_batch_that_failed_validation_is_said_to_have_with_its_bad_lines(counts: SimpleNamespace | None) -> None:
    listed = SimpleNamespace(data=[SimpleNamespace(line=3, message="no JSON", code="invalid_json_line")])
    batch = ended(counts, status="failed", errors=listed)
    assert describe_end(batch).splitlines() == ["failed validation:", "  line 3: no JSON (invalid_json_line)"]


def test_the_average_is_of_the_whole_life_of_a_batch_and_unknown_where_the_clock_is_too_coarse() -> None:
    counts, usage = SimpleNamespace(completed=7, failed=0, total=7), SimpleNamespace(output_tokens=3000)
    assert BatchProgress.of(ended(counts, usage=usage)).average == 300.0
    assert BatchProgress.of(ended(counts, usage=usage, completed_at=1_004)).average is None
    assert BatchProgress.of(ended(counts, usage=usage, status="in_progress")).average is None


def test_the_end_shows_the_average_and_guesses_no_time_left() -> None:
    rate = Rate()
    rate.add(0.0, progress(0))
    rate.add(10.0, progress(50, tokens=1000))
    now = replace(progress(50, tokens=1000, failed=2), input_tokens=70, cost_micros=1_234_500, currency="EUR")
    tokens = "tokens 70 in, 1,000 out"
    assert figures(rate, now) == ["ETA 0:00:10", "100 output tok/s", "2 failed", tokens, "cost 1.2345 EUR"]
    ended = replace(now, status="cancelled", average=75.0, cost_micros=0)
    assert figures(rate, ended) == ["75 output tok/s", "2 failed", tokens]


def test_the_servers_own_guess_of_the_end_is_shown_with_the_place_in_the_queue() -> None:
    guessed = replace(progress(0), eta=1_000_090, position=3)
    assert figures(Rate(), guessed, now=lambda: 1_000_000.0) == ["ETA 0:01:30", "3 batches before it"]
    assert figures(Rate(), replace(guessed, position=0), now=lambda: 1_000_100.0) == ["ETA 0:00:00"]


def test_the_servers_interval_stands_beside_the_time_left() -> None:
    guessed = replace(progress(0), eta=1_000_090, eta_earliest=1_000_070, eta_latest=1_000_200)
    assert figures(Rate(), guessed, now=lambda: 1_000_000.0) == ["ETA 0:01:30 (0:01:10 to 0:03:20)"]
    assert figures(Rate(), guessed, now=lambda: 1_000_100.0) == ["ETA 0:00:00 (0:00:00 to 0:01:40)"]


def test_the_time_left_does_not_jump_where_lines_end_in_bursts() -> None:
    """Bursts of 64 lines every 16 s, polled twice a second: after the first two, 4 lines a second are observed."""
    rate, shown = Rate(), list[float]()
    for look in range(2 * 400):
        seconds = look / 2
        now = progress(int(seconds // 16) * 64, total=4000)
        rate.add(seconds, now)
        left = rate.seconds_left(now)
        if seconds > 40 and left is not None:
            shown.append(left / ((4000 - now.done) / 4))
    assert min(shown) > 0.6
    assert max(shown) < 1.6


@pytest.mark.parametrize(
    ("micros", "shown"), [(0, "0.00"), (420_000, "0.42"), (125, "0.000125"), (1_234_567_890_000, "1,234,567.89")]
)
def test_money_is_shown_in_currency(micros: int, shown: str) -> None:
    assert money(micros) == shown


def test_a_pipe_gets_a_line_when_the_status_changes_and_every_ten_seconds_until_the_end() -> None:
    stream, now = io.StringIO(), [100.0]
    display = PlainDisplay(stream, monotonic=lambda: now[0])
    display.show(progress(0, total=0, status="validating"))
    display.show(progress(0))
    for seconds in range(1, 21):
        now[0] = 100.0 + seconds
        display.show(progress(seconds, tokens=50 * seconds))
    display.show(progress(100, tokens=2000, failed=3, status="completed"))
    assert stream.getvalue().splitlines() == [
        "validating",
        "in progress  0/100",
        "in progress  10/100  ETA 0:01:30  50 output tok/s  tokens 0 in, 500 out",
        "in progress  20/100  ETA 0:01:20  50 output tok/s  tokens 0 in, 1,000 out",
    ]


@pytest.mark.parametrize("is_budget_alone", [False, True])
def test_what_a_batch_waits_for_is_told_each_time_it_changes_but_in_its_numbers(*, is_budget_alone: bool) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, monotonic=lambda: 100.0, waiting=Waiting(is_budget_alone=is_budget_alone))
    first, second = (f"waiting_budget: … {tokens} are available" for tokens in (5, "4,000"))
    worker = "No running worker …"
    for waits_for in (None, first, second, None, worker, second):
        display.show(replace(progress(1), waits_for=waits_for))
    told = [first, second] if is_budget_alone else [first, worker, second]
    assert stream.getvalue().splitlines() == ["in progress  1/100", *told]


def test_lines_that_run_are_shown_until_the_end() -> None:
    running = replace(progress(20), running_lines=64)
    assert "64 running" in figures(Rate(), running)
    assert "64 running" not in figures(Rate(), replace(running, status="completed"))


def test_a_pipe_gets_no_control_characters() -> None:
    stream = io.StringIO()
    with progress_display(stream) as display:
        display.show(progress(3))
    assert stream.getvalue().isprintable() or stream.getvalue().rstrip("\n").isprintable()


def test_a_terminal_gets_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress_display(stream) as display:
        display.show(progress(0, total=0, status="validating"))
        display.show(progress(40))
    assert "40/100" in stream.getvalue()
    assert "None" not in stream.getvalue()
    assert "in progress" in stream.getvalue()


def test_a_terminal_tells_below_the_bar_what_the_batch_waits_for() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress_display(stream) as display:
        display.show(replace(progress(40), waits_for="waiting_budget: [5] tokens"))
    assert "waiting_budget: [5] tokens" in stream.getvalue()


def test_the_rate_forgets_what_is_long_ago() -> None:
    rate = Rate()
    for second in range(20):
        rate.add(float(second), progress(second, tokens=10 * second))
    assert rate.tokens_per_second == pytest.approx(10)
    for second in range(20, 400):
        rate.add(float(second), progress(19, tokens=190))
    assert rate.tokens_per_second == pytest.approx(0, abs=0.1)
    assert rate.seconds_left(progress(19)) is None


def test_nothing_is_guessed_from_one_look() -> None:
    rate = Rate()
    rate.add(0.0, progress(50, tokens=1000))
    assert figures(rate, progress(50)) == []


def test_a_batch_without_counts_has_done_nothing_yet() -> None:
    batch = SimpleNamespace(status="validating", request_counts=None, usage=None)
    assert BatchProgress.of(batch) == progress(0, total=0, status="validating")


def test_failed_lines_are_done_too() -> None:
    counts = SimpleNamespace(completed=5, failed=2, total=9)
    batch = SimpleNamespace(status="in_progress", request_counts=counts, usage=SimpleNamespace(output_tokens=70))
    assert BatchProgress.of(batch) == progress(7, total=9, tokens=70, failed=2)


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0:00:00"), (61, "0:01:01"), (3600 * 30 + 59.6, "30:01:00")])
def test_a_clock_shows_hours_minutes_and_seconds(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


@pytest.mark.parametrize(
    ("completed", "failed", "total", "widths"),
    [
        (0, 0, 14, (0, 0, 28)),
        (14, 0, 14, (28, 0, 0)),
        (1, 13, 14, (2, 26, 0)),
        (0, 14, 14, (0, 28, 0)),
        (3, 4, 14, (6, 8, 14)),
        (999_999, 1, 1_000_000, (27, 1, 0)),
        (0, 1, 1_000_000, (0, 1, 27)),
    ],
)
def test_the_bar_shows_what_failed_as_a_part_of_its_own(
    completed: int, failed: int, total: int, widths: tuple[int, int, int]
) -> None:
    assert LinesBar(completed=completed, failed=failed, total=total).widths(28) == widths


def test_a_terminal_shows_a_batch_with_failed_lines_as_what_it_is() -> None:
    display = LiveDisplay(monotonic=lambda: 0.0, waiting=Waiting())
    display.show(progress(14, total=14, failed=13, status="completed"))
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system="standard", legacy_windows=False)
    console.print(display.rendered())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    bar = shown.splitlines()[0]
    assert "mostly failed" in bar
    assert len(re.search("\x1b\\[31m(━+)", bar)[1]) > len(re.search("\x1b\\[32m(━+)", bar)[1])  # type: ignore[index]
