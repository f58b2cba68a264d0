"""Tests that dry runs of `extract` and `map` predict the demo model's tokens: prompts exactly, totals within 20 %."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.make_papers import write_papers
from lab.extraction.long_documents import make_document
from tests.tutorial import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_processes")]

BOUND = 0.2
SHOWN = re.compile(r"^(.+?) +likely ([\d,]+) \(([\d,]+) in, ([\d,]+) out\)(?:, at most ([\d,]+))?", re.MULTILINE)
MAP_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"enum": ["receipt", "invoice", "delivery note", "credit note", "quotation"]},
        "vendor": {"type": "string"},
        "number": {"type": "string"},
        "date": {"type": "string"},
        "total": {"type": "string", "pattern": "^[0-9]+[.][0-9]{2}$"},
        "currency": {"enum": ["CHF", "EUR", "GBP", "USD"]},
    },
    "required": ["type", "vendor", "date", "total", "currency"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def stack(shared_stack: Any) -> Any:
    return shared_stack.of_tenant("dry-runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a dry run: a pass, or the total."""

    total: int
    input_tokens: int
    most: int
    """0 if the row shows none."""


def rows_of(printed: str) -> dict[str, Row]:
    found = {}
    for name, total, input_tokens, _, most in SHOWN.findall(printed):
        found[name] = Row(total=number(total), input_tokens=number(input_tokens), most=number(most or "0"))
    return found


def number(text: str) -> int:
    return int(text.replace(",", ""))


def dry_run_here(command: Sequence[str], folder: Path) -> dict[str, Row]:
    """Estimate a command without a server."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    model = str(ROOT / "examples" / "demo_model")
    more = ["--model", model, "--data-dir", str(folder / "here"), "--dry-run"]
    typed = [sys.executable, "-m", "cli.main", *command, *more]
    done = subprocess.run(typed, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return rows_of(done.stdout)


def usages(stack: Any) -> dict[str, tuple[int, int]]:
    """Return the tokens of each batch that asked a model, the newest first."""
    batches = stack.client().batches.list(limit=100).data
    tokens = {one.id: (one.usage.input_tokens, one.usage.output_tokens) for one in batches if one.usage}
    return {batch_id: each for batch_id, each in tokens.items() if any(each)}


def compare(stack: Any, folder: Path, command: Sequence[str], output: str, *, passes: Sequence[str]) -> None:
    """Estimate a command locally and at the server, run it there, and compare both with its true usage.

    `passes` are the rows of the first batch.
    """
    at_server = [*command, "--model", "demo", "--data-dir", str(folder / "there")]
    here = dry_run_here(command, folder)
    asked = stack.run(*at_server, "--dry-run")
    assert asked.returncode == 0, asked.stderr
    there = rows_of(asked.stdout)
    before = usages(stack)
    done = stack.run(*at_server, "-o", str(folder / output))
    assert done.returncode == 0, done.stderr
    took = [usage for batch_id, usage in usages(stack).items() if batch_id not in before][::-1]
    further = sum(map(sum, took[1:]))
    for foretold in (here, there):
        assert sum(foretold[name].input_tokens for name in passes) == took[0][0]
        require_close(foretold["tokens"], took=sum(map(sum, took)), further=further)


def require_close(foretold: Row, *, took: int, further: int) -> None:
    error = foretold.total / took - 1
    assert abs(error) <= BOUND, f"likely {foretold.total:,}, took {took:,}: {error:+.1%}"
    assert took - further <= foretold.most


def extract(folder: Path, *more: str) -> list[str]:
    schema = ROOT / "examples" / "extract" / "invoice.schema.json"
    return ["extract", str(folder / "in"), "--schema", str(schema), "--keep", *more]


@pytest.mark.parametrize(
    ("count", "more", "passes"),
    [
        (16, [], ["first questions"]),
        (12, ["--second-reading", "--no-again"], ["first questions", "second reading"]),
    ],
)
def test_an_extraction_takes_what_was_foretold(
    stack: Any, tmp_path: Path, count: int, more: list[str], passes: list[str]
) -> None:
    write_papers(tmp_path / "in", count)
    compare(stack, tmp_path, extract(tmp_path, *more), "fields.jsonl", passes=passes)


def test_documents_that_are_shown_in_parts_take_what_was_foretold(stack: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for seed in range(1, 9):
        (tmp_path / "in" / f"{seed}.pdf").write_bytes(make_document(12, seed=seed).content)
    compare(stack, tmp_path, extract(tmp_path), "fields.jsonl", passes=["first questions"])


def test_a_table_takes_what_was_foretold(stack: Any, tmp_path: Path) -> None:
    lines = (ROOT / "examples" / "documents.jsonl").read_text().splitlines()[:60]
    rows = [json.dumps({"text": json.loads(line)["body"]["messages"][1]["content"]}) for line in lines]
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    (tmp_path / "prompt.j2").write_text("# system:\nExtract the fields as JSON.\n# user:\n{{ text }}\n")
    (tmp_path / "out.json").write_text(json.dumps(MAP_SCHEMA))
    named = ["--prompt", str(tmp_path / "prompt.j2"), "--schema", str(tmp_path / "out.json"), "--temperature", "0"]
    command = ["map", str(tmp_path / "in.jsonl"), *named, "--keep"]
    compare(stack, tmp_path, command, "out.jsonl", passes=["tokens"])
