"""Tests of scores without and with gold."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from features.documents.extraction.documents.document import Document, Page
from features.documents.extraction.documents.runs import Box, Run, Runs
from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.fields.groups import groups
from features.documents.extraction.fields.leaf import Leaf, LeafType, Metric
from features.documents.extraction.fields.paths import Path
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.fields.writing import Meaning
from features.documents.extraction.grounding.spans import Grounding, Span, Status
from features.documents.extraction.passes.answers import read_answer
from features.documents.extraction.passes.covering import Covered
from features.documents.extraction.passes.findings import Agreement, Finding, Reading, ValueLogprobs
from features.documents.extraction.passes.logprobs import value_logprobs
from features.documents.extraction.passes.merging import Candidate, Merged
from features.documents.extraction.passes.validators import Violation
from features.documents.extraction.scoring import calibration as calibration_module
from features.documents.extraction.scoring.calibration import Calibration, Judged, fit, threshold_for
from features.documents.extraction.scoring.captions import Captions
from features.documents.extraction.scoring.evidence import evidence_of, ocr_scores
from features.documents.extraction.scoring.features import Features, features_of
from features.documents.extraction.scoring.regression import fit_isotonic, fit_logistic
from features.documents.extraction.scoring.score import Level, level_of, prior_score, reasons, scored
from features.documents.extraction.scoring.vector import NAMES
from tests.features.documents.extraction.scoring.builders import judged, sure

(TWO,) = groups(
    FieldSchema.parse(
        json.dumps({"type": "object", "properties": {"namé": {"type": "string"}, "x": {"type": "string"}}})
    )
)
TEXT = "Invoice R-17, total 119.00 EUR, again 119.00"


def leaf(*path: str, type_: LeafType = LeafType.NUMBER, **changes: object) -> Leaf:
    return Leaf(path=path, type=type_, **{"metric": Metric.MONEY, **changes})  # type: ignore[arg-type]


def entry(value: object, quote: str | None, path: Path = ("total",)) -> Merged:
    start = TEXT.index(quote) if quote else 0
    found = (
        Grounding(status=Status.EXACT, spans=(Span(start, start + len(quote)),), likeness=1.0) if quote else Grounding()
    )
    finding = Finding(reading=Reading(place=path, value=value, quote=quote), grounding=found)
    return Merged(place=path, leaf=leaf(*path), candidates=(Candidate(findings=(finding,)),))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": Status.NONE, "stands_in_quote": None}, "not found in the document"),
        ({"status": Status.FUZZY}, "only nearly"),
        ({"agreement": Agreement.DIFFERS}, "a second reading has another value"),
        ({"stands_in_quote": False}, "does not hold it"),
        ({"num_candidates": 2, "vote_share": 0.5}, "2 values were found"),
        ({"violations": ("the check a == b fails",)}, "the check a == b fails"),
        ({"ocr_score": 0.6}, "hard to read"),
        ({"logprobs": ValueLogprobs(mean=-1.0, minimum=-3.0)}, "the model was unsure"),
        ({"meaning": Meaning.OPEN}, "another reading"),
        ({"meaning": Meaning.CONTRADICTED}, "another value"),
        ({"shares_place": True}, "another field"),
    ],
)
def test_what_speaks_against_a_value_lowers_its_score_and_is_told(changes: dict[str, object], reason: str) -> None:
    assert (reasons(sure()), level_of(prior_score(sure()))) == ((), Level.HIGH)
    doubtful = sure(**changes)
    assert prior_score(doubtful) < prior_score(sure())
    assert any(reason in told for told in reasons(doubtful))


def test_a_value_is_reviewed_below_the_threshold_or_if_a_validator_speaks_against_it() -> None:
    total = leaf("total")
    assert not scored(sure(), total).review
    assert scored(sure(status=Status.NONE, agreement=None), total).review
    assert scored(sure(violations=("no day",)), total, score=0.999, threshold=0.5).review
    assert not scored(sure(), total, score=0.6, threshold=0.5).review
    absent = sure(is_null=True, status=None, agreement=None)
    assert not scored(absent, total).review
    told = scored(absent, leaf("total", required_for_auto=True))
    assert (told.review, told.reasons) == (True, ("it is required, and absent",))


def test_features_tell_whether_the_value_stands_in_its_quote() -> None:
    assert features_of(entry(119.0, "total 119.00 EUR"), TEXT).stands_in_quote is True
    assert features_of(entry(118.0, "total 119.00 EUR"), TEXT).stands_in_quote is False
    nowhere = features_of(entry(118.0, None), TEXT)
    assert (nowhere.stands_in_quote, nowhere.status) == (None, Status.NONE)


def test_a_place_of_another_field_is_shared_unless_the_value_has_a_place_of_its_own() -> None:
    total = entry(119.0, "total 119.00")
    assert features_of(total, TEXT).shares_place is False
    assert features_of(total, TEXT, claimed=[Span(14, 26)]).shares_place is True
    assert features_of(entry(119.0, None), TEXT, claimed=[Span(0, 40)]).shares_place is None


def test_null_notes_values_of_its_kind_that_no_field_has() -> None:
    text = "Total: 119.00\nTax: 19.00\nDue: 4 May 2024"
    free = features_of(entry(None, None), text, free=Captions(text).unclaimed([]))
    assert (free.unclaimed, free.label_unclaimed) == (("total: total", "total: tax", "total: due"), True)
    taken = features_of(entry(None, None), text, free=Captions(text).unclaimed([Span(7, 13), Span(30, 41)]))
    assert (taken.unclaimed, taken.label_unclaimed) == (("total: tax",), False)
    assert features_of(entry(None, None), "nothing here").label_unclaimed is None
    assert prior_score(free) < prior_score(taken)


def captioned(caption_of: Callable[[int], str]) -> list[Judged]:
    """Return values of 80 documents, every other one right."""
    return [
        Judged(features=sure(caption=caption_of(number)), is_right=bool(number % 2), document=str(number))
        for number in range(80)
    ]


def test_captions_of_gold_speak_for_and_against_values_of_other_documents() -> None:
    learned = fit(captioned(lambda number: "total: due" if number % 2 else "total: net"))
    known, wrong, other = (learned.score(sure(caption=f"total: {words}")) for words in ("due", "net", "new"))
    assert (known > 0.9, wrong < 0.1, known > other) == (True, True, True)
    assert Calibration.from_json(learned.to_json()) == learned


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_a_caption_that_right_and_wrong_values_have_alike_accepts_nothing(share: float) -> None:
    """Counts that a value's own label is in, or left out of, would tell it."""
    rng = random.Random(1)
    gold = [
        Judged(features=sure(caption="total: due"), is_right=rng.random() < share, document=str(number))
        for number in range(300)
    ]
    assert fit(gold).values.threshold > 1


