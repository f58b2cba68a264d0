"""Results of a node's batch in the order of its lines: an answer, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jobs.batches.ordered_results import OrderedResults
from jobs.errors import NotFoundError, ServiceError
from jobs.lines.filled_lines import UNAVAILABLE
from jobs.storage import Storage
from jobs.tables import Batch

INDEX_NOT_FOUND = "index_not_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """Why a line has no answer."""

    code: str
    message: str


class Answers:
    """The output and error files of a batch that has ended, read side by side."""

    def __init__(self, storage: Storage, batch: Batch, keys: Mapping[str, str], *, may_be_late: bool) -> None:
        """`keys` are the objects of kept files, by the files' ids.

        `may_be_late`: an object that the store lacks may still be found by a later try.
        """
        self._storage = storage
        self._batch = batch
        self._keys = keys
        self._may_be_late = may_be_late
        self._is_lost = False

    def take(self, custom_id: str) -> Mapping[str, Any] | NoAnswer:
        """Return the answer's body of a line, or why it has none; call once per line, in order.

        Raises ServiceError where the store lacks an object that may be late.
        """
        try:
            return self._lost() if self._is_lost else self._taken(custom_id)
        except NotFoundError as error:
            if self._may_be_late:
                raise ServiceError(f"the results of batch {self._batch.id} are missing: {error.message}") from error
            self._is_lost = True
            return self._lost()

    @cached_property
    def _files(self) -> tuple[OrderedResults, OrderedResults]:
        output, errors = (self._keys.get(file_id or "") for file_id in self._file_ids)
        return OrderedResults(self._storage, output), OrderedResults(self._storage, errors)

    @property
    def _file_ids(self) -> tuple[str | None, str | None]:
        return self._batch.output_file_id, self._batch.error_file_id

    def _taken(self, custom_id: str) -> Mapping[str, Any] | NoAnswer:
        answers, errors = self._files
        answer = answers.take(custom_id)
        if answer is not None and answer["error"] is None:
            body: Mapping[str, Any] = answer["response"]["body"]
            return body
        failed = answer or errors.take(custom_id)
        if failed is None:
            return self._lost()
        if failed["error"] is not None:
            reason = f"batch {self._batch.id}: {failed['error']['message']}"
            return NoAnswer(code=UNAVAILABLE, message=reason)
        error = failed["response"]["body"]["error"]
        return NoAnswer(code=str(error["code"]), message=str(error["message"]))

    def _lost(self) -> NoAnswer:
        why = (self._batch.errors or [{}])[0].get("message") or "its results are gone"
        return NoAnswer(code=UNAVAILABLE, message=f"batch {self._batch.id} is {self._batch.state}: {why}")
