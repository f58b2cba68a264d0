"""Bodies of the results of an evaluation against gold."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Literal, Self

from api.schemas.wire import WireModel
from features.documents.extraction.evaluation.evaluate import Evaluation, Measures
from features.documents.extraction.evaluation.metrics import Bin, RiskPoint

_MOST_POINTS = 200


class MeasuresObject(WireModel):
    """Shares are from 0 to 1; null if there was nothing to measure."""

    right: int
    wrong: int
    """Extracted, but different from gold, which may be null."""
    missed: int
    """In gold, but missing or different in the record."""
    precision: float | None
    recall: float | None
    f1: float | None
    anls: float | None
    """Mean similarity of gold values and extracted values (ANLS*)."""
    null_right: float | None
    """Share of gold nulls that are null in the record."""
    grounded: float | None
    """Share of the values that must occur in the document that were located there."""
    span_overlap: float | None
    """Mean overlap (IoU) of the places of right values whose place is in the gold."""
    calibration_error: float | None
    brier: float | None
    auroc: float | None
    automated: float | None
    """The share that could go without review with 99 % of it right."""

    @classmethod
    def of(cls, measures: Measures) -> Self:
        own, rates = asdict(measures), measures.rates
        counts = own.pop("rates")
        return cls(**own, **counts, precision=rates.precision, recall=rates.recall, f1=rates.f1)


class CalibrationBin(WireModel):
    """Values with similar scores: their mean score and the share that is right."""

    count: int
    mean_score: float
    share_right: float

    @classmethod
    def of(cls, calibration_bin: Bin) -> Self:
        return cls(**asdict(calibration_bin))


class RiskCoverage(WireModel):
    """The share of values with at least this score, and the share of wrong values among them."""

    threshold: float
    coverage: float
    risk: float

    @classmethod
    def of(cls, point: RiskPoint) -> Self:
        return cls(**asdict(point))


class EvaluationObject(WireModel):
    object: Literal["extraction.evaluation"] = "extraction.evaluation"
    extraction_id: str
    gold_file_id: str | None
    """Null: compared with people's decisions."""
    documents: int
    """Number of documents of the extraction that have gold."""
    failed: int
    """Number of failed ones among them; all their values count as missed."""
    without_gold: int
    without_record: int
    """Number of gold documents that are not in the extraction; all their values count as missed."""
    overall: MeasuresObject
    fields: dict[str, MeasuresObject]
    """By path."""
    bins: list[CalibrationBin]
    risk: list[RiskCoverage]
    """Highest score first; at most 201 points."""

    @classmethod
    def of(cls, extraction_id: str, gold_file_id: str | None, evaluation: Evaluation) -> Self:
        step = max(1, math.ceil(len(evaluation.risk) / _MOST_POINTS))
        points = [*evaluation.risk[:-1:step], *evaluation.risk[-1:]]
        return cls(
            extraction_id=extraction_id,
            gold_file_id=gold_file_id,
            documents=evaluation.num_documents,
            failed=evaluation.num_failed,
            without_gold=evaluation.without_gold,
            without_record=evaluation.without_record,
            overall=MeasuresObject.of(evaluation.overall),
            fields={name: MeasuresObject.of(each) for name, each in evaluation.fields.items()},
            bins=[CalibrationBin.of(each) for each in evaluation.bins],
            risk=[RiskCoverage.of(each) for each in points],
        )
