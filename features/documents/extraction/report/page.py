"""Renders records and texts as one HTML page.

The template engine escapes document content, since the template's name ends in `.html`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minijinja

from features.documents.extraction.evaluation.evaluate import Evaluation, Measures
from features.documents.extraction.report.curves import HEIGHT, WIDTH, calibration_dots, risk_curve
from features.documents.extraction.report.marks import Mark, Segment, segments

_TEMPLATE = "page.html"
_LEVELS = ("low", "medium", "high")
_MAX_VALUE_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A record with its document's text, prepared for the page."""

    index: int
    name: str
    error: Mapping[str, Any] | None
    notes: Sequence[str]
    values: Sequence[Mapping[str, Any]]
    segments: Sequence[Segment]

    @property
    def num_found(self) -> int:
        """Return how many values are not null."""
        return sum(not value["is_null"] for value in self.values)

    @property
    def num_reviews(self) -> int:
        """Return the number of values that a person should review."""
        return sum(value["review"] for value in self.values)


def report(
    records: Iterable[Mapping[str, Any]],
    texts: Mapping[str, str],
    *,
    title: str = "Extraction",
    evaluation: Evaluation | None = None,
) -> str:
    """Return the page. `texts` by document name are those that the spans refer to; some may be missing."""
    pages = [_shown(index, record, texts.get(record["document"], "")) for index, record in enumerate(records)]
    values = [value for document in pages for value in document.values]
    template = Path(__file__).with_name(_TEMPLATE).read_text(encoding="utf-8")
    environment = minijinja.Environment(templates={_TEMPLATE: template}, undefined_behavior="strict")
    return environment.render_template(
        _TEMPLATE,
        title=title,
        documents=[_context(document, values=document.values) for document in pages],
        overview=[_context(document) for document in sorted(pages, key=_worst_first)],
        num_failed=sum(document.error is not None for document in pages),
        num_values=sum(document.num_found for document in pages),
        num_reviews=sum(document.num_reviews for document in pages),
        levels=[(level, sum(value["level"] == level for value in values)) for level in reversed(_LEVELS)],
        evaluation=None if evaluation is None else _evaluation(evaluation),
    )


def _worst_first(document: Shown) -> tuple[bool, int, int]:
    return document.error is None, -document.num_reviews, document.index


def _context(document: Shown, *, values: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    by_index = {value["index"]: value for value in values}
    return {
        "index": document.index,
        "name": document.name,
        "error": document.error,
        "notes": document.notes,
        "num_found": document.num_found,
        "num_values": len(document.values),
        "num_reviews": document.num_reviews,
        "values": values,
        "segments": [_segment(each, by_index) for each in document.segments] if values else [],
    }


def _shown(index: int, record: Mapping[str, Any], text: str) -> Shown:
    evidence = record.get("evidence") or []
    marks = [
        Mark(start=span["start"], end=span["end"], index=number)
        for number, each in enumerate(evidence)
        for span in each["spans"]
    ]
    return Shown(
        index=index,
        name=record["document"],
        error=record.get("error"),
        notes=record.get("notes") or (),
        values=[_value(number, each) for number, each in enumerate(evidence)],
        segments=segments(text, marks),
    )


def _value(index: int, evidence: Mapping[str, Any]) -> dict[str, Any]:
    value = evidence["value"]
    pages = sorted({span["page"] + 1 for span in evidence["spans"] if span.get("page") is not None})
    return {
        "index": index,
        "path": evidence["path"],
        "value": _spelled(value),
        "is_null": value in (None, []),
        "is_placed": bool(evidence["spans"]),
        "pages": ", ".join(map(str, pages)),
        "grounding": evidence["grounding"],
        "score": f"{evidence['score']:.2f}",
        "level": evidence["level"],
        "review": evidence["review"],
        "reasons": "; ".join(evidence["reasons"]),
        "answer": _spelled(evidence["answer"]) if "answer" in evidence else "",
        "others": ", ".join(str(other["value"]) for other in evidence.get("others", [])),
    }


def _spelled(value: Any) -> str:
    spelled = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return spelled if len(spelled) <= _MAX_VALUE_CHARACTERS else spelled[:_MAX_VALUE_CHARACTERS] + "…"


def _segment(segment: Segment, values: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    inside = [values[index] for index in segment.indexes]
    least = min((value["level"] for value in inside), key=_LEVELS.index, default="")
    return {
        "text": segment.text,
        "level": least,
        "title": ", ".join(value["path"] for value in inside),
        "begins": list(segment.begins),
        "left_out": segment.left_out,
    }


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    curve = risk_curve(evaluation.risk)
    return {
        "rows": [
            _row("all fields", evaluation.overall),
            *(_row(name, each) for name, each in evaluation.fields.items()),
        ],
        "num_documents": evaluation.num_documents,
        "without_record": evaluation.without_record,
        "width": WIDTH,
        "height": HEIGHT,
        "risk": curve.points,
        "highest_risk": f"{curve.highest:.0%}",
        "dots": [{"x": dot.x, "y": dot.y, "title": dot.title} for dot in calibration_dots(evaluation.bins)],
    }


def _row(name: str, measures: Measures) -> dict[str, str]:
    rates = measures.rates
    return {
        "name": name,
        "precision": _percent(rates.precision),
        "recall": _percent(rates.recall),
        "f1": _percent(rates.f1),
        "anls": _percent(measures.anls),
        "null_right": _percent(measures.null_right),
        "grounded": _percent(measures.grounded),
        "auroc": "–" if measures.auroc is None else f"{measures.auroc:.2f}",
        "automated": _percent(measures.automated),
    }


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
