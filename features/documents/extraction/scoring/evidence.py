"""A record's evidence: each value with its quote, its places on the pages, its score and the reasons.

Users read this, so its names must not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.runs import Run
from features.documents.extraction.fields.paths import spell
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passes.merging import Merged
from features.documents.extraction.passes.withholding import NOT_IN_DOCUMENT
from features.documents.extraction.scoring.features import Features
from features.documents.extraction.scoring.rivals import Rival
from features.documents.extraction.scoring.score import Scored


def evidence_of(
    entry: Merged, scored: Scored, features: Features, document: Document, *, rivals: Sequence[Rival] = ()
) -> dict[str, Any]:
    """Return the evidence of one value, as JSON; other values that were found follow as `others`.

    A value that is null because the answer does not occur in the document has `answer` and a `note`.

    Its features are included: with gold, calibrations are fitted to them.
    """
    chosen = entry.candidates[0]
    evidence = {
        "path": spell(entry.place),
        "value": chosen.value,
        **({} if entry.answer is None else {"answer": entry.answer, "note": NOT_IN_DOCUMENT}),
        "quote": chosen.best.reading.quote,
        "grounding": chosen.best.grounding.status.value,
        "likeness": round(chosen.best.grounding.likeness, 4),
        "spans": placed_spans(chosen.spans, document),
        "score": round(scored.score, 4),
        "level": scored.level.value,
        "review": scored.review,
        "reasons": [*scored.reasons, *chosen.best.reasons],
        "features": features.to_json(),
    }
    others = [_other(candidate.value, candidate.spans, document) for candidate in entry.candidates[1:]]
    others += [_other(rival.value, [rival.span], document) for rival in rivals]
    return {**evidence, "others": others} if others else evidence


def placed_spans(spans: Sequence[Span], document: Document) -> list[dict[str, Any]]:
    """Return spans with their page and the box around their words; null if the format has neither."""
    return [_placed(span, document) for span in spans]


def ocr_scores(spans: Sequence[Span], document: Document) -> list[float]:
    """Return the OCR scores of the words of spans; empty for words that were not read from an image."""
    runs = [run for span in spans for run in document.runs.touching(span.start, span.end)]
    return [run.ocr_score for run in runs if run.ocr_score is not None]


def _other(value: Any, spans: Sequence[Span], document: Document) -> dict[str, Any]:
    return {"value": value, "spans": placed_spans(spans, document)}


def _placed(span: Span, document: Document) -> dict[str, Any]:
    page = document.page_at(span.start)
    runs = [run for run in document.runs.touching(span.start, span.end) if run.page == page]
    return {"start": span.start, "end": span.end, "page": page, "box": _box(runs)}


def _box(runs: Sequence[Run]) -> list[float] | None:
    boxes = [run.box for run in runs if run.box is not None]
    if not boxes:
        return None
    corners = [
        min(box.x0 for box in boxes),
        min(box.y0 for box in boxes),
        max(box.x1 for box in boxes),
        max(box.y1 for box in boxes),
    ]
    return [round(corner, 1) for corner in corners]
