"""Answers about simulated papers, of which a quarter is wrong, and the features that they get.

See study.py for what is simulated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from features.documents.extraction.course.document import record_of
from features.documents.extraction.course.job import ExtractJob, plan
from features.documents.extraction.course.line_results import Answers, LineResult
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.scoring.calibration import Judged
from features.documents.extraction.scoring.features import Features
from lab.extraction.simulated_answers.papers import FIELDS, SCHEMA, SimulatedPaper, Stated

WRONG_SHARE = 0.25
_TOKENS_OF_A_VALUE = 4
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_LEAST_RIGHT = (0.0, 0.16, 0.36, 0.61, 0.96, 1.49, 2.5)
_LEAST_WRONG = (0.0, 0.21, 0.59, 0.94, 1.36, 1.78, 3.0)
"""Quantiles of the negative log-probability of a value's least likely token, as SmolLM2-135M-Instruct (Q4_1) answered
60 papers of 20 layouts on 2026-11-28: 91 right and 230 wrong values; their ends are drawn by hand."""
_KINDS_READ = {"number": "text", "order": "text", "vendor": "text", "customer": "text", "issued": "date", "due": "date"}


class Error(StrEnum):
    """How an answer is wrong."""

    OTHER_DOCUMENT = "value of another document"
    CHANGED = "another word or digit beside the true quote"
    OTHER_VALUE = "another value of the document with its quote"
    NULL = "null though stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The answer to a field; None for null."""

    stated: Stated | None
    error: Error | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A scored answer."""

    error: Error | None
    judged: Judged


def outcomes(all_papers: Sequence[SimulatedPaper], *, repeat: float) -> list[Outcome]:
    """Return the scored answers to all papers."""
    return [
        outcome
        for number, paper in enumerate(all_papers)
        for outcome in _of_one(paper, all_papers[number - 1], repeat=repeat)
    ]


def _of_one(paper: SimulatedPaper, other: SimulatedPaper, *, repeat: float) -> list[Outcome]:
    rng = random.Random(paper.name)
    first = {field: _said(paper, other, field, rng) for field in FIELDS}
    answer = _answer(first, rng)
    second = {field: first[field] if rng.random() < repeat else _said(paper, other, field, rng) for field in FIELDS}
    job, document = _job(), parse(paper.text.encode(), "paper.txt", Limits())
    answers = Answers(first=[answer], second_readings={0: _listing(second, paper)})
    record = record_of(job, job.showing(document), answers, name=paper.name, sha256="", usage={})
    return [
        Outcome(
            error=first[entry["path"]].error,
            judged=Judged(
                features=Features.from_json(entry["features"]),
                is_right=first[entry["path"]].error is None,
                document=paper.name,
            ),
        )
        for entry in record["evidence"]
    ]


def _job() -> ExtractJob:
    return plan(json.dumps(SCHEMA).encode(), quotes=True, params={}, max_fields=10)


def _said(paper: SimulatedPaper, other: SimulatedPaper, field: str, rng: random.Random) -> Said:
    true = paper.fields[field]
    if rng.random() >= WRONG_SHARE:
        return Said(stated=true, error=None)
    errors = list(Error) if true is not None else [Error.OTHER_DOCUMENT, Error.OTHER_VALUE]
    error = rng.choice(errors)
    if error is Error.NULL:
        return Said(stated=None, error=error)
    others = [each for each in paper.others_like(field) if true is None or each.value != true.value]
    if error is Error.OTHER_VALUE and others:
        return Said(stated=rng.choice(others), error=error)
    if error is Error.CHANGED and true is not None:
        return Said(stated=Stated(value=_changed(true.value, rng), quote=true.quote), error=error)
    elsewhere = [each for each in (other.fields[field], *other.others_like(field)) if each is not None]
    made_up = next(each for each in elsewhere if true is None or each.value != true.value)
    return Said(stated=made_up, error=Error.OTHER_DOCUMENT)


def _changed(value: Any, rng: random.Random) -> Any:
    """Return a value with another word or digit."""
    if isinstance(value, float):
        return round(value + rng.choice([0.1, 1, 10, 100, -0.1]) * rng.randint(1, 9), 2)
    words = value.split()
    if len(words) > 1:
        place = rng.randrange(2)
        words[place] = rng.choice([each for each in ("Ashdown", "Merrow", "Timber", "Optics") if each != words[place]])
        return " ".join(words)
    place = rng.choice([place for place, sign in enumerate(value) if sign.isdigit()][-3:])
    digit = rng.choice([each for each in "123456789" if each != value[place]])
    return value[:place] + digit + value[place + 1 :]


def _listing(second: Mapping[str, Said], paper: SimulatedPaper) -> LineResult:
    """Return a second reading: every value that it finds, without fields, and the values that no field asks for."""
    kinds = {"company": "text", "code": "text", "day": "date", "amount": "money"}
    stated = [(_KINDS_READ.get(field, "money"), said.stated) for field, said in second.items()]
    stated += [(kinds[kind], each) for kind, each in paper.beside.items()]
    values = [
        {
            "kind": kind,
            "value": each.quote if each.value == each.quote or kind != "text" else str(each.value),
            "quote": each.quote,
        }
        for kind, each in stated
        if each is not None
    ]
    return LineResult(text=json.dumps({"values": values}))


def _answer(first: Mapping[str, Said], rng: random.Random) -> LineResult:
    """Return the answer to all fields, with log-probabilities of its tokens."""
    pieces: list[tuple[str, float]] = [("{", 0.0)]
    for number, (field, said) in enumerate(first.items()):
        pieces.append((f"{', ' if number else ''}{json.dumps(field)}: ", 0.0))
        least = _least_logprob(rng, is_right=said.error is None)
        if said.stated is None:
            pieces.append(("null", least))
            continue
        pieces += [('{"quote": ', 0.0), (json.dumps(said.stated.quote), 0.0), (', "value": ', 0.0)]
        written = json.dumps(said.stated.value)
        size = max(1, -(-len(written) // _TOKENS_OF_A_VALUE))
        tokens = [written[start : start + size] for start in range(0, len(written), size)]
        unsure = rng.randrange(len(tokens))
        pieces += [(token, least if place == unsure else 0.0) for place, token in enumerate(tokens)]
        pieces.append(("}", 0.0))
    pieces.append(("}", 0.0))
    content = [{"token": token, "logprob": logprob} for token, logprob in pieces]
    return LineResult(text="".join(token for token, _ in pieces), logprobs=content)


def _least_logprob(rng: random.Random, *, is_right: bool) -> float:
    """Draw the log-probability of a value's least likely token."""
    return -float(np.interp(rng.random(), _SHARES, _LEAST_RIGHT if is_right else _LEAST_WRONG))
