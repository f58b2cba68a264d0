"""Statistics of a step's answers: counts that add up over runs, and no text of a row or an answer.

Reports compare them with those of earlier runs, so they are kept with the run, and no result file is read again.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from features.pipelines.rows.outputs.answer_columns import TEXT_COLUMN, Answer
from features.pipelines.rows.outputs.column_types import ColumnType, Kind
from features.pipelines.step_rows import AnsweredRow
from features.pipelines.step_work.answered_rows import AnswerShape

MOST_FIELDS = 50
"""Of an answer, in the order of its schema."""
MOST_LABELS = 50
"""Values of a field that its schema lists; a field of more has no labels."""
MOST_FAILED_ROWS = 20
"""Failed rows whose ids are kept."""
MOST_CODES = 20
NOT_RENDERED, OTHER = "not_rendered", "other"
_MAX_LABEL = 100  # characters
_MAX_NAME = 100
_MOST_LABEL_CHARACTERS = 5000
"""Of all fields together; a field beyond has no labels. Reports read the statistics of many steps."""
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
_OWN_CODE = re.compile(r"\((empty|invalid_json|invalid_type|length)\)$", re.ASCII)
"""The codes of answers that do not fit; a refusal, too, is between brackets at the end of an error."""


@dataclass(slots=True)
class _Field:
    """The values of one column of the answers."""

    labels: frozenset[str] | None
    """None: the column has no fixed values."""
    counts: Counter[str] = field(default_factory=Counter)
    """Answers by label; a server that does not enforce schemas may answer others."""
    num_values: int = 0
    num_nulls: int = 0
    num_lengths: int = 0
    log_sum: float = 0.0
    log_squares: float = 0.0

    def add(self, value: Any) -> None:
        if value is None:
            self.num_nulls += 1
            return
        self.num_values += 1
        if self.labels is not None:
            label = label_of(value)
            self.counts[label if label in self.labels else OTHER] += 1
        elif isinstance(value, str | list):
            # Logarithms, as one answer of a thousand times the usual length must not decide alone.
            logarithm = math.log1p(len(value))
            self.num_lengths += 1
            self.log_sum += logarithm
            self.log_squares += logarithm * logarithm

    def stored(self) -> dict[str, Any]:
        counts: dict[str, Any] = {"values": self.num_values, "nulls": self.num_nulls}
        if self.labels is not None:
            counts["labels"] = dict(self.counts)
        if self.num_lengths:
            counts["lengths"] = {"values": self.num_lengths, "log_sum": self.log_sum, "log_squares": self.log_squares}
        return counts


@dataclass(slots=True)
class AnswerStatistics:
    """The statistics of one step of one run."""

    shape: AnswerShape
    num_rows: int = 0
    num_failed: int = 0
    _codes: Counter[str] = field(default_factory=Counter)
    _failed_rows: list[str] = field(default_factory=list)
    _fields: dict[str, _Field] = field(init=False)

    def __post_init__(self) -> None:
        columns = self.shape.columns
        if columns is None:
            self._fields = {TEXT_COLUMN: _Field(labels=None)}
            return
        known = [each for each in columns.items() if len(each[0]) <= _MAX_NAME][:MOST_FIELDS]
        self._fields, left = {}, _MOST_LABEL_CHARACTERS
        for name, column in known:
            labels = _labels_of(column)
            size = sum(map(len, labels or ()))
            self._fields[name] = _Field(labels=labels if size <= left else None)
            left -= size if size <= left else 0

    def add(self, row: AnsweredRow, answer: Answer) -> None:
        """Count a row with its answer, or its error."""
        self.num_rows += 1
        if answer.error is not None:
            self._add_failure(row, answer.error)
            return
        for name, one in self._fields.items():
            one.add(answer.values.get(name))

    def stored(self) -> dict[str, Any]:
        """Return the statistics as they are stored."""
        return {
            "rows": self.num_rows,
            "failed": self.num_failed,
            "codes": dict(self._codes),
            "failed_rows": self._failed_rows,
            "fields": {name: one.stored() for name, one in self._fields.items()},
        }

    def _add_failure(self, row: AnsweredRow, error: str) -> None:
        self.num_failed += 1
        code = NOT_RENDERED if row.row.error is not None else _code_of(row.line, error)
        self._codes[code if code in self._codes or len(self._codes) < MOST_CODES else OTHER] += 1
        if len(self._failed_rows) < MOST_FAILED_ROWS:
            self._failed_rows.append(row.row.custom_id)


def label_of(value: Any) -> str:
    """Return a label as a key of JSON: true and false are written as there."""
    return str(value).lower() if isinstance(value, bool) else str(value)[:_MAX_LABEL]


def _labels_of(column: ColumnType) -> frozenset[str] | None:
    """Return the values of a column that its schema lists, which are no text of a row; None if it does not."""
    values = (True, False) if column.kind is Kind.BOOLEAN else column.values
    return None if values is None or len(values) > MOST_LABELS else frozenset(map(label_of, values))


def _code_of(line: Mapping[str, Any] | None, error: str) -> str:
    """Return the code of a line that failed, or of an answer that does not fit, whose error may quote it."""
    failure = None if line is None else _failure_of(line)
    if failure is None:
        own = _OWN_CODE.search(error)
        return OTHER if own is None else own[1]
    code = str(failure.get("code"))
    return code if _CODE.fullmatch(code) else OTHER


def _failure_of(line: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the error of a line of a batch's error file, or of a response; None for an answer."""
    response = line.get("response") or {}
    found = line.get("error") or (response.get("body") or {}).get("error") or None
    return found if isinstance(found, Mapping) else None
