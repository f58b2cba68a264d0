"""Documents with known fields, and their use as examples in prompts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import orjson

from cli.extracting.reading import read_documents
from cli.service.options import text_of
from features.documents.extraction.documents.layout import layout
from features.documents.extraction.errors import DocumentError, ExtractionError
from features.documents.extraction.evaluation.gold import GoldDocument, read_gold
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.examples import Example
from jobs.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDocuments:
    """The documents of a gold file, with their texts."""

    examples: tuple[Example, ...]
    content: bytes
    """A gold file whose lines have these texts, so that a service needs no documents for them."""


def read_examples(gold: Path, schema: FieldSchema) -> KnownDocuments:
    """Return the documents of a gold file. Raises InputError if one is missing or unreadable."""
    known = read_known(gold, schema)
    paths = [Path(each.document) for each in known.values()]
    for path, times in Counter(paths).items():
        if times > 1:
            raise InputError(f"{gold} has {times:,} lines for the file {path}. Keep the one that is right.")
        if not path.is_file():
            raise InputError(
                f"{gold} names {path}, which is not a file here. Run in the folder of its paths, or remove it."
            )
    examples, lines = [], []
    for document, one in zip(read_documents(paths), known.values(), strict=True):
        if isinstance(document, DocumentError):
            raise InputError(f"{one.document}, an example of {gold}: {document.message} ({document.code}).")
        text = layout(document).text
        examples.append(Example(document_text=text, fields=one.fields))
        lines.append(orjson.dumps({"document": one.document, "fields": one.fields, "text": text}) + b"\n")
    return KnownDocuments(examples=tuple(examples), content=b"".join(lines))


def read_known(gold: Path, schema: FieldSchema) -> dict[str, GoldDocument]:
    """Return the lines of a gold file by document. Raises InputError with the line that is wrong."""
    try:
        return read_gold(text_of(gold).split("\n"), schema)
    except ExtractionError as error:
        raise InputError(f"{gold}: {error}") from None
