"""Documents with harmed values beside what `tokenmill extract` made of them: which answers are right, and where.

Of two values that contradict one another none is right: a person must look. Runs no model.
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
"""Of the characters that either span has: those that both have."""
_COUNT_LABEL = r"(?:Total pieces|Pieces|Quantity)[\s:|=]+"
"""A count is a plain number, which stands elsewhere, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One field of one document, as it was answered."""

    document: str
    name: str
    kind: str
    """One of KINDS."""
    value: Any
    is_right: bool
    is_at_place: bool | None
    """Whether a right value stands where it is said to; None of what is not right, or need not stand anywhere."""
    has_both: bool
    """Whether the value or one beside it is what else the document says, where it contradicts itself."""
    features: Features
    score: float
    review: bool
    is_nowhere: bool
    """Whether nothing in the document says what was answered: somebody must look, whatever the score."""


def answers_of(schema: FieldSchema, papers: Mapping[str, Paper], records: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Return the answers of records, whose documents are named as `papers` are; failed ones have none."""
    return [
        answer
        for record in records
        if record["document"] in papers and record["error"] is None
        for answer in _of_one(schema, papers[record["document"]], record)
    ]


def judged(answers: Sequence[Answer]) -> list[Judged]:
    """Return what a calibration is fitted to."""
    return [Judged(features=each.features, is_right=each.is_right, document=each.document) for each in answers]


def rescored(answers: Sequence[Answer], calibration: Calibration) -> list[tuple[float, bool]]:
    """Return each answer's calibrated score, and whether it goes on unseen."""
    scores = [calibration.score(each.features) for each in answers]
    return [
        (score, score >= calibration.threshold(each.features) and not (each.features.violations or each.is_nowhere))
        for score, each in zip(scores, answers, strict=True)
    ]


def _of_one(schema: FieldSchema, paper: Paper, record: Mapping[str, Any]) -> Iterator[Answer]:
    text = parse(paper.content, paper.name, Limits()).text
    evidence = {each["path"]: each for each in record["evidence"]}
    for leaf in schema.leaves:
        told, gold, harmed = evidence[leaf.name], paper.gold[leaf.name], paper.harms.get(leaf.name)
        is_contradicted = harmed is not None and harmed.harm is Harm.CONTRADICTED
        is_right = not is_contradicted and _is_same(leaf, told["value"], gold and gold[0])
        values = [told["value"], *(other["value"] for other in told.get("others", ()))]
        yield Answer(
            document=record["document"],
            name=leaf.name,
            kind=harmed.harm.value if harmed is not None else ABSENT if gold is None else STATED,
            value=told["value"],
            is_right=is_right,
            is_at_place=_is_at_place(leaf, told, gold[1], text) if is_right and gold is not None else None,
            has_both=harmed is not None and any(_is_same(leaf, value, harmed.other) for value in values),
            features=Features.from_json(told["features"]),
            score=told["score"],
            review=told["review"],
            is_nowhere="answer" in told or NOWHERE in told["reasons"],
        )


def _is_same(leaf: Leaf, given: Any, gold: Any) -> bool:
    return given is gold if given is None or gold is None else is_same_for(leaf, given, gold)


def _is_at_place(leaf: Leaf, told: Mapping[str, Any], quote: str, text: str) -> bool | None:
    if not leaf.ground:
        return None
    given = [Span(span["start"], span["end"]) for span in told["spans"]]
    return any(
        span_overlap([one], [place]) >= _RIGHT_PLACE for one in given for place in _places(leaf.name, quote, text)
    )


def _places(name: str, quote: str, text: str) -> list[Span]:
    """Return where in a document's text a field is stated."""
    words = r"\s+".join(map(re.escape, quote.split()))
    label = _COUNT_LABEL if name == "pieces" else ""
    found = [match.span(1) for match in re.finditer(rf"{label}(?<!\d)({words})(?!\d)", text)]
    return [Span(*span) for span in found]
