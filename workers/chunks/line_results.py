"""The stored results of lines that are not computed: refusals, failures, copies."""

from __future__ import annotations

from jobs.chunks.recording import LineResult
from jobs.lines.body_checks import BodyError
from jobs.lines.output_lines import answer_of, error_line, output_line, response_id
from jobs.lines.responses import copied_body, error_body, is_truncated


class FailureMaker:
    """Makes the results of one batch's lines that have no computed answer; none of them is billed."""

    def __init__(
        self,
        batch_id: str,
        *,
        code: str = "engine_failure",
        budget_advice: str = "Lower max_tokens, or ask for a higher limit.",
    ) -> None:
        """`code` is for failures at run time; `budget_advice` tells what to do about a line that no budget covers."""
        self._batch_id = batch_id
        self._code = code
        self._budget_advice = budget_advice

    def refusal(self, line_no: int, custom_id: str | None, error: BodyError) -> LineResult:
        """Return the result of a body that cannot be run."""
        body = error_body(error.message, code=error.code, param=error.param)
        content = output_line(self._batch_id, line_no, custom_id, status_code=400, body=body)
        return LineResult(line_no=line_no, status_code=400, line=content)

    def failure(self, line_no: int, custom_id: str | None, *, message: str) -> LineResult:
        """Return the result of a line that failed at run time and has no response."""
        return self._without_response(line_no, custom_id, code=self._code, message=message)

    def uncovered(self, line_no: int, custom_id: str | None, *, shortage: str) -> LineResult:
        """Return the result of a line that did not fit into a budget of its tenant; `shortage` is that of `Covered`."""
        message = f"This line {shortage}. It was not run and is not billed. {self._budget_advice}"
        return self._without_response(line_no, custom_id, code="insufficient_quota", message=message)

    def fault(self, line_no: int, custom_id: str | None, *, error: Exception) -> LineResult:
        """Return the result of a line that an internal error has ended."""
        message = (
            f"An internal error, {type(error).__name__}, ended this line; the worker's log has it under batch "
            f"{self._batch_id} line_no {line_no}. Report it to the operator of this service."
        )
        return self.failure(line_no, custom_id, message=message)

    def copy(self, line_no: int, custom_id: str, *, original: bytes) -> LineResult:
        """Return the result of a line that equals another one, whose line of the output file is `original`.

        It is not billed, as nothing was computed for it.
        """
        copy_of, answer = answer_of(original)
        prefix, _, _ = answer["id"].partition("-")
        body = copied_body(answer, response_id(prefix, self._batch_id, line_no), copy_of=copy_of)
        content = output_line(self._batch_id, line_no, custom_id, status_code=200, body=body)
        return LineResult(line_no=line_no, status_code=200, line=content, is_truncated=is_truncated(body))

    def _without_response(self, line_no: int, custom_id: str | None, *, code: str, message: str) -> LineResult:
        content = error_line(self._batch_id, line_no, custom_id, code=code, message=message)
        return LineResult(line_no=line_no, status_code=None, line=content)
