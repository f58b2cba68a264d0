"""Tests of chaos over flows: its engine and its final checks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from engine.config import EngineConfig
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest
from lab import no_compute
from lab.chaos.flows import end_checks
from lab.chaos.flows.end_checks import missed_ticks
from lab.no_compute.stated import StatedEngine, stated, stating

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "examples" / "demo_model"
START = datetime(2026, 11, 28, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_an_engine_answers_with_what_the_prompt_states_last(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in no_compute.environment(is_stated=True).items():
        monkeypatch.setenv(name, value)
    engine = StatedEngine(EngineConfig(model=str(DEMO)))
    encode = engine._tokenizer.encode
    prompts = {1: f"Read: {stating('no')} then {stating('yes 7')}!", 2: "nothing is stated"}
    for request_id, prompt in prompts.items():
        engine.add(
            NewRequest(request_id=request_id, prompt_token_ids=encode(prompt).ids, params=SamplingParams(max_tokens=50))
        )
    answers = {delta.request_id: delta.token_ids for delta in engine.step()}
    eos = list(engine.info.eos_token_ids)
    assert answers == {1: [*encode("yes 7").ids, *eos], 2: [*encode("nothing is stated").ids, *eos]}


@pytest.mark.parametrize(
    ("text", "answer"),
    [("a <<<b>>> c", "b"), ("<<<a>>> <<<b", "a"), ("a>>> <<<b", None), ("<<<>>>", ""), ("none", None)],
)
def test_only_text_between_both_marks_is_stated(text: str, answer: str | None) -> None:
    assert stated(text) == answer


def ticks(*runs: tuple[int, int, str]) -> list[tuple[str, datetime, datetime, datetime, int, str]]:
    """Return rows of a schedule that ran for three minutes: minute of the run, runs it stands for, state."""
    at = START.replace(second=0)
    return [("s", START, START + 3 * MINUTE, at + MINUTE * minute, num, state) for minute, num, state in runs]


GOOD = ((1, 1, "succeeded"), (2, 1, "succeeded"), (3, 1, "succeeded"))


@pytest.mark.parametrize("runs", [GOOD, GOOD[:2]], ids=["all", "paused before the last"])
def test_a_run_for_each_minute_is_right(runs: tuple[tuple[int, int, str], ...]) -> None:
    assert list(missed_ticks(ticks(*runs))) == []


@pytest.mark.parametrize(
    "runs",
    [
        GOOD[1:],
        (GOOD[0], GOOD[2]),
        (GOOD[0], GOOD[0], *GOOD[1:]),
        (*GOOD, (4, 1, "succeeded")),
        (*GOOD[:2], (3, 1, "failed")),
        (*GOOD[:2], (3, 2, "skipped")),
    ],
    ids=["first missed", "one missed", "twice", "after the pause", "failed", "skipped"],
)
def test_a_minute_without_its_one_run_is_found(runs: tuple[tuple[int, int, str], ...]) -> None:
    assert len(list(missed_ticks(ticks(*runs)))) == 1


def test_a_schedule_without_any_run_is_found() -> None:
    assert len(list(missed_ticks([("s", START, START + 3 * MINUTE, None, None, None)]))) == 1


class OfOneDatabase:
    """A stack's Postgres, as the final checks use it."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url

    def query(self, sql: str, *values: object) -> list[Any]:
        with psycopg.connect(self._database_url) as connection:
            return connection.execute(sql, values).fetchall()


def test_every_final_check_is_a_statement_of_todays_schema(database_url: str) -> None:
    assert list(end_checks.findings(OfOneDatabase(database_url), key_prefix="s1f")) == []
