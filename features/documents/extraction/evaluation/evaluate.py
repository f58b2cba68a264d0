"""Evaluates all records against all gold: measures overall and for each field.

Documents without gold are left out and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.evaluation.comparing import Compared, compare
from features.documents.extraction.evaluation.gold import GoldDocument, Spend, unbounded
from features.documents.extraction.evaluation.metrics import (
    Bin,
    Rates,
    RiskPoint,
    auroc,
    brier,
    calibration_bins,
    calibration_error,
    risk_coverage,
    share_automated,
    span_overlap,
)
from features.documents.extraction.fields.paths import Path, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.calibration import Judged
from features.documents.extraction.scoring.features import Features


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Measures of all fields, or of one; None if there was nothing to measure."""

    rates: Rates
    anls: float | None
    """Mean similarity of gold values and extracted values (ANLS* of Peer et al. 2024, leaf by leaf)."""
    null_right: float | None
    """Share of gold nulls that are null in the record."""
    grounded: float | None
    """Share of the extracted values that must occur in the document that were located there."""
    span_overlap: float | None
    """Mean overlap (IoU) of the spans of right values whose place is in the gold."""
    calibration_error: float | None
    brier: float | None
    auroc: float | None
    automated: float | None
    """Share of values and nulls that could go without review with 99 % of them right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Results of an extraction measured against gold."""

    num_documents: int
    num_failed: int
    without_gold: int
    """Number of records of documents that are not in gold."""
    without_record: int
    """Number of gold documents without a record; all their values count as missed."""
    valid: float | None
    """Share of the records without an error that the schema accepts."""
    overall: Measures
    fields: Mapping[str, Measures]
    bins: Sequence[Bin]
    risk: Sequence[RiskPoint]

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as JSON, including rates."""
        return {
            **{
                name: getattr(self, name)
                for name in ("num_documents", "num_failed", "without_gold", "without_record", "valid")
            },
            "overall": _measures_json(self.overall),
            "fields": {name: _measures_json(measures) for name, measures in self.fields.items()},
            "bins": [asdict(each) for each in self.bins],
            "risk": [asdict(each) for each in self.risk],
        }


def evaluate(
    schema: FieldSchema,
    records: Iterable[Mapping[str, Any]],
    gold: Mapping[str, GoldDocument],
    *,
    is_valid: Callable[[Mapping[str, Any]], bool] | None = None,
    spend: Spend = unbounded,
) -> Evaluation:
    """Measure records against gold; `is_valid` tells whether fields fit the schema, if that is to be measured.

    `spend` receives the numbers of comparisons. Raises ExtractionError if one name of gold matches two records.
    """
    with_gold, without_gold = _beside(records, gold)
    compared = [
        pair for key, right in gold.items() for pair in compare(schema, with_gold.get(key, {}), right, spend=spend)
    ]
    of_leaf: dict[Path, list[Compared]] = defaultdict(list)
    for pair in compared:
        of_leaf[pair.leaf.path].append(pair)
    done = [record for record in with_gold.values() if record.get("error") is None]
    scores, is_right = scores_of(compared)
    return Evaluation(
        num_documents=len(with_gold),
        num_failed=len(with_gold) - len(done),
        without_gold=without_gold,
        without_record=len(gold) - len(with_gold),
        valid=None if is_valid is None else _mean([float(is_valid(record["fields"])) for record in done]),
        overall=measure(compared),
        fields={spell(leaf.path): measure(of_leaf[leaf.path]) for leaf in schema.leaves},
        bins=calibration_bins(scores, is_right) if scores else (),
        risk=risk_coverage(scores, is_right),
    )


def judged(schema: FieldSchema, records: Iterable[Mapping[str, Any]], gold: Mapping[str, GoldDocument]) -> list[Judged]:
    """Return the data to fit a calibration to: recorded features, and whether gold has the same values.

    Raises ExtractionError if one name of gold matches two records.
    """
    with_gold, _without_gold = _beside(records, gold)
    return [
        Judged(features=Features.from_json(pair.evidence["features"]), is_right=pair.is_right, document=pair.document)
        for key, record in with_gold.items()
        for pair in compare(schema, record, gold[key])
        if pair.evidence is not None and "features" in pair.evidence
    ]


def measure(compared: Sequence[Compared]) -> Measures:
    """Return the measures of some values."""
    scores, is_right = scores_of(compared)
    extracted = [pair for pair in compared if pair.given is not None]
    in_gold = [pair for pair in compared if pair.gold is not None]
    placed = [pair for pair in extracted if pair.is_right and pair.gold_spans]
    return Measures(
        rates=Rates(
            right=sum(pair.is_right for pair in extracted),
            wrong=sum(not pair.is_right for pair in extracted),
            missed=sum(not pair.is_right for pair in in_gold),
        ),
        anls=_mean([pair.likeness for pair in in_gold]),
        null_right=_mean([float(pair.given is None) for pair in compared if pair.gold is None and pair.is_in_gold]),
        grounded=_mean([float(bool(pair.spans)) for pair in extracted if pair.leaf.ground]),
        span_overlap=_mean([span_overlap(pair.spans, pair.gold_spans) for pair in placed]),
        calibration_error=calibration_error(scores, is_right),
        brier=brier(scores, is_right),
        auroc=auroc(scores, is_right),
        automated=share_automated(risk_coverage(scores, is_right)) if scores else None,
    )


def scores_of(compared: Sequence[Compared]) -> tuple[list[float], list[bool]]:
    """Return the score of each value that has one, and whether it is right."""
    scored = [(float(pair.evidence["score"]), pair.is_right) for pair in compared if pair.evidence is not None]
    return [score for score, _ in scored], [right for _, right in scored]


def _beside(
    records: Iterable[Mapping[str, Any]], gold: Mapping[str, GoldDocument]
) -> tuple[dict[str, Mapping[str, Any]], int]:
    """Return the records that have gold, by the keys of gold, and the number of those without.

    A record has the gold of its id, else that of its name unless another record has it by id. Raises ExtractionError if
    two records have the same gold.
    """
    of_name = _of_name(gold)
    by_id: dict[str, Mapping[str, Any]] = {}
    by_name: dict[str, Mapping[str, Any]] = {}
    twice: set[str] = set()
    num_records = 0
    for record in records:
        num_records += 1
        own, key = record.get("document_id", ""), of_name.get(record["document"])
        if own in gold:
            if by_id.setdefault(own, record) is not record:
                raise _named_twice(own)
        elif key is not None and by_name.setdefault(key, record) is not record:
            twice.add(key)
    if still_twice := sorted(twice - by_id.keys()):
        raise _named_twice(gold[still_twice[0]].document)
    with_gold = by_name | by_id
    return with_gold, num_records - len(with_gold)


def _named_twice(name: str) -> ExtractionError:
    return ExtractionError(
        f"gold names {name!r}, the name of two records' documents: give the document_id of one, or leave one "
        "of the records out."
    )


def _of_name(gold: Mapping[str, GoldDocument]) -> dict[str, str]:
    """Return the keys of gold by document name, except names shared by several lines with ids."""
    num_lines = Counter(each.document for each in gold.values())
    return {each.document: key for key, each in gold.items() if num_lines[each.document] == 1 or each.document == key}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _measures_json(measures: Measures) -> dict[str, Any]:
    rates = measures.rates
    return {**asdict(measures), "precision": rates.precision, "recall": rates.recall, "f1": rates.f1}
