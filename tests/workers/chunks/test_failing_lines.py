"""Tests of lines that cannot be run, sent or answered: each fails alone, and is not billed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.scheduling.request import NewRequest
from jobs.lines.reading import InputLine
from tests.workers.chunks.builders import BILLED, RESULTS, Bench, FakeHost, MakeLine, SubmitLines
from workers.answers import Answer, AnswerMaker
from workers.engine_host.flights import Owner
from workers.line_run import LineRun
from workers.prompts import PreparedLine, PromptMaker


def failed_lines(bench: Bench) -> list[tuple[int, str]]:
    rows = bench.rows("SELECT line_no, line FROM result WHERE status_code IS NULL ORDER BY line_no")
    return [(line_no, json.loads(written)["error"]["message"]) for line_no, written in rows]


def test_a_body_that_cannot_be_run_is_its_lines_error_and_is_not_billed(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    # the template does not support tools: no parser can be chosen
    tools = [{"type": "function", "function": {"name": "f"}}]
    submit_valid([line(0), line(1, tools=tools), line(2, max_tokens=100_000), line(3)])
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, 400), (2, 400), (3, 200)]
    assert bench.rows(BILLED) == [(2, 4)]
    (written,) = bench.rows("SELECT line FROM result WHERE line_no = 1")
    assert json.loads(written[0])["response"]["body"]["error"]["param"] == "tools"


def test_a_failure_of_the_engine_is_its_lines_error_and_is_not_billed(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    host.answer(1, error="it does not fit")
    host.answer(1)
    bench.join()
    assert bench.rows(RESULTS) == [(0, None), (1, 200)]
    assert bench.rows(BILLED) == [(1, 2)]


def test_a_line_that_cannot_be_prepared_for_a_reason_of_ours_fails_alone(
    bench: Bench,
    host: FakeHost,
    submit_valid: SubmitLines,
    line: MakeLine,
    tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(PromptMaker):
        def prepare(self, line: InputLine, **where: Any) -> PreparedLine:
            if line.line_no == 1:
                raise LookupError("no such table")
            return super().prepare(line, **where)

    batch_id = submit_valid([line(number) for number in range(3)])
    prompts = Broken(tokenizer, max_model_len=512, vocab_size=len(tokenizer))
    bench.change_parts(prompts=prompts)
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, None), (2, 200)]
    assert bench.rows(BILLED) == [(2, 4)]
    ((line_no, message),) = failed_lines(bench)
    assert line_no == 1
    assert "LookupError" in message
    assert f"batch_id={batch_id} line_no=1" in caplog.text


def test_a_line_that_the_engine_process_cannot_be_sent_fails_alone(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    class Picky(FakeHost):
        def submit_one(self, new: NewRequest, owner: Owner) -> None:
            if len(self.prompts) == 1:
                self.prompts.append([])
                raise OverflowError("too large for a message")
            super().submit_one(new, owner)

    submit_valid([line(number) for number in range(3)])
    bench.change_parts(host=Picky(instant=True))
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, None), (2, 200)]


def test_an_answer_that_cannot_be_made_fails_its_line_alone(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, tokenizer: Any
) -> None:
    class Broken(AnswerMaker):
        def make(self, run: LineRun, *, response_id: str, created: int, adapter: str | None = None) -> Answer:
            if run.prepared.line_no == 1:
                raise TypeError("not a token")
            return super().make(run, response_id=response_id, created=created)

    submit_valid([line(number) for number in range(3)])
    bench.change_parts(answers=Broken(tokenizer, model="demo"))
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, None), (2, 200)]
    assert bench.rows(BILLED) == [(2, 4)]
    ((_, message),) = failed_lines(bench)
    assert "TypeError" in message
