"""Calibrates scores with gold: logistic regression, then isotonic regression once there is enough.

Values and nulls are calibrated separately: null has no quote and no second reading, and its errors are of another kind.
Fits are judged on documents that they were not fitted on (five folds by document, divided in several ways).
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.scoring.captions import CaptionCounts
from features.documents.extraction.scoring.features import Features
from features.documents.extraction.scoring.regression import Isotonic, Logistic, fit_isotonic, fit_logistic
from features.documents.extraction.scoring.score import HIGH_FROM, prior_score
from features.documents.extraction.scoring.vector import CAPTION_PLACES, NAMES, caption_numbers, vector

MIN_GOLD = 30
"""Minimum number of gold values; with fewer a part keeps the score from before gold."""
MIN_WRONG = 5
ISOTONIC_FROM = 200
TARGET = 0.99
"""Share of right values among those that nobody reviews."""
_FOLDS = 5
_DIVISIONS = 4
"""Number of ways to divide documents into folds. The wrong values at 99 % right are a handful, so their ranks and the
threshold depend on which documents one division leaves out of the fit."""
_MOST_CAPTIONS = 5000
"""Kept in a calibration, the commonest."""
_ROUNDING = 1e-12
_OF_ORDER = 0.001
"""Share of a score that keeps the order of values with equal pooled scores."""
_VERSION = 1

Vectors = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Features of a value, and whether it equals gold."""

    features: Features
    is_right: bool
    document: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The fit for values, or for nulls."""

    num_gold: int
    logistic: Logistic | None = None
    isotonic: Isotonic | None = None
    threshold: float = HIGH_FROM
    """TARGET of the gold values from this score on are right; above 1 if no score suffices."""

    def scores(self, features: Sequence[Features], captions: CaptionCounts) -> npt.NDArray[np.float64]:
        """Return a score for each."""
        if self.logistic is None:
            return np.array([prior_score(each) for each in features])
        scores = self.logistic.predict(_vectors(features, captions))
        return scores if self.isotonic is None else _in_order(self.isotonic.predict(scores), scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Maps features to scores, fitted to one set of gold."""

    values: Part
    nulls: Part
    captions: CaptionCounts = field(default_factory=CaptionCounts)

    def score(self, features: Features) -> float:
        """Return the calibrated score of one value."""
        return float(self._part(features).scores([features], self.captions)[0])

    def threshold(self, features: Features) -> float:
        """Return the score from which on no review is needed."""
        return self._part(features).threshold

    def _part(self, features: Features) -> Part:
        return self.nulls if features.is_null else self.values

    def to_json(self) -> str:
        """Return the calibration as text for `from_json`."""
        return json.dumps({"version": _VERSION, "features": NAMES, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Read the output of `to_json`, which may have fewer features: the others get no weight.

        Raises ExtractionError for other input, or another version.
        """
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ExtractionError(f"The calibration is not JSON: {error}.") from None
        names = content.get("features") if isinstance(content, dict) and content.get("version") == _VERSION else None
        if not isinstance(names, list) or names != [name for name in NAMES if name in names]:
            raise ExtractionError("The calibration was made by another version. Calibrate again with the gold file.")
        try:
            return cls(
                values=_part_of(content["values"], names),
                nulls=_part_of(content["nulls"], names),
                captions=_captions_of(content.get("captions", {})),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ExtractionError(
                f"The calibration is damaged ({type(error).__name__}: {error}). Calibrate again with the gold file."
            ) from None


def fit(judged: Sequence[Judged], *, target: float = TARGET) -> Calibration:
    """Fit values and nulls separately; with too little gold a part keeps its prior score and HIGH_FROM."""
    values = [each for each in judged if not each.features.is_null]
    nulls = [each for each in judged if each.features.is_null]
    return Calibration(
        values=_fit_part(values, target, values), nulls=_fit_part(nulls, target, values), captions=_shared(values)
    )


def threshold_for(scores: Sequence[float], is_right: Sequence[bool], target: float) -> float:
    """Return the lowest score at and above which the share of right values reaches a target; above 1 if none does.

    One more wrong value is counted than there is: the threshold is chosen on the values that it is judged by, and would
    otherwise be too low (conformal risk control: Angelopoulos et al. 2024). So 0.99 needs 99 right values.
    """
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    ordered, right = np.asarray(scores)[order], np.asarray(is_right, dtype=np.float64)[order]
    shares = np.cumsum(right) / np.arange(2, len(right) + 2)
    is_last = np.append(ordered[1:] != ordered[:-1], True)  # equal scores stay together
    enough = np.nonzero((shares >= target - _ROUNDING) & is_last)[0]
    return float(ordered[enough[-1]]) if len(enough) else 1.01


def _shared(values: Sequence[Judged]) -> CaptionCounts:
    """Return the commonest captions that several documents have: one document's words are its own matter."""
    documents: dict[str, set[str]] = {}
    for each in values:
        if each.features.caption is not None:
            documents.setdefault(each.features.caption, set()).add(each.document)
    several = [caption for caption, owners in documents.items() if len(owners) > 1]
    kept = set(sorted(several, key=lambda caption: -len(documents[caption]))[:_MOST_CAPTIONS])
    return CaptionCounts.of((each.features.caption, each.is_right) for each in values if each.features.caption in kept)


class _Captions:
    """The captions of gold without those of some folds: counts of a value's own fold would give its label away."""

    def __init__(self, values: Sequence[Judged], division: int) -> None:
        self._folds = [
            CaptionCounts.of(
                (each.features.caption, each.is_right) for each in values if _fold(each.document, division) == fold
            )
            for fold in range(_FOLDS)
        ]
        self._without: dict[frozenset[int], CaptionCounts] = {}

    def without(self, *folds: int) -> CaptionCounts:
        """Return the captions of the other folds."""
        key = frozenset(folds)
        if key not in self._without:
            others = [counts for fold, counts in enumerate(self._folds) if fold not in key]
            self._without[key] = CaptionCounts.sum_of(others)
        return self._without[key]


class _Vectors:
    """The vectors of judged values in one division of documents into folds."""

    def __init__(self, judged: Sequence[Judged], values: Sequence[Judged], division: int) -> None:
        self._features = [each.features for each in judged]
        self._captions = _Captions(values, division)
        self.folds = np.array([_fold(each.document, division) for each in judged])
        self._plain = _vectors(self._features, CaptionCounts())

    def all(self, *, without: int | None = None) -> Vectors:
        """Return a vector of each value, with captions of other folds than its own and `without`."""
        out = self._plain.copy()
        for row, (features, fold) in enumerate(zip(self._features, self.folds.tolist(), strict=True)):
            captions = self._captions.without(fold, fold if without is None else without)
            out[row, CAPTION_PLACES] = caption_numbers(features, captions)
        return out


def _fold(document: str, division: int) -> int:
    return zlib.crc32(f"{division}{document}".encode()) % _FOLDS


def _fit_part(judged: Sequence[Judged], target: float, values: Sequence[Judged]) -> Part:
    wrong = sum(not each.is_right for each in judged)
    if len(judged) < MIN_GOLD or wrong < MIN_WRONG or wrong > len(judged) - MIN_WRONG:
        return Part(num_gold=len(judged))
    is_right = np.array([each.is_right for each in judged], dtype=np.float64)
    divisions = [_Vectors(judged, values, division) for division in range(_DIVISIONS)]
    unseen = np.mean([_by_other_folds(division, is_right) for division in divisions], axis=0)
    isotonic = fit_isotonic(unseen, is_right) if len(judged) >= ISOTONIC_FROM else None
    scores = unseen if isotonic is None else _in_order(isotonic.predict(unseen), unseen)
    return Part(
        num_gold=len(judged),
        logistic=fit_logistic(divisions[0].all(), is_right),
        isotonic=isotonic,
        threshold=threshold_for(scores.tolist(), [each.is_right for each in judged], target),
    )


def _by_other_folds(division: _Vectors, is_right: Vectors) -> Vectors:
    """Return for each value its score from a fit on the documents of other folds."""
    scores = np.full(len(is_right), is_right.mean())
    for fold in range(_FOLDS):
        inside = division.folds == fold
        if inside.any() and not inside.all():
            vectors = division.all(without=fold)
            scores[inside] = fit_logistic(vectors[~inside], is_right[~inside]).predict(vectors[inside])
    return scores


def _in_order(pooled: Vectors, scores: Vectors) -> Vectors:
    """Return isotonic scores nudged into the order of the input scores, since isotonic regression makes many equal."""
    return pooled + _OF_ORDER * (scores - pooled)


def _vectors(features: Sequence[Features], captions: CaptionCounts) -> Vectors:
    return np.array([vector(each, captions) for each in features], dtype=np.float64).reshape(len(features), len(NAMES))


def _captions_of(content: Any) -> CaptionCounts:
    """Return counts of captions. Raises TypeError or ValueError for invalid content."""
    sides: list[dict[str, int]] = []
    for name in ("right", "wrong"):
        side = content.get(name, {}) if isinstance(content, dict) else None
        if not isinstance(side, dict) or any(type(count) is not int or count < 0 for count in side.values()):
            raise ValueError("captions have no counts")
        sides.append(side)
    return CaptionCounts(*sides)


def _part_of(content: dict[str, Any], names: Sequence[str]) -> Part:
    """Return a part. Raises KeyError, TypeError, ValueError or OverflowError for invalid content."""
    logistic, isotonic = content["logistic"], content["isotonic"]
    return Part(
        num_gold=int(content["num_gold"]),
        logistic=None if logistic is None else _logistic(logistic, names),
        isotonic=None if isotonic is None else _isotonic(isotonic),
        threshold=_finite("threshold", [content["threshold"]])[0],
    )


def _logistic(content: dict[str, Any], names: Sequence[str]) -> Logistic:
    columns = {name: _finite(name, content[name]) for name in ("means", "scales", "weights")}
    if [len(values) for values in columns.values()] != [len(names), len(names), len(names) + 1]:
        raise ValueError(f"it must have {len(names)} means and scales, and one more weight")
    if min(columns["scales"]) <= 0:
        raise ValueError("a scale is not above 0")
    intercept, *weights = columns["weights"]
    return Logistic(
        means=_spread(columns["means"], names, otherwise=0.0),
        scales=_spread(columns["scales"], names, otherwise=1.0),
        weights=(intercept, *_spread(weights, names, otherwise=0.0)),
    )


def _spread(values: Sequence[float], names: Sequence[str], *, otherwise: float) -> tuple[float, ...]:
    """Return values in the order of the current features."""
    by_name = dict(zip(names, values, strict=True))
    return tuple(by_name.get(name, otherwise) for name in NAMES)


def _isotonic(content: dict[str, Any]) -> Isotonic:
    isotonic = Isotonic(**{name: _finite(name, values) for name, values in content.items()})
    if not isotonic.xs or len(isotonic.xs) != len(isotonic.ys):
        raise ValueError(f"it has {len(isotonic.xs)} xs and {len(isotonic.ys)} ys")
    return isotonic


def _finite(name: str, values: Sequence[Any]) -> tuple[float, ...]:
    for value in values:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} has {str(value)[:40]!r}, which is no finite number")
    return tuple(float(value) for value in values)
