"""The features of a value that its score is computed from.

Any of them may be unknown, which is distinct from a bad value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from features.documents.extraction.fields.paths import ITEM
from features.documents.extraction.fields.values import normal_text
from features.documents.extraction.fields.writing import Meaning, meaning_of
from features.documents.extraction.grounding.align import Sought, ground
from features.documents.extraction.grounding.labels import is_in, label_of
from features.documents.extraction.grounding.spans import Span, Status
from features.documents.extraction.passes.covering import Covered, CoveredReading
from features.documents.extraction.passes.findings import Agreement, ValueLogprobs
from features.documents.extraction.passes.merging import Merged
from features.documents.extraction.passes.validators import Violation
from features.documents.extraction.scoring.captions import MOST_UNCLAIMED, Captions, Unclaimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Features of the value in the record, possibly null."""

    is_null: bool
    """Also true for a list without items for which nothing was answered."""
    status: Status | None = None
    """None if the value need not occur in the document. For null, `none` if the answer did not occur there."""
    likeness: float = 0.0
    stands_in_quote: bool | None = None
    """Whether the value can be read in its quote."""
    quote_stands: bool | None = None
    """Whether the words that were quoted for it, or from which it was concluded, occur in the document."""
    label_stands: bool | None = None
    """Whether words of its field stand beside it; None where the document has them nowhere."""
    meaning: Meaning | None = None
    """How it relates to the readings of its words; None if they have one."""
    is_followed: bool | None = None
    """Whether more words follow it on its line: often the rest of a truncated value."""
    agreement: Agreement | None = None
    """None without a second reading."""
    vote_share: float = 1.0
    """Share of this value among all findings of a value for the leaf."""
    num_candidates: int = 1
    num_rivals: int = 0
    """Number of other values that the document has after the same words."""
    covered: Covered | None = None
    """The answer once the value is covered; None if that was not asked."""
    covered_chance: float | None = None
    """Probability of the least likely token of that answer; None without log-probabilities."""
    violations: tuple[str, ...] = ()
    logprobs: ValueLogprobs | None = None
    ocr_score: float | None = None
    """Lowest OCR score of the value's words; None if nothing was read from an image."""
    retrieval_rank: int | None = None
    """Rank of the passage it was found in, from 0; None if the whole document was read."""
    shares_place: bool | None = None
    """Whether each of its places is that of another field's value, too."""
    caption: str | None = None
    """Its field and the words before it: `total: amount due`."""
    unclaimed: tuple[str, ...] = ()
    """For null, its field and the words before each value of its kind that no field has."""
    label_unclaimed: bool | None = None
    """For null, whether words of its field stand before one of these; None without any."""

    def to_json(self) -> dict[str, Any]:
        """Return the known features, as a record keeps them for calibration."""
        known = asdict(self)
        return {name: value for name, value in known.items() if value is not None and value != ()}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> Features:
        """Read the output of `to_json`."""
        status, agreement, logprobs = (known.get(name) for name in ("status", "agreement", "logprobs"))
        covered, meaning = known.get("covered"), known.get("meaning")
        return cls(
            **{
                **known,
                "status": None if status is None else Status(status),
                "agreement": None if agreement is None else Agreement(agreement),
                "meaning": None if meaning is None else Meaning(meaning),
                "covered": None if covered is None else Covered(covered),
                "logprobs": None if logprobs is None else ValueLogprobs(**logprobs),
                "violations": tuple(known.get("violations", ())),
                "unclaimed": tuple(known.get("unclaimed", ())),
            }
        )


