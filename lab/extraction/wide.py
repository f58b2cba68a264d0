"""Ask documents for hundreds of fields in groups: how many are answered, and the reasons for those that are not.

The schema is the demo's plus more fields, which no document has. Each generated page is extracted twice: asking once
for every group, and asking again for fields that were left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs

from examples.documents import draw_facts
from examples.field_requests import SCHEMA_PATH
from examples.paper_layouts import HELD_OUT
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.records import UNANSWERED
from lab.extraction.pdf_writer import write_pdf

_KINDS: tuple[dict[str, str], ...] = (
    {"type": "string"},
    {"type": "number"},
    {"type": "integer"},
    {"type": "string", "format": "date"},
    {"type": "boolean"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The outcome of all fields of all documents."""

    again: bool
    num_fields: int
    num_failed: int
    """Documents without a record."""
    valid: float
    """The share of records that match the schema."""
    unanswered: Mapping[str, int]
    """Fields without an answer, by the reason in their record."""
    num_silent: int
    """Fields without an answer or a reason."""
    output_tokens: int
    seconds: float


def wide_schema(num_fields: int) -> dict[str, Any]:
    """Return the demo's schema with additional fields that no document has."""
    schema: dict[str, Any] = json.loads(SCHEMA_PATH.read_text())
    fields = schema["properties"]
    for number in range(len(fields), num_fields):
        fields[f"clause_{number}"] = {**_KINDS[number % len(_KINDS)], "description": f"of clause {number}"}
    schema["required"] = list(fields)
    return schema


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction wide", description=__doc__)
    parser.add_argument("--documents", type=int, default=3)
    parser.add_argument("--fields", type=int, default=369)
    parser.add_argument("--max-tokens", type=int, default=384, help="maximum tokens of an answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments, options = parser.parse_known_args(argv)  # others are options of `tokenmill extract`, such as --model
    options += ["--max-tokens", str(arguments.max_tokens)]
    measured = [
        _measured(arguments.documents, arguments.fields, seed=arguments.seed, again=again, options=options)
        for again in (False, True)
    ]
    if arguments.json:
        print(json.dumps([asdict(each) for each in measured], indent=2))
        return 0
    print(
        f"{arguments.documents} documents of seed {arguments.seed} × {arguments.fields} fields, answers of up to "
        f"{arguments.max_tokens} tokens, load {os.getloadavg()[0]:.1f}"
    )
    for each in measured:
        _print(each)
    return 0


def _measured(num_documents: int, num_fields: int, *, seed: int, again: bool, options: Sequence[str]) -> Measured:
    schema, started = wide_schema(num_fields), time.monotonic()
    records = _extracted(num_documents, schema, seed, [*options, *([] if again else ["--no-again"])])
    completed = [record for record in records if record["error"] is None]
    is_valid = jsonschema_rs.validator_for(FieldSchema.parse(schema).output_schema()).is_valid
    evidence = [each for record in completed for each in record["evidence"]]
    reasons = Counter(reason for each in evidence for reason in each["reasons"] if reason.startswith(UNANSWERED))
    return Measured(
        again=again,
        num_fields=num_documents * num_fields,
        num_failed=num_documents - len(completed),
        valid=sum(is_valid(record["fields"]) for record in completed) / max(1, len(completed)),
        unanswered=dict(reasons.most_common()),
        num_silent=len(completed) * num_fields - len(evidence),
        output_tokens=sum(record["usage"]["output_tokens"] for record in records),
        seconds=time.monotonic() - started,
    )


def _extracted(
    num_documents: int, schema: Mapping[str, Any], seed: int, options: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the records that the command writes."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as name:
        folder = Path(name)
        (folder / "papers").mkdir()
        (folder / "wide.schema.json").write_text(json.dumps(schema))
        for number in range(num_documents):
            draw = random.Random(f"{seed}-{number}")
            page = HELD_OUT[number % len(HELD_OUT)](draw_facts(draw), draw)
            (folder / "papers" / f"{number}.pdf").write_bytes(write_pdf([page]))
        program = str(Path(sys.executable).with_name("tokenmill"))
        command = [program, "extract", "papers", "--schema", "wide.schema.json", "-o", "fields.jsonl"]
        subprocess.run([*command, "--data-dir", "data", *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line) for line in (folder / "fields.jsonl").read_text(encoding="utf-8").splitlines()]


def _print(measured: Measured) -> None:
    num_unanswered = sum(measured.unanswered.values())
    rows = {
        "asked once" if not measured.again else "asked again in halves": "",
        "  schema-valid records": f"{measured.valid:.1%}",
        "  documents without a record": measured.num_failed,
        "  fields without an answer": f"{num_unanswered} of {measured.num_fields}, {measured.num_silent} unexplained",
        "  output tokens": f"{measured.output_tokens:,}",
        "  seconds": f"{measured.seconds:.0f}, including startup",
    }
    for name, value in rows.items():
        print(f"{name:38}{value}".rstrip())
    for reason, count in measured.unanswered.items():
        print(f"{count:>8}  {reason}")
