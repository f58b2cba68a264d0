"""Tests that a replayed day is about as recorded, and that changed settings have the expected effects."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.day import Day, DayBatch, DayError, read_day, write_day
from jobs.day_record import RecordedBatch, Span
from jobs.states import Priority
from lab.days.replay import DaySettings, Outcomes, happened, learned_cost, replayed
from lab.replay import main

START = datetime(2026, 11, 20, tzinfo=UTC)
SECONDS_A_LINE = 0.1
LINE = (90, 0, 10)


def batch(tenant: str, arrival: float, num_lines: int, *, first_answer: float, end: float) -> RecordedBatch:
    """Return a batch of a worker that takes a tenth of a second per line."""
    return RecordedBatch(
        tenant=tenant,
        weight=1.0,
        model="m",
        priority="normal",
        arrived_at=START + timedelta(seconds=arrival),
        deadline_at=START + timedelta(seconds=arrival + 150),
        first_answer_at=START + timedelta(seconds=first_answer),
        ended_at=START + timedelta(seconds=end),
        max_tokens=10,
        worker_seconds=num_lines * SECONDS_A_LINE,
        lines=[LINE] * num_lines,
    )


BATCHES = [
    batch("big", 0.0, 1280, first_answer=10.0, end=192.0),
    batch("small", 20.0, 640, first_answer=40.0, end=150.0),
]
"""Together 192 s of one worker."""
ONE_AFTER_THE_OTHER = [
    batch("acme", 0.0, 640, first_answer=1.0, end=64.0),
    batch("acme", 10.0, 640, first_answer=65.0, end=128.0),
    batch("acme", 200.0, 64, first_answer=201.0, end=206.4),
]
"""Of one tenant, so the earliest deadline is first: the result of a worker that runs one line at a time."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "day.jsonl"
    with path.open("w") as out:
        assert write_day(out, Span(num_workers={"m": 1}, num_open=0, num_forgotten=0), BATCHES, start=START) == 2
    return path


@pytest.fixture
def day(path: Path) -> Day:
    return read_day(path)


def ends(outcomes: Outcomes) -> dict[str, float]:
    return {outcome.tenant: outcome.end for outcome in outcomes.batches}


def test_a_day_is_read_as_it_was_written(day: Day) -> None:
    assert (day.model, day.num_workers) == ("m", 1)
    assert day.batches[1] == DayBatch(
        tenant="small", weight=1.0, model="m", priority=Priority.NORMAL, arrival=20.0, deadline=170.0,
        first_answer=40.0, end=150.0, max_tokens=10, worker_seconds=64.0, lines=[LINE] * 640,
    )  # fmt: skip