def test_a_calibration_keeps_no_words_of_one_document() -> None:
    learned = fit(captioned(lambda number: f"total: {number}"))
    assert (learned.captions.right, learned.captions.wrong) == ({}, {})


@pytest.mark.parametrize("captions", [None, [], {"right": []}, {"right": {"a": -1}}, {"wrong": {"a": True}}])
def test_captions_that_are_no_counts_are_refused(captions: object) -> None:
    stored = json.loads(fit(judged(300)).to_json()) | {"captions": captions}
    with pytest.raises(ExtractionError):
        Calibration.from_json(json.dumps(stored))


def test_a_calibration_of_before_captions_scores_as_it_did() -> None:
    learned = fit(judged(300))
    stored = json.loads(learned.to_json())
    del stored["captions"]
    again = Calibration.from_json(json.dumps(stored))
    assert again.score(sure(shares_place=True)) == learned.score(sure(shares_place=True))


def test_only_the_violations_of_a_value_are_its_own() -> None:
    told = [
        Violation(paths=(("total",),), place=("total",), reason="own"),
        Violation(paths=(("net",), ("total",)), reason="check"),
        Violation(paths=(("net",),), place=("net",), reason="other"),
    ]
    assert features_of(entry(119.0, "119.00"), TEXT, violations=told).violations == ("own", "check")


def content(*tokens: tuple[str, float]) -> list[dict[str, object]]:
    return [
        {
            "token": token,
            "logprob": own,
            "bytes": list(token.encode()),
            "top_logprobs": [{"token": "?", "logprob": -5.0}],
        }
        for token, own in tokens
    ]


def test_only_the_tokens_of_the_value_count() -> None:
    answer = '{"namé":"Ab","x":1}'
    tokens = content(
        ('{"', -9.0), ("namé", -9.0), ('":"', -9.0), ("A", -0.2), ("b", -0.4), ('","', -9.0), ('x":1}', -9.0)
    )
    reading = Reading(place=("namé",), value="Ab", answer_start=answer.index("Ab"), answer_end=answer.index("Ab") + 2)
    found = value_logprobs(reading, leaf("namé", type_=LeafType.STRING), answer, tokens)
    assert found is not None
    assert (found.mean, found.minimum, found.margin) == pytest.approx((-0.3, -0.4, 4.6))
    assert value_logprobs(reading, leaf("namé"), answer, []) is None


def test_of_a_choice_only_the_tokens_that_decide_it_count() -> None:
    answer = '"open later"'
    tokens = content(('"', -9.0), ("open", -0.1), (" l", -0.7), ("ater", -8.0), ('"', -9.0))
    choice = leaf("state", type_=LeafType.STRING, enum=("open now", "open later"))
    found = value_logprobs(
        Reading(place=("state",), value="open later", answer_start=1, answer_end=11), choice, answer, tokens
    )
    assert found is not None
    assert found.minimum == -0.7


