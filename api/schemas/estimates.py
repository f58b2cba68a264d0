"""`/v1/estimates`: what a batch would take, and what would become of it."""

from __future__ import annotations

from typing import Literal

from api.schemas.batches import BatchErrors
from api.schemas.wire import WireModel
from jobs.batches.estimating import Verdict


class EstimateObject(WireModel):
    object: Literal["estimate"] = "estimate"
    id: str | None
    """Of one that is exact, or is to be; it is kept for a day."""
    status: Literal["estimated", "counting", "counted", "failed"]
    """`estimated`: by bytes, and nothing more comes. `counting`: by bytes until a worker has counted all lines."""
    counted_lines: int | None
    """How many lines a worker has counted so far; null where that was not asked for."""
    model: str | None
    """That of the first line that names a known one."""
    requests: int
    input_tokens: int
    output_tokens: int
    tokens_basis: str
    """How the tokens were counted, and how far off that may be."""
    checked_lines: int
    """So many of the first lines were checked as validation will check all; of a counted one, all of them."""
    invalid_lines: int
    """Of these."""
    errors: BatchErrors | None
    """What is wrong with them."""
    cost_micros: int
    """The most: at the model's prices of the class, with every answer as long as its max_tokens allows."""
    currency: str
    worker_seconds: float | None
    """Of one worker, at the rate that the live ones were measured at; null where none was."""
    eta: int | None
    """When it would end if it were submitted now; null where nobody knows, or in more than ten years."""
    basis: str
    """What the last two rest on."""
    available_tokens: int | None
    """What the tenant's token limit has left; null: it has none."""
    verdict: Verdict
    """What a create call would come to, as far as lines were checked.

    Of what a worker has counted it leaves out `after`, and what validation finds: the answer to the POST has said that.
    """
    reason: str | None
    """Why it would not be `accepted`, as a sentence."""
    fits_budget: bool
    """Whether a submit would pass: that limit and the budgets in all have room. Others hold back lines as they run."""
