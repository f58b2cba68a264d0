"""`tokenmill extract evaluate | calibrate`: records beside what is known to be right."""

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
from cli.places.options import say, text_of
from cli.table import print_fields, print_table
from features.documents.extraction.errors import ExtractionError
from jobs.errors import InputError

if TYPE_CHECKING:
    from features.documents.extraction.evaluation.evaluate import Evaluation, Measures
    from features.documents.extraction.evaluation.gold import GoldDocument
    from features.documents.extraction.fields.schema import FieldSchema

_Records = Annotated[Path, typer.Argument(metavar="FIELDS.jsonl", help="What `tokenmill extract` has written.")]
_Gold = Annotated[Path, typer.Option(metavar="GOLD.jsonl", help="A line for each document: its name and its fields.")]
_Schema = Annotated[Path, typer.Option(metavar="S.json", help="The schema that the records were made with.")]


def register(group: typer.Typer) -> None:
    group.command()(evaluate)
    group.command()(calibrate)


def evaluate(
    records: _Records,
    *,
    gold: _Gold,
    schema: _Schema,
    report: Annotated[Path | None, typer.Option(metavar="R.html", help="The same as a page with plots.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell how much of the records is right, for each field, and whether the scores mean what they say."""
    from features.documents.extraction.evaluation.evaluate import evaluate as measured

    if report is not None:
        _require_output(report, records, gold=gold, schema=schema)
    parsed, right = _read(schema, gold)
    with _refused(records):
        found = measured(parsed, records_of(records), right)
    if found.num_documents == 0:
        raise InputError(
            f"no document of {records} is one of {gold}. Their names must be the same: "
            f"{_first_name(records)!r} there, {next(iter(right), '')!r} here."
        )
    if report is not None:
        _write_report(report, found)
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False, indent=2))
        return
    header = ("field", "gold", "precision", "recall", "F1", "ANLS*", "null right", "found", "overlap")
    rows = [_row(name, measures) for name, measures in found.fields.items()]
    print_table(header, rows, numbers=header[1:], total=_row("all", found.overall))
    print_fields(_scores(found))


def calibrate(
    records: _Records,
    *,
    gold: _Gold,
    schema: _Schema,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="C.json", help="For `extract --calibration`.")],
    target: Annotated[
        float, typer.Option(min=0.5, help="Of the answers that nobody looks at, the share that is right; below 1.")
    ] = 0.99,
) -> None:
    """Learn from documents whose fields are known what the scores of others mean, and which need a person's look."""
    from features.documents.extraction.evaluation.evaluate import judged
    from features.documents.extraction.scoring.calibration import fit

    if target >= 1:
        raise InputError(
            f"--target is {target:g}, which nothing can reach: one more wrong value is counted than was seen. Give a "
            "share below 1, such as 0.99."
        )
    _require_output(output, records, gold=gold, schema=schema)
    parsed, right = _read(schema, gold)
    with _refused(records):
        known = judged(parsed, records_of(records), right)
    fitted = fit(known, target=target)
    if fitted.values.logistic is None and fitted.nulls.logistic is None:
        raise InputError(
            f"{len(known)} answers of {records} are known by {gold}, and among values and among nulls fewer than 30 "
            "or fewer than 5 wrong ones: nothing can be learned of them. Give gold for more documents."
        )
    with replacing(output) as file:
        file.write(fitted.to_json().encode())
    for name, part in (("values", fitted.values), ("nulls", fitted.nulls)):
        learned = "as before" if part.logistic is None else f"no look from a score of {part.threshold:.3f} on"
        say(f"{part.num_gold:,} {name}: {learned}")


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file. Raises InputError with the line of what is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InputError(f"{path}, line {number}: it is no JSON ({error}).") from None
            if not isinstance(record, dict) or not {"document", "fields", "evidence"} <= record.keys():
                raise InputError(f"{path}, line {number}: it is no record of `tokenmill extract`.")
            yield record


def _require_output(output: Path, records: Path, *, gold: Path, schema: Path) -> None:

    require_replaceable(output)
    require_apart([output], {records: "the records", gold: "the gold", schema: "the schema"})


@contextmanager
def _refused(records: Path) -> Iterator[None]:
    """Say of which file it is that records cannot be compared."""
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


def _scores(found: Evaluation) -> Mapping[str, str]:
    overall = found.overall
    return {
        "documents": f"{found.num_documents:,}, {found.num_failed:,} failed, {found.without_record:,} without a record",
        "AUROC of the score": "" if overall.auroc is None else f"{overall.auroc:.3f}",
        "calibration error": "" if overall.calibration_error is None else f"{overall.calibration_error:.3f}",
        "no look at 99 % right": _percent(overall.automated),
    }


def _write_report(path: Path, found: Evaluation) -> None:
    from features.documents.extraction.report.page import report as page

    with replacing(path) as file:
        file.write(page([], {}, title="Evaluation", evaluation=found).encode())
