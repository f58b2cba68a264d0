"""Tests of lines that cannot be read, written or run once their input is filled: each fails alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.states import BatchState, InvalidLines
from jobs.tables import Batch
from tests.features.retrieval.fills.finding import CATS, Finding, line

Submit = Callable[..., Batch]


def limit_lines(finding: Finding, max_line_bytes: int) -> None:
    finding.settings = finding.settings.model_copy(update={"max_line_bytes": max_line_bytes})


def test_a_line_that_is_too_long_to_be_read_has_the_same_error_in_a_filled_input(
    finding: Finding, submit: Submit
) -> None:
    limit_lines(finding, 1000)
    lines = [line("long", None, messages=[{"role": "user", "content": "x" * 1000}]), line("a")]
    batch = submit(lines, invalid_lines="skip")
    assert finding.prepare(batch.id) is BatchState.IN_PROGRESS
    content = finding.content(batch.id).splitlines()
    assert content[0] == lines[0].encode()
    assert json.loads(content[1])["custom_id"] == "a"
    with finding.maker() as session:
        after = session.get_one(Batch, batch.id)
        assert (after.num_requests, after.num_failed) == (2, 1)


def test_a_line_that_is_too_long_with_its_passages_fails_alone(finding: Finding, submit: Submit) -> None:
    limit_lines(finding, 400)
    finding.passages["long"] = {"cats.txt": CATS * 20}
    batch = submit([line("a", index="long"), line("b", top_k=None)])
    assert batch.invalid_lines == InvalidLines.FAIL
    assert finding.prepare(batch.id) is BatchState.IN_PROGRESS
    assert {name: code for name, (code, _) in finding.errors(batch.id).items()} == {"a": "context_length_exceeded"}


def test_a_prompt_that_its_passages_make_too_long_for_the_model_fails_alone(
    finding: Finding, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "contexts", lambda _session: {"m": 20})
    finding.passages["long"] = {"cats.txt": CATS * 100}
    batch = submit([line("a", index="long"), line("b")])
    assert finding.prepare(batch.id) is BatchState.IN_PROGRESS
    assert {name: code for name, (code, _) in finding.errors(batch.id).items()} == {"a": "context_length_exceeded"}


def test_a_line_that_cannot_be_written_again_fails_alone(finding: Finding, submit: Submit) -> None:
    deep = "[" * 300 + "]" * 300
    plain = line("plain", None)
    batch = submit([f'{line("deep")[:-1]},"own":{deep}}}', f'{plain[:-1]},"own":{deep},"context":1}}', line("a")])
    assert finding.prepare(batch.id) is BatchState.IN_PROGRESS
    assert {name: code for name, (code, _) in finding.errors(batch.id).items()} == {"deep": "invalid_request"}
    assert json.loads(finding.content(batch.id).splitlines()[1])["context"] is None


def test_nobody_marks_a_line_as_unfilled_or_cites_passages_but_the_service(
    finding: Finding, submit: Submit, session: Session
) -> None:
    mark: Any = {"error": {"code": "mine", "message": "mine"}}
    bad = json.loads(line("bad", None, model="none")) | {"context": mark}
    escaped = line("escaped", None)[:-1] + r',"\u0063ontext":{"passages":[]}}'
    batch = submit([json.dumps(bad), escaped, line("a")], invalid_lines="skip")
    assert finding.prepare(batch.id) is BatchState.IN_PROGRESS
    assert {name: code for name, (code, _) in finding.errors(batch.id).items()} == {"bad": "model_not_found"}
    assert [one.get("context") is None for one in finding.filled_lines(batch.id)] == [True, True, False]


def test_a_line_that_was_invalid_while_the_input_was_filled_and_is_not_any_more_fails_alone(
    finding: Finding, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = submit([line("a")])
    finding.validate(batch.id)
    with monkeypatch.context() as patched:
        patched.setattr(fleet, "contexts", lambda _session: {"m": 2})  # a worker with a shorter context came and went
        finding.look_up(batch.id)
    assert finding.validate(batch.id) is BatchState.IN_PROGRESS
    assert {name: code for name, (code, _) in finding.errors(batch.id).items()} == {"a": "context_unavailable"}
