"""Measure `tokenmill extract` on documents much longer than the model's context, in which one page states the fields.

The other pages repeat prose and columns of a few words, including the fields' own. The demo model was not trained on
the page's layout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import natural
from examples.documents import draw_facts
from examples.field_requests import SCHEMA_PATH, gold, shown
from examples.paper_layouts import HELD_OUT
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.fields.values import is_same_for
from lab.extraction.pages import make_pages
from lab.extraction.pdf_writer import write_pdf


@dataclass(frozen=True, slots=True, kw_only=True)
class LongDocument:
    """A PDF, the index of the page that states the fields, and their values; None for a field that is not stated."""

    content: bytes
    page: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The results of all documents together."""

    num_values: int
    """Stated values."""
    num_right: int
    num_placed: int
    """Of the right values that must be in the document: those located on the page."""
    num_to_place: int
    num_null: int
    """Fields that no page states."""
    num_null_right: int
    wrong: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the results and each wrong value, or JSON."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction long_documents", description=__doc__)
    parser.add_argument("--documents", type=natural, default=3)
    parser.add_argument("--pages", type=natural, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments, options = parser.parse_known_args(argv)  # others are options of `tokenmill extract`, such as --model
    documents = [make_document(arguments.pages, seed=arguments.seed + number) for number in range(arguments.documents)]
    measured = measure(documents, _extracted(documents, options))
    if arguments.json:
        print(json.dumps(asdict(measured), indent=2))
        return 0
    print(f"{arguments.documents} documents of {arguments.pages} pages, load {os.getloadavg()[0]:.1f}")
    print(f"{measured.num_right} of {measured.num_values} stated values right", end=", ")
    print(f"{measured.num_placed} of {measured.num_to_place} that must stand in the text on the right page")
    print(f"{measured.num_null_right} of {measured.num_null} others null")
    print(*measured.wrong, sep="\n")
    return 0


def make_document(num_pages: int, *, seed: int) -> LongDocument:
    """Make a document in which the page of fields has a random position."""
    draw = random.Random(seed)
    facts = draw_facts(draw)
    number = draw.randrange(num_pages)
    page = HELD_OUT[seed % len(HELD_OUT)](facts, draw)
    others = make_pages(num_pages, seed=seed)
    stated = gold(facts, shown(write_pdf([page]), "page.pdf"))
    content = write_pdf([*others[:number], page, *others[number + 1 :]])
    return LongDocument(
        content=content, page=number, fields={name: value and value[0] for name, value in stated.items()}
    )


def _extracted(documents: Sequence[LongDocument], options: Sequence[str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as name:
        folder = Path(name)
        (folder / "documents").mkdir()
        for number, document in enumerate(documents):
            (folder / "documents" / f"{number:04}.pdf").write_bytes(document.content)
        program = str(Path(sys.executable).with_name("tokenmill"))
        command = [program, "extract", "documents", "--schema", str(SCHEMA_PATH), "-o", "fields.jsonl"]
        subprocess.run([*command, "--data-dir", "data", *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with (folder / "fields.jsonl").open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def measure(documents: Sequence[LongDocument], records: Sequence[Mapping[str, Any]]) -> Measured:
    """Return how many values of the records are right; a failed document counts as all null."""
    leaves = {leaf.name: leaf for leaf in FieldSchema.parse(SCHEMA_PATH.read_bytes()).leaves}
    answers = [each for pair in zip(documents, records, strict=True) for each in _answers(*pair)]
    stated = [each for each in answers if each.stated is not None]
    right = [each for each in stated if is_same_for(leaves[each.name], each.value, each.stated)]
    to_place = [each for each in right if leaves[each.name].ground]
    nulls = [each.value for each in answers if each.stated is None]
    return Measured(
        num_values=len(stated),
        num_right=len(right),
        num_placed=sum(each.is_placed for each in to_place),
        num_to_place=len(to_place),
        num_null=len(nulls),
        num_null_right=nulls.count(None),
        wrong=tuple(f"{each.name}: {each.value!r}, stated {each.stated!r}" for each in stated if each not in right),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    name: str
    value: Any
    stated: Any
    is_placed: bool


def _answers(document: LongDocument, record: Mapping[str, Any]) -> list[_Answer]:
    """Return an answer for each field; for a failed document each is null."""
    evidence = {each["path"]: each for each in record["evidence"]}
    return [
        _Answer(
            name=name,
            value=evidence[name]["value"] if name in evidence else None,
            stated=stated,
            is_placed=name in evidence and {span["page"] for span in evidence[name]["spans"]} == {document.page},
        )
        for name, stated in document.fields.items()
    ]
