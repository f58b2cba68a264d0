"""Tests of chaos over flows: its engine, its final checks, and all recipes under faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest
from lab import no_compute
from lab.chaos.flows.end_checks import missed_ticks
from lab.no_compute.stated import StatedEngine, stated, stating

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "examples" / "demo_model"
COUNTS = {
    "--worker-kills": 1,
    "--stopped-workers": 0,
    "--engine-crashes": 0,
    "--valkey-losses": 1,
    "--postgres-crashes": 1,
    "--broken-connections": 1,
    "--role-kills": 8,
}
QUICK = {"LEASE_SECONDS": "5", "HEARTBEAT_SECONDS": "1", "HINT_AGAIN_SECONDS": "3", "CLAIM_ALONE_SECONDS": "1"}
"""Short, so that a killed worker's flows go on within the test."""
START = datetime(2026, 11, 28, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_flows_of_all_recipes_hand_out_and_bill_everything_once_whatever_fails(
    memory_folder: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    counts = [word for option, num in COUNTS.items() for word in (option, str(num))]
    more = ["--flows", "12", "--minutes", "0.5", "--workers", "1", "--store-minutes", "0.34", "--seed", "2"]
    places = ["--report", str(report), "--data-dir", str(memory_folder)]
    run = subprocess.run(
        [sys.executable, "-m", "cli.main", "bench", "chaos", *counts, *more, *places],
        cwd=ROOT,
        env=os.environ | {f"TOKENMILL_{name}": value for name, value in QUICK.items()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(report.read_text())
    assert result["findings"] == []
    assert sum(each["flows"] for each in result["flows"].values()) >= 12
    assert {"run", "extraction", "index", "translation", "after", "passages"} <= set(result["flows"])
    assert {"api", "control", "dispatch", "prepare"} <= set(result["processes_killed"])


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