def test_how_surely_there_is_a_value_at_all_is_told_apart_from_the_value() -> None:
    answer = '{"namé":{"value":"Ab","quote":"Ab"},"x":null}'
    tokens = content(
        ('{"namé":', -9.0),
        ("{", -0.6),
        ('"value":"', -9.0),
        ("Ab", -0.2),
        ('","quote":"Ab"},"x":', -9.0),
        ("null}", -0.3),
    )
    (value, absent) = read_answer(answer, TWO).readings
    told = [value_logprobs(each, TWO.leaves[0], answer, tokens) for each in (value, absent)]
    assert [each and (each.minimum, each.stated) for each in told] == [(-0.2, -0.6), (-0.3, None)]


def test_what_a_model_is_torn_about_has_a_lower_score_than_what_it_is_sure_of() -> None:
    torn = ValueLogprobs(mean=-0.1, minimum=-0.69, stated=-0.01)
    seen = [Judged(features=sure(), is_right=True, document=f"{index}") for index in range(200)]
    seen += [Judged(features=sure(logprobs=torn), is_right=False, document=f"{index}") for index in range(20)]
    fitted = fit(seen)
    assert fitted.score(sure(logprobs=torn)) < 0.5 < fitted.score(sure())


def test_pooled_scores_keep_their_order() -> None:
    fitted = fit(judged(400))
    rising = [sure(logprobs=ValueLogprobs(mean=-0.02 / step, minimum=-0.04 / step, margin=1.0)) for step in (1, 2, 3)]
    scores = [fitted.score(each) for each in rising]
    assert fitted.values.isotonic is not None
    assert scores == sorted(set(scores))


@pytest.mark.parametrize(("quote", "stands"), [("Sales  RECEIPT", True), ("Offer", False), (None, None)])
def test_what_is_concluded_from_words_that_are_nowhere_is_doubted(quote: str | None, stands: bool | None) -> None:
    concluded = leaf("type", type_=LeafType.STRING, ground=False)
    finding = Finding(reading=Reading(place=("type",), value="receipt", quote=quote))
    merged = Merged(place=("type",), leaf=concluded, candidates=(Candidate(findings=(finding,)),))
    features = features_of(merged, "Ash Ltd\nSales receipt 17")
    assert features.quote_stands is stands
    assert ("not in the document" in " ".join(reasons(features))) == (stands is False)


def test_words_behind_a_value_on_its_line_are_noted() -> None:
    followed = features_of(entry("119.00", "119.00"), TEXT), features_of(entry("119.00", "again 119.00"), TEXT)
    assert [each.is_followed for each in followed] == [True, False]


def test_a_logistic_fit_finds_the_weights_that_made_the_labels() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 3))
    chances = 1 / (1 + np.exp(-(0.5 + rows @ np.array([2.0, -1.0, 0.0]))))
    fitted = fit_logistic(rows, (rng.random(4000) < chances).astype(np.float64))
    assert np.array(fitted.weights) == pytest.approx([0.5, 2.0, -1.0, 0.0], abs=0.2)
    assert np.abs(fitted.predict(rows) - chances).max() < 0.06


def test_a_fit_of_labels_that_are_all_the_same_is_finite() -> None:
    fitted = fit_logistic(np.ones((5, 2)), np.ones(5))
    assert np.isfinite(fitted.predict(np.zeros((2, 2)))).all()


def test_an_isotonic_fit_pools_neighbours_out_of_order() -> None:
    fitted = fit_isotonic(np.array([1.0, 2.0, 3.0, 4.0, 4.0]), np.array([0.0, 1.0, 0.0, 1.0, 1.0]))
    assert fitted.predict(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 9.0])).tolist() == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]


def test_a_calibrated_score_means_what_it_says() -> None:
    calibration = fit(judged(2000))
    unseen = judged(2000, seed=1)
    scores = np.array([calibration.score(each.features) for each in unseen])
    right = np.array([each.is_right for each in unseen])
    for low, high in ((0.0, 0.3), (0.3, 0.8), (0.8, 0.95), (0.95, 1.01)):
        inside = (scores >= low) & (scores < high)
        assert scores[inside].mean() == pytest.approx(right[inside].mean(), abs=0.12)
    automated = scores >= calibration.threshold(unseen[0].features)
    assert automated.mean() > 0.4
    assert right[automated].mean() > 0.97


def test_too_little_gold_keeps_the_score_from_before() -> None:
    calibration = fit(judged(20))
    assert calibration.values.logistic is None
    assert calibration.score(sure()) == pytest.approx(prior_score(sure()))


def test_isotonic_regression_waits_for_200_values() -> None:
    assert fit(judged(199)).values.isotonic is None
    assert fit(judged(200)).values.isotonic is not None


