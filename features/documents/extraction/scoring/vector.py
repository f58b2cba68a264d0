"""Features as numbers for a regression; an unknown feature is 0, with an indicator of its own."""

from __future__ import annotations

import math
from dataclasses import replace

from features.documents.extraction.fields.writing import Meaning
from features.documents.extraction.grounding.spans import Status
from features.documents.extraction.passes.covering import Covered
from features.documents.extraction.passes.findings import Agreement
from features.documents.extraction.scoring.captions import CaptionCounts
from features.documents.extraction.scoring.features import Features
from features.documents.extraction.scoring.score import prior_log_odds

NAMES = (
    *("prior_log_odds", "exact", "normalised", "fuzzy", "nowhere", "likeness", "in_quote", "not_in_quote"),
    *("quote_nowhere", "followed"),
    *("agrees", "elsewhere", "differs", "silent", "vote_share", "other_candidates", "rivals", "violations"),
    *("has_logprobs", "mean_logprob", "min_logprob", "least_chance", "stated_chance", "margin"),
    *("covered_nothing", "covered_same", "covered_other", "covered_other_chance", "covered_null_chance"),
    *("has_ocr", "ocr_score", "retrieval_rank"),
    *("label_beside", "label_elsewhere", "open_meaning", "contradicted_meaning"),
    *("shares_place", "has_caption", "caption_share", "label_unclaimed", "unclaimed_share"),
)
"""In the order of a vector."""

CAPTION_PLACES = [NAMES.index(name) for name in ("has_caption", "caption_share", "unclaimed_share")]
"""Where a vector has the numbers of `caption_numbers`."""
_LEAST_LOGPROB = -10.0
_MOST_MARGIN = 10.0
_MOST_RIVALS = 2


def vector(features: Features, captions: CaptionCounts = CaptionCounts()) -> list[float]:  # noqa: B008 - it is frozen
    """Return the numbers in the order of NAMES; `captions` are those of gold, of other documents than this value's."""
    has_caption, caption_share, unclaimed_share = caption_numbers(features, captions)
    logprobs = features.logprobs
    chance = 1.0 if features.covered_chance is None else features.covered_chance
    margin = 0.0 if logprobs is None or logprobs.margin is None else logprobs.margin
    return [
        prior_log_odds(replace(features, shares_place=None, label_unclaimed=None)),  # they have columns of their own
        *(float(features.status is status) for status in (Status.EXACT, Status.NORMALISED, Status.FUZZY, Status.NONE)),
        features.likeness,
        float(features.stands_in_quote is True),
        float(features.stands_in_quote is False),
        float(features.quote_stands is False),
        float(features.is_followed is True),
        *(float(features.agreement is agreement) for agreement in Agreement),
        features.vote_share,
        float(features.num_candidates - 1),
        float(min(features.num_rivals, _MOST_RIVALS)),
        float(len(features.violations)),
        float(logprobs is not None),
        0.0 if logprobs is None else max(_LEAST_LOGPROB, logprobs.mean),
        0.0 if logprobs is None else max(_LEAST_LOGPROB, logprobs.minimum),
        0.0 if logprobs is None else math.exp(logprobs.minimum),  # two conflicting values have about half each
        0.0 if logprobs is None else math.exp(logprobs.stated or 0.0),
        max(-_MOST_MARGIN, min(_MOST_MARGIN, margin)),
        *(float(features.covered is answer) for answer in (Covered.NOTHING, Covered.SAME, Covered.OTHER)),
        chance * (features.covered is Covered.OTHER),
        chance * (features.covered is Covered.NOTHING),
        float(features.ocr_score is not None),
        0.0 if features.ocr_score is None else features.ocr_score,
        float(features.retrieval_rank or 0),
        float(features.label_stands is True),
        float(features.label_stands is False),
        float(features.meaning is Meaning.OPEN),
        float(features.meaning is Meaning.CONTRADICTED),
        float(features.shares_place is True),
        has_caption,
        caption_share,
        float(features.label_unclaimed is True),
        unclaimed_share,
    ]


def caption_numbers(features: Features, captions: CaptionCounts) -> list[float]:
    """Return the numbers that depend on the captions of gold, in the order of CAPTION_PLACES."""
    share = captions.share(features.caption)
    unclaimed = [captions.share(each) or 0.0 for each in features.unclaimed]
    return [float(share is not None), 0.0 if share is None else share, max(unclaimed, default=0.0)]