def features_of(
    entry: Merged,
    text: str,
    *,
    violations: Iterable[Violation] = (),
    num_rivals: int = 0,
    covered: CoveredReading | None = None,
    ocr_scores: Sequence[float] = (),
    retrieval_rank: int | None = None,
    claimed: Sequence[Span] = (),
    captions: Captions | None = None,
    free: Sequence[Unclaimed] = (),
) -> Features:
    """Return the features of a merged entry, whose spans refer to `text`, as do `claimed`, the spans of other fields.

    `captions` are those of the text, made here if left out; `free` are its values that no field has.
    """
    chosen = entry.candidates[0]
    is_null = entry.value in (None, [])
    num_findings = sum(len(candidate.findings) for candidate in entry.candidates)
    left = _unclaimed(entry, free) if is_null else ()
    return Features(
        is_null=is_null,
        status=chosen.best.grounding.status if entry.leaf.ground and not is_null else _status_of_null(entry),
        likeness=chosen.best.grounding.likeness,
        stands_in_quote=_stands_in_quote(entry, text),
        quote_stands=_quote_stands(entry, text),
        label_stands=None if is_null else chosen.best.grounding.label_stands,
        meaning=_meaning(entry, text),
        is_followed=_is_followed(entry, text),
        agreement=chosen.best.agreement,
        vote_share=len(chosen.findings) / num_findings,
        num_candidates=len(entry.candidates),
        num_rivals=num_rivals,
        covered=None if covered is None else covered.said,
        covered_chance=_chance(covered),
        violations=tuple(each.reason for each in violations if each.is_about(entry.leaf.path, entry.place)),
        logprobs=chosen.best.logprobs,
        ocr_score=min(ocr_scores, default=None),
        retrieval_rank=retrieval_rank,
        shares_place=_shares_place(entry, claimed),
        caption=_caption(entry, Captions(text) if captions is None else captions),
        unclaimed=left,
        label_unclaimed=any(is_in(label_of(entry.leaf), each.partition(": ")[2]) for each in left) if left else None,
    )


def _shares_place(entry: Merged, claimed: Sequence[Span]) -> bool | None:
    spans = entry.candidates[0].spans
    if entry.value is None or not spans or ITEM in entry.leaf.path:
        return None
    return all(any(span.overlaps(other) for other in claimed) for span in spans)


def _caption(entry: Merged, captions: Captions) -> str | None:
    spans = entry.candidates[0].spans
    if entry.value is None or not spans or ITEM in entry.leaf.path:
        return None
    words = captions.before(spans[0])
    return None if words is None else f"{'.'.join(entry.leaf.path)}: {words}"


def _unclaimed(entry: Merged, free: Sequence[Unclaimed]) -> tuple[str, ...]:
    if ITEM in entry.leaf.path or not entry.leaf.ground:
        return ()
    found = dict.fromkeys(each.caption for each in free if entry.leaf.kind in each.kinds)
    return tuple(f"{'.'.join(entry.leaf.path)}: {caption}" for caption in islice(found, MOST_UNCLAIMED))


def _status_of_null(entry: Merged) -> Status | None:
    return None if entry.answer is None else Status.NONE


def _chance(covered: CoveredReading | None) -> float | None:
    return None if covered is None or covered.logprobs is None else math.exp(covered.logprobs.minimum)


def _quote_stands(entry: Merged, text: str) -> bool | None:
    best = entry.candidates[0].best
    quote = best.reading.quote
    if entry.value is None or quote is None:
        return None
    if entry.leaf.ground:
        return best.grounding.quote_stands
    words = normal_text(quote)
    return bool(words) and words in normal_text(text)


def _meaning(entry: Merged, text: str) -> Meaning | None:
    spans = entry.candidates[0].spans
    if entry.value is None or not spans:
        return None
    return meaning_of(entry.value, text[spans[0].start : spans[0].end], entry.leaf.kind, text)


def _is_followed(entry: Merged, text: str) -> bool | None:
    spans = entry.candidates[0].spans
    if entry.value is None or not spans:
        return None
    return any(map(str.isalnum, text[spans[0].end :].split("\n", maxsplit=1)[0]))


def _stands_in_quote(entry: Merged, text: str) -> bool | None:
    best = entry.candidates[0].best
    if best.value is None or not best.spans:
        return None
    words = text[best.spans[0].start : best.spans[0].end]
    (grounding,) = ground([Sought(value=best.value, kind=entry.leaf.kind)], words)
    return bool(grounding.spans)
