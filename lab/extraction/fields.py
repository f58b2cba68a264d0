"""Measure `tokenmill extract` on generated documents, some of whose values are inked over, unreadable or contradicted.

The scores are calibrated on documents of another seed. The demo model was not trained on the PDFs' layouts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs

from examples.field_requests import SCHEMA_PATH
from examples.harms import Harm
from examples.make_papers import Paper, make_papers
from features.documents.extraction.evaluation.metrics import Rates, auroc, risk_coverage, share_automated
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.calibration import fit
from lab.extraction.harmed_papers import KINDS, STATED, Answer, answers_of, judged, rescored

_KNOWN_SEED = 1_000_003
"""Added to the seed of the measured documents: the seed of those for calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """Answers about values with one kind of damage, or without any."""

    kind: str
    num_answers: int
    exact: float | None
    """None for contradicted values: no answer is right."""
    null: float
    with_both: float | None
    """For contradicted values: the share whose record has the other value, too."""
    reviewed: float
    """With calibrated scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The results of an extraction."""

    num_documents: int
    num_failed: int
    valid: float
    exact: float
    """Of all answers except about contradicted values."""
    rates: Rates
    """Of all values except contradicted ones."""
    at_place: float
    """Of the right values that must be in their document: the share located where they are stated."""
    auroc_before: float | None
    auroc: float | None
    automated: float
    """Largest share that could be accepted without review with 99 % of it right, ordered by calibrated scores."""
    unseen: float
    """Share that is accepted without review at the fitted threshold."""
    unseen_right: float
    kinds: tuple[KindRow, ...]
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or JSON."""
    others = "All other options are those of `tokenmill extract`, such as --model, --cover and --second-reading."
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction fields", description=__doc__, epilog=others)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--known", type=int, default=400, help="documents for calibrating the scores")
    parser.add_argument("--harmed", type=float, default=0.2, help="share of the stated values that are damaged")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--show", type=int, default=0, help="number of wrong answers to print, the most confident first"
    )
    arguments, options = parser.parse_known_args(argv)
    schema = FieldSchema.parse(SCHEMA_PATH.read_bytes())
    known = dict(_named("known", arguments.known, arguments.seed + _KNOWN_SEED, arguments.harmed))
    measured_papers = dict(_named("asked", arguments.documents, arguments.seed, arguments.harmed))
    started = time.monotonic()
    records = _extracted(known | measured_papers, options)
    seconds = time.monotonic() - started
    answers, learned = answers_of(schema, measured_papers, records), fit(judged(answers_of(schema, known, records)))
    scored = rescored(answers, learned)
    own = [record for record in records if record["document"] in measured_papers]
    measured = _measured(schema, own, answers, scored, seconds=seconds)
    if arguments.json:
        print(json.dumps(asdict(measured), indent=2))
        return 0
    print(
        f"{measured.num_documents} documents of seed {arguments.seed}, scores calibrated on {arguments.known} others, "
        f"{arguments.harmed:.0%} of the values damaged, load {os.getloadavg()[0]:.1f}"
    )
    _print(measured)
    wrong = sorted(
        ((score, each) for (score, _), each in zip(scored, answers, strict=True) if not each.is_right),
        key=lambda pair: -pair[0],
    )
    for score, each in wrong[: arguments.show]:
        print(f"{score:.3f}  {each.document} {each.name} ({each.kind}): {each.value!r}  {each.features.logprobs}")
    return 0


def _named(folder: str, count: int, seed: int, harm_share: float) -> list[tuple[str, Paper]]:
    return [(f"{folder}/{paper.name}", paper) for paper in make_papers(count, seed=seed, harm_share=harm_share)]


def _extracted(papers: Mapping[str, Paper], options: Sequence[str]) -> list[dict[str, Any]]:
    """Return the records that the command writes for these documents."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as name:
        folder = Path(name)
        for path, paper in papers.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(paper.content)
        program = str(Path(sys.executable).with_name("tokenmill"))
        command = [program, "extract", "known", "asked", "--schema", str(SCHEMA_PATH), "-o", "fields.jsonl"]
        subprocess.run([*command, "--data-dir", "data", *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with (folder / "fields.jsonl").open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def _measured(
    schema: FieldSchema,
    records: Sequence[Mapping[str, Any]],
    answers: Sequence[Answer],
    scored: Sequence[tuple[float, bool]],
    *,
    seconds: float,
) -> Measured:
    completed = [record["fields"] for record in records if record["error"] is None]
    is_valid = jsonschema_rs.validator_for(schema.output_schema()).is_valid
    right = [each.is_right for each in answers]
    scores = [score for score, _ in scored]
    unseen = [is_right for is_right, (_, is_unseen) in zip(right, scored, strict=True) if is_unseen]
    answerable = [each for each in answers if each.kind != Harm.CONTRADICTED]
    reviewed = {id(each): not is_unseen for each, (_, is_unseen) in zip(answers, scored, strict=True)}
    return Measured(
        num_documents=len(records),
        num_failed=len(records) - len(completed),
        valid=_share([is_valid(fields) for fields in completed]),
        exact=_share([each.is_right for each in answerable]),
        rates=_rates(answerable),
        at_place=_share([each.is_at_place for each in answers if each.is_at_place is not None]),
        auroc_before=auroc([each.score for each in answers], right),
        auroc=auroc(scores, right),
        automated=share_automated(risk_coverage(scores, right)),
        unseen=len(unseen) / len(answers),
        unseen_right=_share(unseen),
        kinds=tuple(_row(kind, answers, reviewed) for kind in KINDS),
        seconds=seconds,
    )


def _row(kind: str, answers: Sequence[Answer], reviewed: Mapping[int, bool]) -> KindRow:
    own = [each for each in answers if each.kind == kind]
    is_contradicted = kind == Harm.CONTRADICTED
    return KindRow(
        kind=kind,
        num_answers=len(own),
        exact=None if is_contradicted else _share([each.is_right for each in own]),
        null=_share([each.value is None for each in own]),
        with_both=_share([each.has_both for each in own]) if is_contradicted else None,
        reviewed=_share([reviewed[id(each)] for each in own]),
    )


def _rates(answers: Sequence[Answer]) -> Rates:
    answered = [each for each in answers if each.value is not None]
    return Rates(
        right=sum(each.is_right for each in answered),
        wrong=sum(not each.is_right for each in answered),
        missed=sum(not each.is_right for each in answers if each.kind == STATED),
    )


def _share(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes) if outcomes else 0.0


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _print(measured: Measured) -> None:
    print(f"{'':16}{'answers':>8}{'exact':>8}{'null':>8}{'reviewed':>10}")
    for row in measured.kinds:
        exact = "" if row.exact is None else f"{row.exact:.1%}"
        print(f"{row.kind:16}{row.num_answers:>8}{exact:>8}{row.null:>8.1%}{row.reviewed:>10.1%}")
    rates = measured.rates
    rows = {
        "schema-valid records": f"{measured.valid:.1%}",
        "exact, except contradicted values": f"{measured.exact:.1%}",
        "F1 of the same": _percent(rates.f1),
        "its precision and recall": f"{_percent(rates.precision)}, {_percent(rates.recall)}",
        "right values at their place": f"{measured.at_place:.1%}",
        "AUROC before gold": "" if measured.auroc_before is None else f"{measured.auroc_before:.3f}",
        "AUROC, calibrated": "" if measured.auroc is None else f"{measured.auroc:.3f}",
        "possible without review at 99 % right": f"{measured.automated:.1%}",
        "accepted without review": f"{measured.unseen:.1%}, of which {measured.unseen_right:.2%} right",
        "seconds": f"{measured.seconds:.0f}, both sets, including startup",
    }
    for name, value in rows.items():
        print(f"{name:38}{value}")
