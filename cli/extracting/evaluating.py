"""`tokenmill extract evaluate | calibrate`: compares records with known fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from cli.disk.download import replacing
from cli.disk.output_path import require_apart, require_replaceable
from cli.options import AsJson
from cli.service.options import say, text_of
from cli.table import print_fields, print_table
from features.documents.extraction.errors import ExtractionError
from jobs.errors import InputError

if TYPE_CHECKING:
    from features.documents.extraction.evaluation.evaluate import Evaluation, Measures
    from features.documents.extraction.evaluation.gold import GoldDocument
    from features.documents.extraction.fields.schema import FieldSchema

_Records = Annotated[Path, typer.Argument(metavar="FIELDS.jsonl", help="Records of `tokenmill extract`.")]
_Gold = Annotated[Path, typer.Option(metavar="GOLD.jsonl", help="One line per document: its name and its fields.")]
_Schema = Annotated[Path, typer.Option(metavar="S.json", help="Schema of the records.")]


def register(group: typer.Typer) -> None:
    group.command()(evaluate)
    group.command()(calibrate)


def evaluate(
    records: _Records,
    *,
    gold: _Gold,
    schema: _Schema,
    report: Annotated[Path | None, typer.Option(metavar="R.html", help="Also write a page with plots.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how many values are right, per field, and how well the scores predict that."""
    from features.documents.extraction.evaluation.evaluate import evaluate as measured

    if report is not None:
        _require_output(report, records, gold=gold, schema=schema)
    parsed, right = _read(schema, gold)
    with _refused(records):
        evaluation = measured(parsed, records_of(records), right)
    if evaluation.num_documents == 0:
        raise InputError(
            f"no document of {records} is in {gold}. Their names must match: "
            f"{_first_name(records)!r} there, {next(iter(right), '')!r} here."
        )
    if report is not None:
        _write_report(report, evaluation)
    if as_json:
        print(json.dumps(evaluation.to_json(), ensure_ascii=False, indent=2))
        return
    header = ("field", "gold", "precision", "recall", "F1", "ANLS*", "null right", "found", "overlap")
    rows = [_row(name, measures) for name, measures in evaluation.fields.items()]
    print_table(header, rows, numbers=header[1:], total=_row("all", evaluation.overall))
    print_fields(_scores(evaluation))


def calibrate(
    records: _Records,
    *,
    gold: _Gold,
    schema: _Schema,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="C.json", help="For `extract --calibration`.")],
    target: Annotated[
        float, typer.Option(min=0.5, help="Share of unreviewed answers that must be right; below 1.")
    ] = 0.99,
) -> None:
    """Fit scores to documents with known fields, and find the threshold above which no review is needed."""
    from features.documents.extraction.evaluation.evaluate import judged
    from features.documents.extraction.scoring.calibration import fit

    if target >= 1:
        raise InputError(
            f"--target is {target:g}, which cannot be reached: one wrong value more than seen is assumed. Give a "
            "share below 1, such as 0.99."
        )
    _require_output(output, records, gold=gold, schema=schema)
    parsed, right = _read(schema, gold)
    with _refused(records):
        known = judged(parsed, records_of(records), right)
    fitted = fit(known, target=target)
    if fitted.values.logistic is None and fitted.nulls.logistic is None:
        raise InputError(
            f"{len(known)} answers of {records} are known from {gold}, with fewer than 30, or fewer than 5 wrong "
            "ones, among values and among nulls: too few to fit. Give gold for more documents."
        )
    with replacing(output) as file:
        file.write(fitted.to_json().encode())
    for name, part in (("values", fitted.values), ("nulls", fitted.nulls)):
        learned = "not changed" if part.logistic is None else f"no review from a score of {part.threshold:.3f} on"
        say(f"{part.num_gold:,} {name}: {learned}")


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file. Raises InputError with the line that is not a record."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InputError(f"{path}, line {number}: it is not JSON ({error}).") from None
            if not isinstance(record, dict) or not {"document", "fields", "evidence"} <= record.keys():
                raise InputError(f"{path}, line {number}: it is not a record of `tokenmill extract`.")
            yield record


def _require_output(output: Path, records: Path, *, gold: Path, schema: Path) -> None:
    require_replaceable(output)
    require_apart([output], {records: "the records", gold: "the gold", schema: "the schema"})


@contextmanager
def _refused(records: Path) -> Iterator[None]:
    """Name the file in errors about records that cannot be compared."""
    try:
        yield
    except ExtractionError as error:
        raise InputError(f"{records}: {error}") from None


def _read(schema: Path, gold: Path) -> tuple[FieldSchema, dict[str, GoldDocument]]:
    from cli.extracting.known import read_known
    from features.documents.extraction.fields.schema import FieldSchema

    try:
        parsed = FieldSchema.parse(text_of(schema))
    except ExtractionError as error:
        raise InputError(f"{schema}: {error}") from None
    return parsed, read_known(gold, parsed)


def _first_name(records: Path) -> str:
    return str(next(records_of(records), {"document": ""})["document"])


def _row(name: str, measures: Measures) -> tuple[str, ...]:
    rates = measures.rates
    shares = (rates.precision, rates.recall, rates.f1, measures.anls, measures.null_right)
    places = (measures.grounded, measures.span_overlap)
    return (name, f"{rates.right + rates.missed:,}", *map(_percent, (*shares, *places)))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _scores(evaluation: Evaluation) -> Mapping[str, str]:
    overall = evaluation.overall
    return {
        "documents": f"{evaluation.num_documents:,}, {evaluation.num_failed:,} failed, "
        f"{evaluation.without_record:,} without a record",
        "AUROC of the score": "" if overall.auroc is None else f"{overall.auroc:.3f}",
        "calibration error": "" if overall.calibration_error is None else f"{overall.calibration_error:.3f}",
        "no review at 99 % right": _percent(overall.automated),
    }


def _write_report(path: Path, evaluation: Evaluation) -> None:
    from features.documents.extraction.report.page import report as page

    with replacing(path) as file:
        file.write(page([], {}, title="Evaluation", evaluation=evaluation).encode())
