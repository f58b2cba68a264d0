"""Compare records of `tokenmill extract` with documents that have damaged values: right answers and positions.

If two values contradict each other, neither is right: a person must review. Runs no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.harms import Harm
from examples.make_papers import Paper
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.evaluation.metrics import span_overlap
from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.fields.values import is_same_for
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.scoring.calibration import Calibration, Judged
from features.documents.extraction.scoring.features import Features
from features.documents.extraction.scoring.score import NOWHERE

STATED, ABSENT = "stated", "never stated"
KINDS = (STATED, ABSENT, *(harm.value for harm in Harm))
_RIGHT_PLACE = 0.5
"""Smallest overlap of two spans, as a share of the characters in either."""
_COUNT_LABEL = r"(?:Total pieces|Pieces|Quantity)[\s:|=]+"
"""A count is a plain number, which may also occur elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One field of one document, with its answer."""

    document: str
    name: str
    kind: str
    """One of KINDS."""
    value: Any
    is_right: bool
    is_at_place: bool | None
    """Whether a right value is at its reported position; None if it is wrong, or need not be in the text."""
    has_both: bool
    """Whether the value or an alternative is the contradicting one, where the document contradicts itself."""
    features: Features
    score: float
    review: bool
    is_nowhere: bool
    """Whether nothing in the document states the answer: it needs review, whatever its score."""


def answers_of(schema: FieldSchema, papers: Mapping[str, Paper], records: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Return the answers in the records of documents that are named as in `papers`; failed ones have none."""
    return [
        answer
        for record in records
        if record["document"] in papers and record["error"] is None
        for answer in _of_one(schema, papers[record["document"]], record)
    ]


def judged(answers: Sequence[Answer]) -> list[Judged]:
    """Return the data to which a calibration is fitted."""
    return [Judged(features=each.features, is_right=each.is_right, document=each.document) for each in answers]


def rescored(answers: Sequence[Answer], calibration: Calibration) -> list[tuple[float, bool]]:
    """Return each answer's calibrated score, and whether it is accepted without review."""
    scores = [calibration.score(each.features) for each in answers]
    return [
        (score, score >= calibration.threshold(each.features) and not (each.features.violations or each.is_nowhere))
        for score, each in zip(scores, answers, strict=True)
    ]


def _of_one(schema: FieldSchema, paper: Paper, record: Mapping[str, Any]) -> Iterator[Answer]:
    text = parse(paper.content, paper.name, Limits()).text
    evidence = {each["path"]: each for each in record["evidence"]}
    for leaf in schema.leaves:
        entry, gold, harmed = evidence[leaf.name], paper.gold[leaf.name], paper.harms.get(leaf.name)
        is_contradicted = harmed is not None and harmed.harm is Harm.CONTRADICTED
        is_right = not is_contradicted and _is_same(leaf, entry["value"], gold and gold[0])
        values = [entry["value"], *(other["value"] for other in entry.get("others", ()))]
        yield Answer(
            document=record["document"],
            name=leaf.name,
            kind=harmed.harm.value if harmed is not None else ABSENT if gold is None else STATED,
            value=entry["value"],
            is_right=is_right,
            is_at_place=_is_at_place(leaf, entry, gold[1], text) if is_right and gold is not None else None,
            has_both=harmed is not None and any(_is_same(leaf, value, harmed.other) for value in values),
            features=Features.from_json(entry["features"]),
            score=entry["score"],
            review=entry["review"],
            is_nowhere="answer" in entry or NOWHERE in entry["reasons"],
        )


def _is_same(leaf: Leaf, value: Any, gold: Any) -> bool:
    return value is gold if value is None or gold is None else is_same_for(leaf, value, gold)


def _is_at_place(leaf: Leaf, entry: Mapping[str, Any], quote: str, text: str) -> bool | None:
    if not leaf.ground:
        return None
    spans = [Span(span["start"], span["end"]) for span in entry["spans"]]
    return any(
        span_overlap([one], [place]) >= _RIGHT_PLACE for one in spans for place in _places(leaf.name, quote, text)
    )


def _places(name: str, quote: str, text: str) -> list[Span]:
    """Return the positions in a document's text that state a field."""
    words = r"\s+".join(map(re.escape, quote.split()))
    label = _COUNT_LABEL if name == "pieces" else ""
    spans = [match.span(1) for match in re.finditer(rf"{label}(?<!\d)({words})(?!\d)", text)]
    return [Span(*span) for span in spans]