def test_null_is_calibrated_apart() -> None:
    calibration = fit(judged(300))
    absent = sure(is_null=True, status=None, stands_in_quote=None, agreement=None)
    assert (calibration.nulls.num_gold, calibration.nulls.logistic) == (0, None)
    assert calibration.score(absent) == pytest.approx(prior_score(absent))


def test_a_calibration_is_the_same_after_it_was_stored() -> None:
    calibration = fit(judged(300))
    assert Calibration.from_json(calibration.to_json()) == calibration
    for text in ("", "[]", json.dumps({**json.loads(calibration.to_json()), "features": ["other"]})):
        with pytest.raises(ExtractionError):
            Calibration.from_json(text)


def test_a_calibration_with_fewer_features_scores_as_it_did() -> None:
    known = judged(300)
    calibration = fit(known)
    stored = json.loads(calibration.to_json())
    gone = NAMES.index("covered_other")
    stored["features"] = [name for name in NAMES if name != "covered_other"]
    for part in (stored["values"]["logistic"], stored["nulls"]["logistic"]):
        if part is not None:
            for name, place in (("means", gone), ("scales", gone), ("weights", gone + 1)):
                del part[name][place]
    read = Calibration.from_json(json.dumps(stored))
    assert [read.score(each.features) for each in known] == [calibration.score(each.features) for each in known]
    stored["features"] = list(reversed(stored["features"]))
    with pytest.raises(ExtractionError):
        Calibration.from_json(json.dumps(stored))


def test_the_threshold_is_the_least_score_at_which_enough_is_right() -> None:
    scores, right = [0.9, 0.8, 0.8, 0.7, 0.2], [True, True, False, True, False]
    assert threshold_for(scores, right, 0.5) == 0.2
    assert threshold_for(scores, right, 0.6) == 0.7
    assert threshold_for(scores, [False] * 5, 0.5) > 1
    assert threshold_for([], [], 0.5) > 1


def test_a_threshold_for_99_percent_needs_99_right_values() -> None:
    assert threshold_for([0.9] * 98, [True] * 98, 0.99) > 1
    assert threshold_for([0.9] * 99, [True] * 99, 0.99) == 0.9


def test_the_threshold_hangs_little_on_which_documents_are_left_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    known, unseen = judged(600), [each.features for each in judged(600, seed=1)]

    def spread() -> float:
        """Return the standard deviation of the share accepted without review, for eight sets of documents' names."""
        shares = []
        for number in range(8):
            learned = fit([replace(each, document=f"{number}/{each.document}") for each in known], target=0.95)
            shares.append(np.mean([learned.score(each) >= learned.threshold(each) for each in unseen]))
        return float(np.std(shares))

    averaged = spread()
    monkeypatch.setattr(calibration_module, "_DIVISIONS", 1)
    assert averaged < 0.7 * spread()


def test_evidence_has_the_page_and_the_box_of_each_place() -> None:
    start = TEXT.index("119.00")
    runs = Runs.of(
        [
            Run(start=start, end=start + 6, page=0, box=Box(x0=10.0, y0=20.0, x1=40.0, y1=30.0), ocr_score=0.75),
            Run(start=start + 7, end=start + 10, page=0, box=Box(x0=45.0, y0=19.0, x1=60.0, y1=30.0), ocr_score=0.5),
        ]
    )
    document = Document(
        text=TEXT,
        pages=(Page(start=0, end=len(TEXT)),),
        runs=runs,
        cells=(),
        headings=(),
        format="pdf",
        parser="test 1",
    )
    found = entry(119.0, "119.00 EUR")
    told = evidence_of(found, scored(sure(), found.leaf), sure(), document)
    assert told["spans"] == [{"start": start, "end": start + 10, "page": 0, "box": [10.0, 19.0, 60.0, 30.0]}]
    assert (told["path"], told["grounding"], told["level"], told["review"]) == ("total", "exact", "high", False)
    assert json.loads(json.dumps(told)) == told
    assert Features.from_json(told["features"]) == sure()
    assert ocr_scores(found.candidates[0].spans, document) == [0.75, 0.5]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"logprobs": None, "status": None, "agreement": None},
        {"violations": ("no day",), "ocr_score": 0.5, "retrieval_rank": 0},
        {"covered": Covered.OTHER, "covered_chance": 0.5},
        {"meaning": Meaning.OPEN},
        {"shares_place": True, "caption": "total: due"},
        {"is_null": True, "unclaimed": ("total: due", "total: net"), "label_unclaimed": False},
    ],
)
def test_features_are_the_same_after_they_were_stored(changes: dict[str, object]) -> None:
    features = sure(**changes)
    assert Features.from_json(json.loads(json.dumps(features.to_json()))) == features
