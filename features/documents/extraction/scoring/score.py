"""The score of a value without gold, its level, whether a person should review it, and the reasons in words.

The weights are judged, not measured: the score ranks values but is no probability. `calibration.py` calibrates it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.writing import Meaning
from features.documents.extraction.grounding.spans import Status
from features.documents.extraction.passes.covering import Covered
from features.documents.extraction.passes.findings import Agreement
from features.documents.extraction.scoring.features import Features


class Level(StrEnum):
    """The meaning of a score for people, with and without gold."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


HIGH_FROM = 0.85
MEDIUM_FROM = 0.5

_STATUS = {
    Status.EXACT: (2.0, ""),
    Status.NORMALISED: (1.8, ""),
    Status.FUZZY: (0.3, "its quote is only nearly in the document"),
    Status.NONE: (-2.0, "its place was not found in the document"),
    None: (1.5, ""),
}
_AGREEMENT = {
    Agreement.AGREES: (1.2, ""),
    Agreement.ELSEWHERE: (0.2, "a second reading has it at another place"),
    Agreement.DIFFERS: (-2.0, "a second reading has another value there"),
    Agreement.SILENT: (-0.3, ""),
    None: (0.0, ""),
}
_MEANING = {
    Meaning.SUPPORTED: (0.0, ""),
    Meaning.OPEN: (-0.6, "its words have another reading, too"),
    Meaning.CONTRADICTED: (-2.5, "other dates or numbers of the document are written so that it is another value"),
    None: (0.0, ""),
}
NOWHERE = "nothing in the document says so"
"""For choices, booleans and concluded values."""
_NULL = 1.8
_WITHHELD = -2.0, "what was answered stands nowhere in the document"
_NOT_IN_QUOTE = -1.8
_QUOTE_NOWHERE = -1.8
_LABEL_ELSEWHERE = -0.2
_CONFLICT = -3.0
"""If all other findings disagree."""
_VIOLATION = -2.5
_RIVAL = -2.5
_SHARED_PLACE = -1.0
_LABEL_UNCLAIMED = -1.0
_COVERED_OTHER = -2.5
"""If the model is sure of another value."""
_SURE_MEAN = 0.4
_PER_NAT = 1.5
"""Per nat of the mean log-probability of the value's tokens."""
_LEAST_FROM_LOGPROBS = -2.5
_DOUBTFUL_MINIMUM = -2.0
"""A token with a probability below 14 %."""
_OCR_FROM = 0.95
_PER_OCR_SHARE = 10.0
_PER_RANK = -0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The scoring result of a value."""

    score: float
    level: Level
    review: bool
    reasons: tuple[str, ...] = ()


def prior_score(features: Features) -> float:
    """Return a score in 0..1 without gold."""
    return 1 / (1 + math.exp(-prior_log_odds(features)))


def prior_log_odds(features: Features) -> float:
    """Return the log-odds of the score."""
    return sum(part for part, _ in _parts(features))


def reasons(features: Features) -> tuple[str, ...]:
    """Return what speaks against a value, in words."""
    return tuple(reason for _, reason in _parts(features) if reason)


def level_of(score: float) -> Level:
    """Return the level of a score."""
    if score >= HIGH_FROM:
        return Level.HIGH
    return Level.MEDIUM if score >= MEDIUM_FROM else Level.LOW


def scored(
    features: Features,
    leaf: Leaf,
    *,
    score: float | None = None,
    threshold: float = HIGH_FROM,
    is_nowhere: bool = False,
) -> Scored:
    """Return the scoring result of a value, by its calibrated score and threshold if given.

    It needs a review below the threshold, and always if it has violations, if nothing in the document supports it
    (`is_nowhere`), or if it is null but required for automation.
    """
    sure = prior_score(features) if score is None else score
    reasons_found = list(reasons(features))
    if features.is_null and leaf.required_for_auto:
        reasons_found.append("it is required, and absent")
    if is_nowhere and not features.is_null:
        reasons_found.append(NOWHERE)
    is_barred = bool(features.violations) or is_nowhere or (features.is_null and leaf.required_for_auto)
    return Scored(score=sure, level=level_of(sure), review=is_barred or sure < threshold, reasons=tuple(reasons_found))


def _parts(features: Features) -> Iterator[tuple[float, str]]:
    """Yield the contribution of each feature to the log-odds, with the reason if it speaks against the value."""
    yield from _logprob_parts(features)
    for violation in features.violations:
        yield _VIOLATION, violation
    if features.is_null:
        yield from _null_parts(features)
        return
    yield _STATUS[features.status]
    yield _AGREEMENT[features.agreement]
    yield _MEANING[features.meaning]
    if features.stands_in_quote is False:
        yield _NOT_IN_QUOTE, "its quote does not hold it"
    if features.quote_stands is False:
        yield _QUOTE_NOWHERE, "its quote is not in the document"
    if features.label_stands is False:
        yield _LABEL_ELSEWHERE, "the words of its field stand elsewhere in the document"
    if features.num_candidates > 1:
        yield _CONFLICT * (1 - features.vote_share), f"{features.num_candidates} values were found"
    if features.shares_place:
        yield _SHARED_PLACE, "another field has the value at the same place"
    if features.num_rivals:
        yield _RIVAL, "the document has another value, too"
    if features.covered is Covered.OTHER:
        chance = 1.0 if features.covered_chance is None else features.covered_chance
        yield _COVERED_OTHER * chance, "another value is found once this one is covered"
    if features.ocr_score is not None and features.ocr_score < _OCR_FROM:
        yield _PER_OCR_SHARE * (features.ocr_score - _OCR_FROM), "it was hard to read in the image"
    if features.retrieval_rank is not None:
        yield _PER_RANK * features.retrieval_rank, ""


def _null_parts(features: Features) -> Iterator[tuple[float, str]]:
    yield _NULL, ""
    if features.status is Status.NONE:
        yield _WITHHELD
    if features.label_unclaimed:
        yield _LABEL_UNCLAIMED, "words of its field stand before a value that no field has"


def _logprob_parts(features: Features) -> Iterator[tuple[float, str]]:
    if (logprobs := features.logprobs) is None:
        return
    is_doubtful = logprobs.minimum < _DOUBTFUL_MINIMUM
    yield (
        max(_LEAST_FROM_LOGPROBS, _SURE_MEAN + _PER_NAT * logprobs.mean),
        "the model was unsure of it" if is_doubtful else "",
    )
