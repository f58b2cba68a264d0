"""Results of a stage in the order of its lines: an answer, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.batches.ordered_results import OrderedResults
from jobs.batches.retrieval.stages import RetrievalStage
from jobs.storage import Storage

UNAVAILABLE = "context_unavailable"
"""Code of a line whose passages were not looked up, or are lost: a retry of the line may get them."""

INDEX_NOT_FOUND = "index_not_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageError:
    """Why a line of a stage has no answer."""

    code: str
    message: str


class StageResults:
    """The output and error files of a stage, read side by side."""

    def __init__(self, storage: Storage, stage: RetrievalStage) -> None:
        self._answers = OrderedResults(storage, stage.output_key)
        self._errors = OrderedResults(storage, stage.errors_key)
        self._stage = stage

    def take(self, custom_id: str) -> Mapping[str, Any] | StageError:
        """Return the answer's body of a line, or its error; call once per line, in order."""
        answer = self._answers.take(custom_id)
        if answer is not None and answer["error"] is None:
            body: Mapping[str, Any] = answer["response"]["body"]
            return body
        failed = answer or self._errors.take(custom_id)
        if failed is None:
            why = self._stage.problem or "its results are gone"
            return StageError(code=UNAVAILABLE, message=f"batch {self._stage.batch_id} is {self._stage.state}: {why}")
        if failed["error"] is not None:
            reason = f"batch {self._stage.batch_id}: {failed['error']['message']}"
            return StageError(code=UNAVAILABLE, message=reason)
        error = failed["response"]["body"]["error"]
        return StageError(code=str(error["code"]), message=str(error["message"]))