def test_a_day_is_replayed_to_about_what_happened(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    with path.open("w") as out:
        write_day(out, Span(num_workers={"m": 1}, num_open=0, num_forgotten=0), ONE_AFTER_THE_OTHER, start=START)
    day = read_day(path)
    was = happened(day, num_workers=1)
    again = replayed(day, DaySettings(num_workers=1, max_num_seqs=1), learned_cost(day.batches))
    assert [batch.end for batch in was.batches] == [64.0, 118.0, pytest.approx(6.4)]
    assert [batch.end for batch in again.batches] == pytest.approx([64.0, 118.0, 6.4], rel=0.01)
    assert again.makespan == pytest.approx(was.makespan, rel=0.01)
    assert again.busy == pytest.approx(was.busy, rel=0.01)


def test_another_worker_takes_half_the_time(day: Day) -> None:
    cost = learned_cost(day.batches)
    one, two = (replayed(day, DaySettings(num_workers=number), cost) for number in (1, 2))
    assert two.makespan < 0.6 * one.makespan


def test_weight_and_class_bring_a_tenant_its_answers_earlier_and_cost_the_other_its_time(day: Day) -> None:
    cost = learned_cost(day.batches)
    same = ends(replayed(day, DaySettings(num_workers=1), cost))
    weighted = ends(replayed(day, DaySettings(num_workers=1, weights={"small": 4.0}), cost))
    urgent = ends(replayed(day, DaySettings(num_workers=1, classes={"small": Priority.URGENT}), cost))
    assert urgent["small"] < weighted["small"] < 0.9 * same["small"]
    assert urgent["big"] == pytest.approx(same["big"], rel=0.05), "the work is the same"


def test_a_budget_ends_a_tenants_work_where_it_is_used_up_and_others_have_the_worker(day: Day) -> None:
    cost = learned_cost(day.batches)
    same = ends(replayed(day, DaySettings(num_workers=1), cost))
    enough = replayed(day, DaySettings(num_workers=1, budgets={"big": 1280 * 100}), cost)
    assert ends(enough)["big"] == pytest.approx(same["big"], rel=0.1), "what lines need, to the token"
    short = replayed(day, DaySettings(num_workers=1, budgets={"big": 320 * 100}), cost)
    assert ends(short)["big"] == math.inf
    assert short.batches[0].is_late
    assert ends(short)["small"] < 0.7 * same["small"]
    assert short.makespan == pytest.approx(20 + ends(short)["small"])
    assert short.busy * short.makespan == pytest.approx((320 + 640) * SECONDS_A_LINE, rel=0.02), "320 lines, no more"


def test_lines_wait_for_room_that_ended_lines_leave_below_their_max_tokens(day: Day) -> None:
    asked = replace(day.batches[0], max_tokens=910)  # a line may use 1,000 tokens, and uses 100
    cost = learned_cost(day.batches)
    limited = replayed(
        replace(day, batches=[asked]), DaySettings(num_workers=1, budgets={"big": 1280 * 100 + 900}), cost
    )
    assert ends(limited)["big"] < math.inf
    one_less = DaySettings(num_workers=1, budgets={"big": 1280 * 100 + 899})
    assert ends(replayed(replace(day, batches=[asked]), one_less, cost))["big"] == math.inf


def test_a_chunk_that_waited_for_room_begins_no_earlier_on_an_idle_worker(day: Day) -> None:
    asked = replace(day.batches[0], max_tokens=910, lines=[LINE] * 128)
    room_for_one = DaySettings(num_workers=2, budgets={"big": 1000 + 127 * 100})
    one_by_one = replayed(replace(day, batches=[asked]), room_for_one, learned_cost(day.batches))
    assert ends(one_by_one)["big"] == pytest.approx(128 * SECONDS_A_LINE, rel=0.2)


def test_cached_tokens_count_against_a_budget(day: Day) -> None:
    cached = replace(day, batches=[replace(day.batches[0], lines=[(90, 80, 10)] * 64)])
    cost = learned_cost(cached.batches)
    for tokens, is_enough in ((6400, True), (6399, False)):
        found = replayed(cached, DaySettings(num_workers=1, budgets={"big": tokens}), cost)
        assert (ends(found)["big"] < math.inf) is is_enough


def test_what_never_ends_is_told(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"
    assert main(["day", str(path), "--budget", "big=1000", "--json", str(figures)]) == 0
    assert "never" in capsys.readouterr().out
    groups = json.loads(figures.read_text())["changed"]["groups"]
    assert groups["tenant big"]["end_p50_seconds"] is None
    assert (groups["all"]["never_ended"], groups["tenant small"]["never_ended"]) == (1, 0)


def test_prompt_and_answer_tokens_are_told_apart_where_batches_differ(day: Day) -> None:
    answers = replace(day.batches[0], lines=[(10, 0, 90)] * 10, worker_seconds=10 * (99 * 0.001 + 90 * 0.01))
    prompts = replace(day.batches[0], lines=[(90, 50, 10)] * 10, worker_seconds=10 * (49 * 0.001 + 10 * 0.01))
    cost = learned_cost([answers, prompts])
    assert (cost.per_token, cost.per_logit_row) == pytest.approx((0.001, 0.01))
    alike = learned_cost(day.batches)
    assert (alike.per_token, alike.per_logit_row) == pytest.approx((SECONDS_A_LINE / 99, 0.0))


def test_a_day_is_replayed_from_the_command_line_beside_what_happened(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    assert main(["day", str(path), "--weight", "small=4", "--workers", "2", "--json", str(figures)]) == 0
    printed = capsys.readouterr().out
    assert "| batches of   | batches | happened" in printed
    assert "Deadlines missed" in printed
    found = json.loads(figures.read_text())
    assert set(found) == {"happened", "replayed", "changed"}
    assert set(found["changed"]["groups"]) == {"all", "class normal", "tenant big", "tenant small"}
    assert found["happened"]["groups"]["tenant big"]["late"] == 1
    assert found["changed"]["groups"]["tenant big"]["late"] == 0
    assert found["changed"]["makespan_seconds"] < found["happened"]["makespan_seconds"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--weight", "nobody=2"], "--weight names 'nobody', which has no batch; there are big, small."),
        (["--budget", "nobody=2"], "--budget names 'nobody', which has no batch; there are big, small."),
        (["--model", "other"], "has no batch of 'other'; it has batches of m."),
        (["--num-kv-blocks", "1"], "A line needs 100 tokens, and 1 blocks of 16 hold fewer."),
    ],
)
def test_what_cannot_be_replayed_is_said(
    path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["day", str(path), *options]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--weight", "--budget"])
@pytest.mark.parametrize("given", ["small", "small=0", "=2"])
def test_a_number_that_is_none_is_refused(path: Path, option: str, given: str) -> None:
    with pytest.raises(SystemExit):
        main(["day", str(path), option, given])


_EMPTY = (
    json.dumps({"object": "day", "version": 1, "num_workers": {}})
    + '\n{"priority": "normal", "lines": [], "model": "m"}'
)


@pytest.mark.parametrize("content", ["", "{}", _EMPTY, '{"object": "day", "version": 2}', "no"])
def test_a_file_that_is_no_day_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "day.jsonl"
    path.write_text(content)
    with pytest.raises(DayError):
        read_day(path)


def test_a_day_without_batches_or_with_two_models_is_refused(tmp_path: Path) -> None:
    span = Span(num_workers={}, num_open=0, num_forgotten=0)
    path = tmp_path / "day.jsonl"
    for batches, said in (([], "has no batch"), ([BATCHES[0], replace(BATCHES[1], model="n")], "m, n")):
        out = io.StringIO()
        write_day(out, span, batches, start=START)
        path.write_text(out.getvalue())
        with pytest.raises(DayError, match=said):
            read_day(path)
