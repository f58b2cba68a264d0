"""The results of lines as they are stored: an answer, the refusal of a body, a failure. No engine, no SQL."""

from __future__ import annotations

import time
from typing import Protocol

from engine.errors import InvalidParamsError
from jobs.accounts.covers import Covered
from jobs.chunks.recording import LineResult
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.body_checks import BodyError
from jobs.lines.output_lines import answer_of, error_line, output_line, response_id
from jobs.lines.reading import InputLine
from jobs.lines.responses import copied_body, error_body, is_truncated
from workers.answers import AnswerMaker
from workers.line_run import LineRun

MAX_RESULT_BYTES = 256 * 2**20
"""Of one result: Postgres stores 1 GB, and takes more memory than that for it."""


class Uncovered(Protocol):
    """A line that no budget covers."""

    @property
    def line_no(self) -> int: ...

    @property
    def custom_id(self) -> str: ...

    @property
    def most_tokens(self) -> int:
        """Return how many it might have used."""


class FailureMaker:
    """Makes the results of one batch's lines that have no answer; none of them is billed."""

    def __init__(self, batch_id: str) -> None:
        self._batch_id = batch_id

    def refusal(self, line: InputLine, error: BodyError | InvalidParamsError) -> LineResult:
        """Return the result of a body that cannot be run."""
        param, code = (error.param, error.code) if isinstance(error, BodyError) else (None, "invalid_value")
        body = error_body(str(error), code=code, param=param)
        content = output_line(self._batch_id, line.line_no, line.custom_id, status_code=400, body=body)
        return LineResult(line_no=line.line_no, status_code=400, line=content)

    def failure(self, line_no: int, custom_id: str | None, *, message: str) -> LineResult:
        """Return the result of a line that failed at run time: no response."""
        content = error_line(self._batch_id, line_no, custom_id, code="engine_failure", message=message)
        return LineResult(line_no=line_no, status_code=None, line=content)

    def uncovered(
        self,
        line: Uncovered,
        found: Covered,
        *,
        most_picos: int,
        currency: str,
        advice: str = "Lower max_tokens, or ask for a higher limit.",
    ) -> LineResult:
        """Return the result of a line that did not fit into a budget of its tenant; it might have cost `most_picos`."""
        shortage = found.shortage_of(tokens=line.most_tokens, picos=most_picos, currency=currency)
        message = f"This line {shortage}. It was not run and is not billed. {advice}"
        content = error_line(self._batch_id, line.line_no, line.custom_id, code="insufficient_quota", message=message)
        return LineResult(line_no=line.line_no, status_code=None, line=content)

    def fault(self, line_no: int, custom_id: str | None, *, error: Exception) -> LineResult:
        """Return the result of a line that a fault of ours has ended."""
        message = (
            f"An internal error, {type(error).__name__}, ended this line; the worker's log has it under batch "
            f"{self._batch_id} line_no {line_no}. Report it to who runs this service."
        )
        return self.failure(line_no, custom_id, message=message)


class ResultMaker(FailureMaker):
    """Makes the results of one batch's lines; only answers are billed."""

    def __init__(self, batch_id: str, answers: AnswerMaker) -> None:
        super().__init__(batch_id)
        self._answers = answers
        self._created = int(time.time())

    def answer(self, run: LineRun) -> LineResult:
        """Return the result of a line that the engine has finished."""
        line = run.prepared
        prefix = "chatcmpl" if run.prepared.endpoint == CHAT_ENDPOINT else "cmpl"
        body_id = response_id(prefix, self._batch_id, line.line_no)
        answer = self._answers.make(run, response_id=body_id, created=self._created)
        content = output_line(self._batch_id, line.line_no, line.custom_id, status_code=200, body=answer.body)
        if len(content) > MAX_RESULT_BYTES:
            return self.failure(line.line_no, line.custom_id, message=_too_large(len(content)))
        return LineResult(
            line_no=line.line_no,
            status_code=200,
            line=content,
            input_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            output_tokens=answer.usage.completion_tokens,
            is_truncated=answer.is_truncated,
        )

    def copy(self, line_no: int, custom_id: str, *, original: bytes) -> LineResult:
        """Return the result of a line that is the same as another, whose line of the output file is `original`.

        It is not billed: what is computed once is billed once.
        """
        copy_of, answer = answer_of(original)
        prefix, _, _ = answer["id"].partition("-")
        body = copied_body(answer, response_id(prefix, self._batch_id, line_no), copy_of=copy_of)
        content = output_line(self._batch_id, line_no, custom_id, status_code=200, body=body)
        return LineResult(line_no=line_no, status_code=200, line=content, is_truncated=is_truncated(body))


def _too_large(num_bytes: int) -> str:
    return (
        f"this line's answer has {num_bytes:,} bytes and {MAX_RESULT_BYTES:,} are stored of one; it is not billed. "
        "Lower n, max_tokens or the number of log-probabilities, or use more lines"
    )
