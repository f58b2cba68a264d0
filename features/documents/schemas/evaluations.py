"""What an extraction reached against gold."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Literal, Self

from api.schemas.wire import WireModel
from features.documents.extraction.evaluation.evaluate import Evaluation, Measures
from features.documents.extraction.evaluation.metrics import Bin, RiskPoint

_MOST_POINTS = 200


class MeasuresObject(WireModel):
    """Shares are from 0 to 1; null where there was nothing to measure."""

    right: int
    wrong: int
    """Given, and not so in gold; also where gold has null."""
    missed: int
    """In gold, and not given so."""
    precision: float | None
    recall: float | None
    f1: float | None
    anls: float | None
    """Mean likeness of gold's values and what was given for them (ANLS*)."""
    null_right: float | None
    """Of gold's nulls the share that is null."""
    grounded: float | None
    """Of the values that must stand in the document the share that was found there."""
    span_overlap: float | None
    """Mean overlap of the places (IoU) of right values whose place gold names."""
    calibration_error: float | None
    brier: float | None
    auroc: float | None
    automated: float | None
    """The share that could go on unseen with 99 % of it right."""

    @classmethod
    def of(cls, found: Measures) -> Self:
        own, rates = asdict(found), found.rates
        counts = own.pop("rates")
        return cls(**own, **counts, precision=rates.precision, recall=rates.recall, f1=rates.f1)


class CalibrationBin(WireModel):
    """Values of about one score: what was promised, and what was true."""

    count: int
    mean_score: float
    share_right: float

    @classmethod
    def of(cls, found: Bin) -> Self:
        return cls(**asdict(found))


class RiskCoverage(WireModel):
    """If all from a score on went on unseen: the share of values that it is, and the share of it that is wrong."""

    threshold: float
    coverage: float
    risk: float

    @classmethod
    def of(cls, found: RiskPoint) -> Self:
        return cls(**asdict(found))


class EvaluationObject(WireModel):
    object: Literal["extraction.evaluation"] = "extraction.evaluation"
    extraction_id: str
    gold_file_id: str | None
    """Null: against what people have decided."""
    documents: int
    """Of the extraction that gold has."""
    failed: int
    """Of these; all their values count as missed."""
    without_gold: int
    without_record: int
    """Documents of gold that the extraction has not; all their values count as missed."""
    overall: MeasuresObject
    fields: dict[str, MeasuresObject]
    """By path."""
    bins: list[CalibrationBin]
    risk: list[RiskCoverage]
    """The highest score first; 201 points at most."""

    @classmethod
    def of(cls, extraction_id: str, gold_file_id: str | None, found: Evaluation) -> Self:
        step = max(1, math.ceil(len(found.risk) / _MOST_POINTS))
        points = [*found.risk[:-1:step], *found.risk[-1:]]
        return cls(
            extraction_id=extraction_id,
            gold_file_id=gold_file_id,
            documents=found.num_documents,
            failed=found.num_failed,
            without_gold=found.without_gold,
            without_record=found.without_record,
            overall=MeasuresObject.of(found.overall),
            fields={name: MeasuresObject.of(each) for name, each in found.fields.items()},
            bins=[CalibrationBin.of(each) for each in found.bins],
            risk=[RiskCoverage.of(each) for each in points],
        )
