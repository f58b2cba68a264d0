"""`/v1/estimates`: the tokens, cost and time that a batch would take, and whether it would be accepted."""

from __future__ import annotations

from typing import Literal

from api.schemas.batches import BatchErrors
from api.schemas.wire import WireModel
from jobs.batches.estimating import Verdict


class EstimateObject(WireModel):
    object: Literal["estimate"] = "estimate"
    id: str | None
    """Only for exact estimates, which are kept for a day."""
    status: Literal["estimated", "counting", "counted", "failed"]
    """`estimated`: by bytes, and final. `counting`: by bytes until a worker has counted all lines."""
    counted_lines: int | None
    """How many lines a worker has counted so far; null if an exact count was not requested."""
    model: str | None
    """The model of the first line that names a known one."""
    requests: int
    input_tokens: int
    output_tokens: int
    reasoning_tokens_per_line: float | None
    """Tokens of thoughts before the answers of a line, as this model had them in the tenant's last batches that
    thought; part of `output_tokens`, not added. Null if none did."""
    tokens_basis: str
    """How the tokens were counted, and how inaccurate that may be."""
    checked_lines: int
    """How many of the first lines were checked as in validation; all lines once counted."""
    invalid_lines: int
    """How many of the checked lines are invalid."""
    errors: BatchErrors | None
    """Their errors."""
    cost_micros: int
    """The maximum: at the model's prices of the class, with every answer as long as its max_tokens allows."""
    currency: str
    worker_seconds: float | None
    """Seconds of one worker, at the measured rate of the live ones; null if none was measured."""
    eta: int | None
    """When it would end if it were submitted now; null if unknown, or in more than ten years."""
    basis: str
    """How `worker_seconds` and `eta` were derived."""
    available_tokens: int | None
    """Tokens left of the tenant's token limit; null if it has none."""
    verdict: Verdict
    """The outcome of a create call, as far as lines were checked.

    For an exact count it excludes `after` and errors of validation, which the answer to the POST has reported.
    """
    reason: str | None
    """Why the verdict is not `accepted`, as a sentence."""
    fits_budget: bool
    """Whether a submission would pass: token limit and total budgets have room. Other budgets only delay lines."""
